"""The command line, called from benchmarks: every step is a command that a user could type."""

from __future__ import annotations

import contextlib
import io
import json
import shlex
import sys
from pathlib import Path
from typing import Any

from snncompress.cli import run

Command = list[str]


def snncompress(*arguments: str) -> None:
    """Runs a command and shows it."""
    print(f"\n$ snncompress {shlex.join(arguments)}", flush=True)
    if code := run(list(arguments)):
        sys.exit(code)


def ensure_run(out: Path, arguments: Command) -> None:
    """Trains a run unless it is there; an interrupted one goes on."""
    header = out / "run.json"
    status = json.loads(header.read_text())["status"] if header.exists() else None
    if status != "complete":
        snncompress("train", *arguments, "--out", str(out), *(["--resume"] if status is not None else []))


def read(*arguments: str) -> Any:
    """What a command prints with ``--json``."""
    captured = io.StringIO()
    with contextlib.redirect_stdout(captured):
        code = run([*arguments, "--json", "--quiet"])
    if code:
        sys.exit(code)
    return json.loads(captured.getvalue())
