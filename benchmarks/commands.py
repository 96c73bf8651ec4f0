"""The command line, called from benchmarks: every step is a command that a user could type."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from snncompress.cli import run

Command = list[str]
SHIFT = ("--augment", "shift")
MNIST_TRAINED = 54_000  # images: a tenth is for validation


def snncompress(*arguments: str) -> None:
    """Runs a command and shows it."""
    print(f"\n$ snncompress {shlex.join(arguments)}", flush=True)
    if code := run(list(arguments)):
        sys.exit(code)


def parse(document: str, out: str, rows: Iterable[str], *, stores: bool = False) -> argparse.Namespace:
    """The options of a table's benchmark: ``data_root``, ``out``, ``only`` and, if it can, ``store``."""
    parser = argparse.ArgumentParser(description=document, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", default="data")
    parser.add_argument("--out", type=Path, default=Path(out))
    parser.add_argument("--only", nargs="*", choices=rows, help="train these rows, print no table")
    if stores:
        parser.add_argument("--store", action="store_true", help="keep the table's rows in benchmarks/results, too")
    return parser.parse_args()


def status(folder: Path) -> str | None:
    """What a run says of itself: ``complete``, ``running``; None if it is not there."""
    header = folder / "run.json"
    return json.loads(header.read_text())["status"] if header.exists() else None


def ensure_run(out: Path, arguments: Command, command: str = "train") -> Path:
    """Trains or prunes a run unless it is there; an interrupted one goes on."""
    there = status(out)
    if there != "complete":
        snncompress(command, *arguments, "--out", str(out), *(["--resume"] if there is not None else []))
    return out


def follow(name: str, out: Path, data_root: str, until: str) -> Path:
    """Makes the runs of a zoo's recipe in ``out``, up to the one of that name; what is there is not made again."""
    snncompress("zoo", "run", name, "--out", str(out), "--data-root", data_root, "--until", until, "--resume")
    return out / until


def epochs_seen(folder: Path, images: int) -> int:
    """How many epochs of ``images`` a run and those that it came from have been trained for, in all."""
    header = json.loads((folder / "run.json").read_text())
    config = header["config"]
    if "training" in config:  # it was pruned
        steps = json.loads((folder / "plan.json").read_text())["points"][-1]["step"]
        epochs = math.ceil(steps / math.ceil(images / config["training"]["batch_size"]))
    else:
        epochs = config["epochs"]
    return epochs + (0 if header["parent"] is None else epochs_seen(Path(header["parent"]), images))


def read(*arguments: str) -> Any:
    """What a command prints with ``--json``."""
    captured = io.StringIO()
    with contextlib.redirect_stdout(captured):
        code = run([*arguments, "--json", "--quiet"])
    if code:
        sys.exit(code)
    return json.loads(captured.getvalue())
