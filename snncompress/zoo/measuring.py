"""Measures a result of the zoo, and compares it with the figures of its recipe.

The error is that on the split which the figures name, the costs are those of ``snncompress report``.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from snncompress.checks import Check, Checked
from snncompress.data.batches import Batches
from snncompress.data.dataset import Dataset
from snncompress.data.holdout import Holdout
from snncompress.data.sources import load_data
from snncompress.data.task import Task
from snncompress.errors import RunError, UsageError
from snncompress.evaluation.accuracy import Evaluation, evaluate
from snncompress.evaluation.sampling import evaluate_samples
from snncompress.measure.cost import measure_cost
from snncompress.progress import Progress
from snncompress.reporting.table import format_bytes, format_flops
from snncompress.run import Run
from snncompress.run_files import load
from snncompress.training.feed import EVALUATION_BATCH, pick_device
from snncompress.zoo.entries import find_zoo
from snncompress.zoo.recipe import Figures, show_errors

TEST = "test"
ROUNDING = 2  # images: other machines round differently, and a class may tip
RMSE_ROUNDING = 1e-3  # of the RMSE


@dataclass(frozen=True)
class Measured:
    """What a run is and does; names are those of ``Figures``, and ``images`` is how many the error was measured on."""

    error: float
    images: int
    weights: int
    weights_percent: float
    flops: int
    flops_percent: float
    memory: int
    memory_percent: float
    ratio: float
    file_bytes: int
    task: Task


@dataclass(frozen=True)
class ZooVerification(Checked):
    """An entry's stored weights, measured and compared."""

    name: str
    measured: Measured

    def to_json(self) -> dict[str, Any]:
        """For scripts."""
        return {"name": self.name, "measured": asdict(self.measured), **self.verdict()}


def verify_zoo(
    name: str,
    *,
    data_root: str | Path | None = None,
    download: bool = False,
    device: str = "auto",
    progress: Progress | None = None,
) -> ZooVerification:
    """Measures the stored weights of an entry on its data and compares them with the recipe's figures.

    Args:
        name: of the entry, with or without ``zoo:``.
        data_root: where data sets are.
        download: whether a missing data set may be fetched.
        device: where to evaluate.
        progress: who listens.

    Raises:
        UsageError: If there is no such entry, or it has no stored weights.
        RunError: If its recipe has no figures, or its run is damaged.
        DataError: If the data are missing.
    """
    entry = find_zoo(name)
    run = load(entry.need_weights())
    figures = entry.recipe.figures
    if figures is None:
        raise RunError(f"the recipe of {entry.name} has no figures to compare with; run python -m benchmarks.store_zoo")
    data = load_own_data(run, data_root, download, device)
    measured = measure(run, data, figures.split, figures.samples, device, progress)
    return ZooVerification(tuple(compare(figures, measured, data)), entry.name, measured)


def load_own_data(run: Run, root: str | Path | None, download: bool = False, device: str = "auto") -> Dataset:
    """The data that a run was trained on, with its own split."""
    known = run.data
    if "name" not in known:
        raise UsageError(f"{run.label} does not say which data it was trained on")
    return load_data(
        known["name"],
        root=root or known.get("root"),
        download=download,
        seed=known.get("seed", 0),
        holdout=known.get("holdout", Holdout.TRAIN),
        device=pick_device(device),
        image_size=known.get("image_size"),
    )


def measure(
    run: Run,
    data: Dataset,
    split: str = TEST,
    samples: int | None = None,
    device: str = "auto",
    progress: Progress | None = None,
) -> Measured:
    """Measures a run that has a folder; it is left as it is.

    Args:
        run: the run.
        data: its data.
        split: ``test`` or ``validation``.
        samples: average so many samples of a stochastic run; None takes the mean network.
        device: where to evaluate.
        progress: who listens.
    """
    batches = Batches(data.part(split), EVALUATION_BATCH, run.normalization, device=pick_device(device))
    result = _evaluate(run, batches, samples, pick_device(device), progress)
    cost, original = measure_cost(run.measured_model(), run.input_shape), run.original
    assert run.path is not None
    return Measured(
        error=result.error,
        images=result.samples,
        weights=cost.weights,
        weights_percent=100 * cost.weights / original["weights"],
        flops=cost.flops,
        flops_percent=100 * cost.flops / original["flops"],
        memory=cost.memory,
        memory_percent=100 * cost.memory / original["memory"],
        ratio=original["weights_only"] / max(cost.weights_only, 1),
        file_bytes=(run.path / "model.safetensors").stat().st_size,
        task=run.task,
    )


def _evaluate(
    run: Run, batches: Batches, samples: int | None, device: torch.device, progress: Progress | None
) -> Evaluation:
    model = copy.deepcopy(run.model).to(device)
    if samples is None:
        return evaluate(model, batches, progress, f"evaluate {run.label}")
    noise = run.attach_noise(model)
    if noise is None:
        raise RunError(f"{run.label} has no noise to sample, but its figures are those of {samples} averaged samples")
    noise.to(device)
    return evaluate_samples(model, noise, batches, samples, progress=progress).averaged


def state(
    seeds: Sequence[int],
    results: Sequence[Measured],
    split: str,
    samples: int | None,
    original: Sequence[Measured] = (),
    scratch: Sequence[Measured] = (),
) -> Figures:
    """The figures of a recipe from what its runs, one a seed, were measured to be; the first is the one to store."""
    first = results[0]
    return Figures(
        split=split,
        seeds=tuple(seeds),
        errors=tuple(round(result.error, 4) for result in results),
        weights=first.weights,
        weights_percent=round(first.weights_percent, 4),
        flops=first.flops,
        flops_percent=round(first.flops_percent, 4),
        memory=first.memory,
        memory_percent=round(first.memory_percent, 4),
        ratio=round(first.ratio, 2),
        file_bytes=first.file_bytes,
        samples=samples,
        original_errors=tuple(round(result.error, 4) for result in original),
        scratch_errors=tuple(round(result.error, 4) for result in scratch),
        task=str(first.task),
    )


def compare(figures: Figures, measured: Measured, data: Dataset, *, stored: bool = True) -> list[Check]:
    """The figures one by one.

    Args:
        figures: what the recipe says.
        measured: what was found.
        data: what it was measured on.
        stored: whether it was the stored run, which must have these figures; another run (other seeds, other
            machines) is only put beside them.
    """
    task = measured.task
    rounding = 100 * ROUNDING / measured.images if task is Task.CLASSIFICATION else RMSE_ROUNDING * figures.error
    within = abs(measured.error - figures.error) <= figures.spread + rounding
    by = "" if figures.samples is None else f" by {figures.samples} averaged samples"
    checks = [
        Check(
            task.measure,
            within if stored else None,
            f"{task.show(measured.error)}{by} on {measured.images:,} {figures.split} {data.noun} of {data.name}; "
            f"stated: {show_errors(figures.task, figures.errors)}, seeds: {len(figures.seeds)}",
            {"measured": measured.error, "stated": figures.error, "spread": figures.spread, "within": within},
        )
    ]
    shown = {"weights": "{:,}".format, "flops": format_flops, "memory": "{:,}".format, "file_bytes": format_bytes}
    words = {"flops": "FLOPs", "file_bytes": "file"}
    for name, show in shown.items():
        have, want = getattr(measured, name), getattr(figures, name)
        percent = getattr(measured, f"{name}_percent", None)
        share = "" if percent is None else f" ({percent:.2f}% of the original)"
        detail = f"{show(have)}{share}; stated: {show(want)}"
        values = {"measured": have, "stated": want}
        checks.append(Check(words.get(name, name), have == want if stored else None, detail, values))
    return checks
