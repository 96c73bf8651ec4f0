"""A recipe of the zoo, ``recipe.toml``: the commands from an empty folder to a result, and the figures of the result.

::

    summary = "LeNet-5-Caffe on MNIST at the SE-SNN paper's 0.061M FLOPs"
    model = "lenet5"
    data = "mnist"
    licence = "CC BY-SA 3.0"        # of the data
    result = "small"                # the run, below the output folder, that is the result
    original = "plain"              # the one that it was made smaller from, to be measured beside it, if any
    scratch = "scratch"             # the one of the same shape with new weights, trained as long, if there is one
    tables = ["lenet5-neurons"]     # of benchmarks/tables.py

    [[steps]]
    about = "the model that is too big"
    command = "train lenet5 --data mnist --data-root {data_root} --seed {seed} --out {out}/plain"

    [files]                         # what else it needs: {checkpoint} in a command is --file checkpoint=PATH
    checkpoint = "resnet20-12fca82f.th from https://..."

    [figures]                       # written by python -m benchmarks.store_zoo
    errors = [0.93]
    ...

Nothing here needs torch, so that ``zoo list`` answers at once.
"""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from snncompress.data.task import Task
from snncompress.errors import RunError, UsageError, unknown_name

RECIPE = "recipe.toml"
PLACEHOLDER = re.compile(r"\{(\w+)\}")
ALWAYS = ("out", "data_root", "seed")  # placeholders that every recipe may use
TEXTS = ("summary", "model", "data", "licence", "result")
FIGURES = re.compile(r"^\[figures\].*\n([^\[\n].*\n|\n)*", re.MULTILINE)  # up to the next table, or the end


def mean_and_spread(errors: Sequence[float]) -> tuple[float, float]:
    """The mean over the seeds, and how far the seed that is farthest from it is from it."""
    mean = sum(errors) / len(errors)
    return mean, max(abs(error - mean) for error in errors)


def show_errors(task: str, errors: Sequence[float]) -> str:
    """``0.93 ± 0.05%`` over several seeds; one seed has no spread."""
    mean, spread = mean_and_spread(errors)
    words = Task(task)
    return words.show(mean) if len(errors) == 1 else f"{words.number(mean)} ± {words.show(spread)}"


@dataclass(frozen=True)
class Figures:
    """What a recipe's result was measured to be; ``verify`` measures it again.

    Attributes:
        split: the images that the error is the error of.
        seeds: of the runs.
        errors: of the run of each seed, in the task's unit.
        weights: non-zero weights of the first seed's run, as are all numbers below.
        weights_percent: the same, of the original model's.
        flops: multiplications for one image.
        flops_percent: the same, of the original's.
        memory: floats of hidden feature maps.
        memory_percent: the same, of the original's.
        ratio: weights of the original over non-zero weights, biases apart.
        file_bytes: size of the file that holds the model.
        samples: the error is that of so many averaged samples; of the mean network where absent.
        original_errors: of the run of each seed before it was made smaller.
        scratch_errors: of the run of each seed that has the same shape, trained as long from new weights.
        task: what the error is the error of.
    """

    split: str
    seeds: tuple[int, ...]
    errors: tuple[float, ...]
    weights: int
    weights_percent: float
    flops: int
    flops_percent: float
    memory: int
    memory_percent: float
    ratio: float
    file_bytes: int
    samples: int | None = None
    original_errors: tuple[float, ...] = ()
    scratch_errors: tuple[float, ...] = ()
    task: str = "classification"

    @property
    def error(self) -> float:
        """Mean of ``errors``."""
        return mean_and_spread(self.errors)[0]

    @property
    def spread(self) -> float:
        """How far the seed that is farthest from the mean is from it."""
        return mean_and_spread(self.errors)[1]

    @property
    def original(self) -> tuple[float, float] | None:
        """Mean and spread of ``original_errors``."""
        return mean_and_spread(self.original_errors) if self.original_errors else None

    @property
    def scratch(self) -> tuple[float, float] | None:
        """Mean and spread of ``scratch_errors``."""
        return mean_and_spread(self.scratch_errors) if self.scratch_errors else None

    def joined(self, more: Figures) -> Figures:
        """These with the errors of further seeds; costs stay those of the run that is stored."""
        for seed in set(self.seeds) & set(more.seeds):
            raise UsageError(f"seed {seed} stands in the figures already; give others")
        for key in ("split", "samples", "task"):
            if getattr(self, key) != getattr(more, key):
                raise UsageError(f"the figures have {key} {getattr(self, key)}, those to add {getattr(more, key)}")
        lists = ("seeds", "errors", "original_errors", "scratch_errors")
        return dataclasses.replace(self, **{key: getattr(self, key) + getattr(more, key) for key in lists})

    def to_toml(self) -> str:
        """The lines below ``[figures]``."""
        values = dataclasses.asdict(self)
        return "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items() if value not in (None, ()))


@dataclass(frozen=True)
class Step:
    """One command of a recipe: what it is for, and its words, with placeholders."""

    about: str
    words: tuple[str, ...]

    def fill(self, values: Mapping[str, str]) -> list[str]:
        """The words with the placeholders filled."""
        return [PLACEHOLDER.sub(lambda match: values[match[1]], word) for word in self.words]

    @property
    def makes(self) -> str | None:
        """The name of the run that the command makes, if it makes one."""
        return Path(self.words[self.words.index("--out") + 1]).name if "--out" in self.words else None

    @property
    def placeholders(self) -> set[str]:
        """The names in braces."""
        return {name for word in self.words for name in PLACEHOLDER.findall(word)}


@dataclass(frozen=True)
class Recipe:
    """What ``recipe.toml`` says; see the file's docstring."""

    summary: str
    model: str
    data: str
    licence: str
    result: str
    steps: tuple[Step, ...]
    original: str | None = None
    scratch: str | None = None
    tables: tuple[str, ...] = ()
    files: dict[str, str] = field(default_factory=dict)
    figures: Figures | None = None

    def until(self, run: str) -> tuple[Step, ...]:
        """The steps up to the one that makes a run."""
        names = [step.makes for step in self.steps]
        if run not in names:
            raise unknown_name("run of the recipe", run, [name for name in names if name is not None])
        return self.steps[: names.index(run) + 1]

    def values(self, name: str, out: Path, data_root: Path, seed: int, files: Mapping[str, str]) -> dict[str, str]:
        """What the placeholders stand for; a file that the recipe needs and nobody gave is refused."""
        for unknown in files.keys() - self.files.keys():
            raise UsageError(f"--file {unknown}=...: {name} needs no such file (it takes: {_listed(self.files)})")
        for missing in self.files.keys() - files.keys():
            raise UsageError(f"{name} needs a file: --file {missing}=PATH ({self.files[missing]})")
        return {**files, "out": str(out), "data_root": str(data_root), "seed": str(seed)}


def _listed(names: Mapping[str, str]) -> str:
    return ", ".join(names) or "none"


def read_recipe(path: Path) -> Recipe:
    """Reads and checks a recipe.

    Raises:
        RunError: If it is missing or makes no sense; says what is wrong with it.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, OSError, UnicodeDecodeError) as error:
        raise RunError(f"cannot read the recipe {path}: {error}") from None
    try:
        return _parse(content)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        what = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        raise RunError(f"{path} is not a recipe: {what}; see model_zoo/README.md for its form") from None


def _parse(content: dict[str, Any]) -> Recipe:
    known = {field.name for field in dataclasses.fields(Recipe)}
    if unknown := content.keys() - known:
        raise ValueError(f"there is no '{min(unknown)}' in a recipe")
    files = {str(name): str(text) for name, text in content.get("files", {}).items()}
    steps = tuple(Step(str(step["about"]), tuple(shlex.split(step["command"]))) for step in content["steps"])
    if not steps:
        raise ValueError("it has no steps")
    for name in sorted(set().union(*(step.placeholders for step in steps)) - {*ALWAYS, *files}):
        raise ValueError(f"{{{name}}} stands for nothing (known: {', '.join([*ALWAYS, *files])})")
    figures = content.get("figures")
    return Recipe(
        **{key: str(content[key]) for key in TEXTS},
        steps=steps,
        original=content.get("original"),
        scratch=content.get("scratch"),
        tables=tuple(content.get("tables", ())),
        files=files,
        figures=None if figures is None else _figures(figures),
    )


def _figures(values: dict[str, Any]) -> Figures:
    lists = {key: tuple(values[key]) for key in ("seeds", "errors")}
    lists |= {key: tuple(values.get(key, ())) for key in ("original_errors", "scratch_errors")}
    return Figures(**{**values, **lists})


def with_figures(text: str, figures: Figures) -> str:
    """A recipe's text with new figures in place of old ones, at its end."""
    head = FIGURES.sub("", f"{text.rstrip()}\n").rstrip()
    return f"{head}\n\n[figures]  # written by python -m benchmarks.store_zoo\n{figures.to_toml()}"
