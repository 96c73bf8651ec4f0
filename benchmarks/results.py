"""Results of long benchmarks that are no weights, as small JSON files: `benchmarks/results/TABLE.json`.

A benchmark writes one with `--store`; `python -m benchmarks.tables TABLE` prints it beside the published rows. It holds

- `table`, a name of `snncompress/reporting/published.toml`, and `rows`, whose keys are its columns and `method`;
- `command` and `commit` that made it (`modified`: with changes that were not committed), day, versions and `seeds`.
"""

from __future__ import annotations

import datetime
import json
import platform
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import snncompress
from snncompress.files import make_folder, write_json

FOLDER = Path(__file__).parent / "results"


def write(table: str, rows: Sequence[dict[str, Any]], seeds: Sequence[int] = (0,)) -> Path:
    """Stores the rows of a table with what made them; returns the file."""
    module = Path(sys.argv[0]).stem
    words = [Path(word).name if Path(word).is_absolute() else word for word in sys.argv[1:]]  # no path of this machine
    make_folder(FOLDER)
    file = FOLDER / f"{table}.json"
    write_json(
        file,
        {
            "table": table,
            "command": shlex.join(["python", "-m", f"benchmarks.{module}", *words]),
            "commit": _git("rev-parse", "HEAD"),
            "modified": bool(_git("status", "--porcelain", "--untracked-files=no")),
            "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
            "versions": {
                "snncompress": snncompress.__version__,
                "torch": torch.__version__,
                "python": platform.python_version(),
            },
            "seeds": list(seeds),
            "rows": list(rows),
        },
    )
    return file


def read(table: str) -> dict[str, Any] | None:
    """What is stored for a table; None if nothing is."""
    file = FOLDER / f"{table}.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None


def _git(*words: str) -> str:
    """What git says about this checkout; empty where there is none."""
    command = ["git", "-C", str(Path(__file__).parent), *words]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
