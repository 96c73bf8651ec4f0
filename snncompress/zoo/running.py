"""How far a recipe has been followed: a file in its output folder, and the runs that its steps have left there."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from snncompress.errors import UsageError
from snncompress.files import make_folder, read_json, write_json
from snncompress.run_files import read_header
from snncompress.zoo.recipe import Recipe

STATE = "zoo.json"


class Followed:
    """Which steps of a recipe are done in an output folder, so that an interrupted one goes on.

    Args:
        out: the folder.
        name: of the zoo's entry.
        recipe: what is followed.
        seed: of all steps.
        files: what the recipe was given.
    """

    def __init__(self, out: Path, name: str, recipe: Recipe, seed: int, files: Mapping[str, str]) -> None:
        self.out = out
        self.recipe = recipe
        commands = [list(step.words) for step in recipe.steps]
        self.plan: dict[str, Any] = {"name": name, "seed": seed, "files": dict(files), "steps": commands}
        self.done = 0

    def begin(self, resume: bool) -> None:
        """Takes the folder; one that holds something goes only with ``resume``, and if it was begun alike.

        Steps that were not begun may have changed since.
        """
        state = self.out / STATE
        if state.is_file() and resume:
            there = read_json(state)
            self.done = int(there["done"])
            for key, value in self.plan.items():
                if key != "steps" and there.get(key) != value:
                    raise UsageError(f"--resume: {self.out} was begun with another {key}; choose another --out")
            pairs = zip(there["steps"], self.plan["steps"], strict=False)
            for number, (began, asked) in enumerate(islice(pairs, self.done + 1), 1):  # with the one under way
                if began != asked:
                    raise UsageError(f"--resume: step {number} was another when {self.out} began; choose another --out")
            return
        if self.out.exists() and (not self.out.is_dir() or any(self.out.iterdir())):
            ways = "add --resume to go on, or choose" if state.is_file() else "choose"
            raise UsageError(f"{self.out} exists; {ways} another --out")
        make_folder(self.out)
        self._write()

    def words(self, number: int, values: Mapping[str, str]) -> list[str] | None:
        """The command of a step, with ``--resume`` where it was interrupted; None if it is done."""
        if number < self.done:
            return None
        words = self.recipe.steps[number].fill(values)
        folder = Path(words[words.index("--out") + 1]) if "--out" in words else None
        if folder is None or not (folder / "run.json").is_file():
            return words
        complete = read_header(folder)["status"] == "complete"  # killed before it was noted here
        return None if complete else [*words, "--resume"]

    def end(self, number: int) -> None:
        """A step is done."""
        if number >= self.done:
            self.done = number + 1
            self._write()

    def _write(self) -> None:
        write_json(self.out / STATE, {**self.plan, "done": self.done})
