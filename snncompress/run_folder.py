"""The folder of a run that is under way: one state file, and a history that fits it."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from snncompress.errors import RunError, UsageError
from snncompress.files import read_tensors, storage_error, write_bytes, write_json, write_tensors
from snncompress.run import Run, header, read_header, save_run


class RunFolder:
    """Where ``train`` and ``prune`` leave their state, so that a crash at any moment loses little.

    Args:
        path: the folder; None keeps nothing (use from Python).
        command: what the user typed, for ``run.json``.
        save_every: seconds between two saves of the state.
    """

    def __init__(self, path: Path | None, command: Sequence[str] = (), save_every: float = 30.0) -> None:
        self.path = path
        self.command = command
        self.save_every = save_every
        self.history: list[dict[str, Any]] = []
        self._saved_at = time.monotonic()

    def start(self, run: Run, *, force: bool) -> None:
        """Makes the folder of a new run; an existing one only goes with ``force``."""
        if self.path is None:
            return
        if self.path.exists() and not self._may_replace(force, run):
            raise UsageError(f"{self.path} exists; choose another --out, add --force, or continue it with --resume")
        try:
            if self.path.exists():
                shutil.rmtree(self.path)
            self.path.mkdir(parents=True)
        except OSError as error:
            raise storage_error(self.path, error) from error
        write_json(self.path / "run.json", header(run, "running", self.command))

    def _may_replace(self, force: bool, run: Run) -> bool:
        assert self.path is not None
        if self.path.is_dir() and not any(self.path.iterdir()):
            return True
        if not force:
            return False
        if run.path is not None and run.path.resolve() == self.path.resolve():
            raise UsageError(f"--out {self.path} is the run that is read; choose another folder")
        if not (self.path / "run.json").is_file():
            raise UsageError(f"{self.path} is not a run, so --force does not replace it; choose another --out")
        return True

    def resume(self, config: dict[str, Any]) -> tuple[dict[str, Tensor], Any] | None:
        """The saved state, with the history cut to it; None if the run had saved none yet."""
        if self.path is None or not self.path.is_dir():
            raise RunError(f"nothing to resume: there is no run in {self.path}; leave --resume out")
        content = read_header(self.path)
        if content["status"] == "complete":
            raise RunError(f"{self.path} is finished; nothing to resume")
        differing = [key for key, value in config.items() if content["config"].get(key) != value]
        if differing:
            key = differing[0]
            raise UsageError(
                f"--resume with another {key.replace('_', '-')}: the run has {content['config'].get(key)}, "
                f"the command {config[key]}; use the run's"
            )
        state = self.path / "state.safetensors"
        saved = read_tensors(state) if state.exists() else None
        history = self.path / "history.jsonl"
        lines = history.read_text(encoding="utf-8").splitlines() if history.exists() else []
        self.history = [json.loads(line) for line in lines[: saved[1]["history"] if saved else 0]]
        write_bytes(history, "".join(json.dumps(record) + "\n" for record in self.history).encode())
        return saved

    def record(self, entry: dict[str, Any]) -> None:
        """Appends a line to the history."""
        self.history.append(entry)
        if self.path is None:
            return
        try:
            with (self.path / "history.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")
        except OSError as error:
            raise storage_error(self.path / "history.jsonl", error) from error

    def due(self) -> bool:
        """Whether it is time to save the state again."""
        return self.path is not None and time.monotonic() - self._saved_at >= self.save_every

    def save(self, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
        """Writes the state, one file, at once."""
        if self.path is not None:
            write_tensors(self.path / "state.safetensors", tensors, {**meta, "history": len(self.history)})
        self._saved_at = time.monotonic()

    def finish(self, run: Run) -> Run:
        """Writes the finished run and drops the state."""
        if self.path is None:
            return run
        saved = save_run(run, self.path, self.command)
        (self.path / "state.safetensors").unlink(missing_ok=True)
        return saved
