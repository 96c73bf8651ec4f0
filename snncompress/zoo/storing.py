"""Puts a finished run into the zoo: what is needed to load and measure it, and no path of the machine that made it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from snncompress.errors import RunError
from snncompress.files import write_bytes
from snncompress.run import Run
from snncompress.run_files import header, save_run
from snncompress.zoo.entries import ZooEntry
from snncompress.zoo.recipe import RECIPE, Figures, with_figures


def store(entry: ZooEntry, run: Run, figures: Figures, out: Path) -> Run:
    """Writes a run and its figures into an entry's folder; noise stays only if the error is that of its samples.

    Args:
        entry: where to.
        run: the recipe's result for the first seed.
        figures: what was measured.
        out: the folder that the recipe's runs were made in; names below it become relative.
    """
    command = ["snncompress", "zoo", "run", entry.name, "--seed", str(figures.seeds[0])]
    kept = replace(
        run,
        name=entry.name,
        noise=run.noise if figures.samples is not None else None,
        posterior=None,
        parent=None,
        checkpoint=None if run.checkpoint is None else Path(run.checkpoint).name,
        data={**run.data, "root": None},
        config=_relative(run.config, out.resolve()),
    )
    for place in _absolute([header(kept, "complete", command), kept.plan]):
        raise RunError(f"{run.path} names {place}, a place on this machine, which does not belong into the zoo")
    stored = save_run(kept, entry.folder, command)
    write_figures(entry, figures)
    return stored


def write_figures(entry: ZooEntry, figures: Figures) -> None:
    """Puts figures in place of those that an entry's recipe has."""
    file = entry.folder / RECIPE
    write_bytes(file, with_figures(file.read_text(encoding="utf-8"), figures).encode())


def _relative(value: Any, out: Path) -> Any:
    """The same with paths below ``out`` as seen from there."""
    if isinstance(value, dict):
        return {key: _relative(content, out) for key, content in value.items()}
    if isinstance(value, list):
        return [_relative(content, out) for content in value]
    if isinstance(value, str) and Path(value).is_absolute():
        path = Path(value)
        return str(path.relative_to(out)) if path.is_relative_to(out) else path.name
    return value


def _absolute(value: Any) -> Iterator[str]:
    """All absolute paths in it, those behind ``npz:`` and its like too."""
    if isinstance(value, dict | list):
        for content in value.values() if isinstance(value, dict) else value:
            yield from _absolute(content)
    elif isinstance(value, str) and any(Path(part).is_absolute() for part in (value, value.partition(":")[2])):
        yield value
