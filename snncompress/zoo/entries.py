"""What the zoo holds: a folder an entry, which is a run's folder, too, where its weights are stored.

The zoo stands beside the package in a checkout (``model_zoo/``), and inside it once installed. The environment's
``SNNCOMPRESS_ZOO`` names another one.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from snncompress.errors import UsageError, unknown_name
from snncompress.zoo.recipe import RECIPE, Recipe, read_recipe

ZOO_VARIABLE = "SNNCOMPRESS_ZOO"
FOLDER = "model_zoo"
PREFIX = "zoo:"
CARD = "card.md"


@dataclass(frozen=True)
class ZooEntry:
    """A recipe, its card, and the run that it led to, where that is stored."""

    name: str
    folder: Path

    @cached_property
    def recipe(self) -> Recipe:
        """What ``recipe.toml`` says."""
        return read_recipe(self.folder / RECIPE)

    @property
    def card(self) -> str:
        """What ``card.md`` says; empty if there is none."""
        file = self.folder / CARD
        return file.read_text(encoding="utf-8") if file.is_file() else ""

    @property
    def stored(self) -> bool:
        """Whether its weights are there."""
        return (self.folder / "run.json").is_file()

    def need_weights(self) -> Path:
        """The folder of the stored run, or an error with the command that makes it."""
        if not self.stored:
            result = default_out(self.name) / self.recipe.result
            raise UsageError(
                f"{PREFIX}{self.name} has a recipe but no stored weights; make them with "
                f"`snncompress zoo run {self.name}`, then use {result}"
            )
        return self.folder


def zoo_root() -> Path:
    """The folder of the zoo."""
    if given := os.environ.get(ZOO_VARIABLE):
        return Path(given).expanduser()
    package = Path(__file__).parents[1]
    installed = package / FOLDER
    return installed if installed.is_dir() else package.parent / FOLDER


def list_zoo() -> list[ZooEntry]:
    """All entries, by name."""
    return [ZooEntry(file.parent.name, file.parent) for file in sorted(zoo_root().glob(f"*/{RECIPE}"))]


def find_zoo(name: str) -> ZooEntry:
    """The entry of a name, with or without ``zoo:`` before it; an unknown one lists the known ones."""
    entries = {entry.name: entry for entry in list_zoo()}
    name = name.removeprefix(PREFIX)
    if not entries:
        raise UsageError(f"there is no zoo in {zoo_root()}; set {ZOO_VARIABLE} to a folder of recipes")
    if name not in entries:
        raise unknown_name("zoo entry", name, entries)
    return entries[name]


def is_zoo(source: str | Path) -> bool:
    """Whether a source is ``zoo:NAME``."""
    return str(source).startswith(PREFIX)


def in_zoo(folder: Path) -> bool:
    """Whether a run's folder is an entry, which nobody but ``store`` writes to."""
    return (folder / RECIPE).is_file()


def default_out(name: str, seed: int = 0) -> Path:
    """Where ``zoo run`` puts what it makes."""
    return Path("runs") / f"{name}-seed{seed}"
