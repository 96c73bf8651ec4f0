"""A command that runs other commands, in this process, each as if it had been typed."""

from __future__ import annotations

import io
import json as json_module
import shlex
from collections.abc import Sequence
from contextlib import nullcontext, redirect_stdout
from typing import Any

from snncompress.cli import INTERRUPTED
from snncompress.errors import SnncompressError


def call(command: Sequence[str], *, quiet: bool, json: bool) -> Any:
    """Runs a command and shows it; with ``json`` nothing is shown, and what it prints as JSON is returned."""
    from snncompress.cli.app import app

    words = [*command, *(["--quiet"] * quiet), *(["--json"] * json)]
    printed = io.StringIO()
    if not json:
        print(f"\n$ snncompress {shlex.join(command)}", flush=True)
    with redirect_stdout(printed) if json else nullcontext():
        code = app(args=words, obj=words, prog_name="snncompress", standalone_mode=False)
    if code:
        how = "interrupted" if code == INTERRUPTED else "stopped"
        failure = SnncompressError(f"{how} at: snncompress {shlex.join(command)}")
        failure.exit_code = code
        raise failure
    return json_module.loads(printed.getvalue()) if json else None
