"""The life of a run: the commands that led to it, each with its history, read from the folders that are still there."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from snncompress.errors import RunError
from snncompress.run_files import read_header

Record = dict[str, Any]


@dataclass(frozen=True)
class Stage:
    """One run in the line, finished or under way.

    Attributes:
        name: its folder's name.
        header: what its ``run.json`` says.
        history: the lines of its ``history.jsonl``.
    """

    name: str
    header: dict[str, Any]
    history: tuple[Record, ...]

    @property
    def config(self) -> dict[str, Any]:
        """The options of the command that made it."""
        return dict(self.header.get("config") or {})

    @property
    def command(self) -> str | None:
        """What was typed; None for a run that was made from Python."""
        words = self.header.get("command")
        return shlex.join(map(str, words)) if words else None

    @property
    def from_scratch(self) -> bool:
        """Whether it began with new weights though it has a parent: only the command tells."""
        return "--from-scratch" in (self.header.get("command") or ())

    @property
    def pruned(self) -> bool:
        """Whether it is a pruning: its records have phases, and their errors are those on validation data."""
        return "training" in self.config

    @property
    def batch_size(self) -> int | None:
        """Images a step of its training."""
        options = self.config.get("training") if self.pruned else self.config
        return (options or {}).get("batch_size")


@dataclass(frozen=True)
class Lineage:
    """Runs in the order in which they were made, the reported one last.

    Attributes:
        stages: those that can be read.
        lost: the folder of the run before the first of them, if there was one that is not there any more.
    """

    stages: tuple[Stage, ...]
    lost: str | None = None


def read_lineage(folder: Path) -> Lineage:
    """The run in a folder and all runs that it came from.

    Raises:
        RunError: If the run itself cannot be read; parents that cannot are lost.
    """
    stages = [read_stage(folder)]
    seen = {folder.resolve()}
    while (parent := stages[-1].header.get("parent")) is not None:
        place = Path(parent)
        if place.resolve() in seen:  # a run that was later replaced by its own descendant
            return Lineage(tuple(reversed(stages)), parent)
        seen.add(place.resolve())
        try:
            stages.append(read_stage(place))
        except RunError:
            return Lineage(tuple(reversed(stages)), parent)
    return Lineage(tuple(reversed(stages)))


def read_stage(folder: Path) -> Stage:
    """One run's header and history.

    Raises:
        RunError: If its ``run.json`` is missing or damaged.
    """
    return Stage(folder.resolve().name, read_header(folder), read_history(folder))


def read_history(folder: Path) -> tuple[Record, ...]:
    """The whole lines of a history; one that is just being written is left for the next time."""
    try:
        text = (folder / "history.jsonl").read_text(encoding="utf-8")
    except FileNotFoundError:
        return ()
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(f"cannot read {folder / 'history.jsonl'}: {error}; restore it, or make the run again") from error
    whole = text[: text.rfind("\n") + 1]
    try:
        records = [json.loads(line) for line in whole.splitlines()]
    except ValueError as error:
        raise RunError(f"{folder / 'history.jsonl'} is damaged ({error}); restore it, or make the run again") from error
    return tuple(record for record in records if isinstance(record, dict))
