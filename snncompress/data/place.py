"""Where data sets are; by itself, so that showing a command needs no torch."""

from __future__ import annotations

import os
from pathlib import Path

ROOT_VARIABLE = "SNNCOMPRESS_DATA"
DEFAULT_ROOT = "data"


def data_place(given: str | Path | None = None) -> Path:
    """What was given, else the environment's ``SNNCOMPRESS_DATA``, else ``data``."""
    return Path(given or os.environ.get(ROOT_VARIABLE) or DEFAULT_ROOT).expanduser()
