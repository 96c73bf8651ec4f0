"""The folder of a run that is under way: one state file, and a history that fits it."""

from __future__ import annotations

import json
import shutil
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from torch import Tensor, nn

from snncompress.errors import RunError, UsageError
from snncompress.files import (
    LEFTOVERS,
    lock_folder,
    make_folder,
    read_tensors,
    remove_leftovers,
    storage_error,
    write_bytes,
    write_json,
    write_tensors,
)
from snncompress.models.shapes import record_shapes
from snncompress.run import Run
from snncompress.run_files import header, read_header, save_run

POINTS = "points"  # the folder of the models on the way
# What may differ when a run is resumed: a smaller learning rate is the way on from a loss that became NaN.
FREE = ("lr",)
# What a resumed run has in common with its beginning, beside its options: (entry of run.json, in words).
COMMON = (
    ("data", "data"),
    ("source", "model"),
    ("checkpoint", "checkpoint"),
    ("parent", "run to start from"),
    ("normalization", "normalization"),
)


class RunFolder:
    """Where ``train`` and ``prune`` leave their state, so that a crash at any moment loses little.

    Nobody else writes into the folder meanwhile. As a context manager, it removes the folder of a run that fails before
    its first state: nothing is half written.

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
        self._worthless = False  # made by us, and without a state
        self._unlock: Callable[[], object] = lambda: None

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is not None and self._worthless and self.path is not None:
            shutil.rmtree(self.path, ignore_errors=True)
        self._unlock()

    def start(self, run: Run, *, force: bool) -> None:
        """Makes the folder of a new run; an existing one only goes with ``force``."""
        if self.path is None:
            return
        if self.path.exists() and not self._may_replace(force, run):
            raise UsageError(f"{self.path} exists; choose another --out, add --force, or continue it with --resume")
        try:
            if self.path.exists():
                self._lock()
                shutil.rmtree(self.path)
            self.path.mkdir(parents=True)
        except OSError as error:
            raise storage_error(self.path, error) from error
        self._lock()
        self._worthless = True
        write_json(self.path / "run.json", header(run, "running", self.command))

    def _lock(self) -> None:
        assert self.path is not None
        self._unlock()
        self._unlock = weakref.finalize(self, lock_folder(self.path))

    def _may_replace(self, force: bool, run: Run) -> bool:
        assert self.path is not None
        if self.path.is_dir() and all(file.match(LEFTOVERS) for file in self.path.iterdir()):
            return True  # empty, but for what a killed process left
        if not force:
            return False
        if run.path is not None and run.path.resolve() == self.path.resolve():
            raise UsageError(f"--out {self.path} is the run that is read; choose another folder")
        if not (self.path / "run.json").is_file():
            raise UsageError(f"{self.path} is not a run, so --force does not replace it; choose another --out")
        return True

    def resume(self, run: Run) -> tuple[dict[str, Tensor], Any] | None:
        """The saved state, with the history cut to it; None if the run had saved none yet.

        Args:
            run: the run as ``start`` would write it; the one in the folder must have begun alike.
        """
        if self.path is None or not (self.path / "run.json").is_file():
            raise RunError(f"nothing to resume: there is no run in {self.path}; leave --resume out")
        self._lock()
        content = read_header(self.path)
        if content["status"] == "complete":
            raise RunError(f"{self.path} is finished; there is nothing to resume")
        _check_same(content, header(run, "running", ()))
        remove_leftovers(self.path)
        state = self.path / "state.safetensors"
        saved = read_tensors(state) if state.exists() else None
        self._cut_history(saved[1]["history"] if saved else 0)
        return saved

    def _cut_history(self, length: int) -> None:
        assert self.path is not None
        file = self.path / "history.jsonl"
        try:
            lines = file.read_text(encoding="utf-8").splitlines() if length else []
            self.history = [json.loads(line) for line in lines[:length]]
        except (OSError, ValueError) as error:
            raise RunError(f"{file} is damaged ({error}); run the command again with --force") from error
        write_bytes(file, "".join(json.dumps(record) + "\n" for record in self.history).encode())

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

    def save_point(self, index: int, model: nn.Module) -> None:
        """Keeps a smaller model on the way, so that it can be restored."""
        if self.path is not None:
            folder = self.path / POINTS
            make_folder(folder)
            write_tensors(folder / f"{index:03}.safetensors", model.state_dict(), {"shapes": record_shapes(model)})

    def keep(self, name: str, content: Any) -> None:
        """Writes something for people and scripts that no command reads."""
        if self.path is not None:
            write_json(self.path / name, content)

    def due(self) -> bool:
        """Whether it is time to save the state again."""
        return self.path is not None and time.monotonic() - self._saved_at >= self.save_every

    def save(self, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
        """Writes the state, one file, at once."""
        if self.path is not None:
            write_tensors(self.path / "state.safetensors", tensors, {**meta, "history": len(self.history)})
        self._worthless = False
        self._saved_at = time.monotonic()

    def finish(self, run: Run) -> Run:
        """Writes the finished run and drops the state."""
        if self.path is None:
            return run
        saved = save_run(run, self.path, self.command)
        (self.path / "state.safetensors").unlink(missing_ok=True)
        remove_leftovers(self.path)
        return saved


def _check_same(old: dict[str, Any], new: dict[str, Any]) -> None:
    """Refuses to resume a run with another beginning: the result would be neither run's."""
    before, now = _flat(old["config"]), _flat(new["config"])
    differing = [
        (f"--{key.replace('_', '-')}", before.get(key), value)
        for key, value in now.items()
        if not _alike(before.get(key), value) and key not in FREE
    ]
    differing += [
        (words, old.get(entry), new[entry]) for entry, words in COMMON if not _alike(old.get(entry), new[entry])
    ]
    if differing:
        words, there, here = differing[0]
        if isinstance(there, dict) and isinstance(here, dict):  # only what differs
            odd = [key for key in {**there, **here} if not _alike(there.get(key), here.get(key))]
            there, here = ({key: value.get(key) for key in odd} for value in (there, here))
        raise UsageError(f"--resume with another {words}: the run has {there}, the command {here}; use the run's")


def _alike(there: Any, here: Any) -> bool:
    """Whether two entries say the same; what was moved together with a run is known by its name."""
    if isinstance(there, dict) and isinstance(here, dict):
        return there.keys() == here.keys() and all(_alike(there[key], here[key]) for key in here)
    if there == here or not isinstance(there, str) or not isinstance(here, str):
        return bool(there == here)
    old, new = Path(there), Path(here)
    return old.is_absolute() and old.name == new.name and not old.exists() and new.exists()


def _flat(config: dict[str, Any]) -> dict[str, Any]:
    """The options of fine-tuning beside the others."""
    return {**config, **config.get("training", {})} | {"training": None}
