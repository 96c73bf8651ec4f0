"""How calibrated a run is, before and after a temperature that is fitted on validation data.

The rows of Table 4 of Yu et al. (AAAI 2021), for the mean network and for averaged samples alike: as it is, scaled by a
temperature (*Temp.*; on averaged dropout samples *Temp. Drop*), and by a temperature a sample (*SW Temp.*, Eq. 8). And
its Figure 4: the calibration error (Eq. 10) against the number of samples that are averaged.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor

from snncompress.data.task import Task
from snncompress.errors import UsageError
from snncompress.evaluation.predictions import Predictions, find_sigma_layer, predict
from snncompress.evaluation.reliability import Score, measure_score
from snncompress.evaluation.temperature import fit_temperature, scaled
from snncompress.progress import Progress
from snncompress.run import Run

ROUND_COUNTS = (1, 2, 3, 5, 7, 10, 20, 30, 50, 70, 100, 200, 500, 1000)  # samples at which the curve is measured

Batches = Iterable[tuple[Tensor, Tensor]]


class Prediction(StrEnum):
    """How a stochastic network answers."""

    MEAN = "mean"
    AVERAGED = "averaged"


class Scaling(StrEnum):
    """What the logits are divided by."""

    NONE = "none"
    TEMPERATURE = "temperature"  # T
    SAMPLE_WISE = "sample-wise"  # T·Σσ of the image


@dataclass(frozen=True)
class Row:
    """A way to predict and how good its probabilities are.

    Attributes:
        prediction: by the mean network or by samples.
        scaling: what the logits are divided by.
        temperature: T; None where nothing is.
        validation_nll: of the images that T was fitted to.
        score: on the images that are reported.
    """

    prediction: Prediction
    scaling: Scaling
    temperature: float | None
    validation_nll: float
    score: Score

    def to_json(self) -> dict[str, Any]:
        """Plain data, flat but for the bins."""
        record = asdict(self)
        return {**record, **record.pop("score")}


@dataclass(frozen=True)
class Calibration:
    """What ``calibrate`` found.

    Attributes:
        split: what the rows are measured on; temperatures are fitted on validation images always.
        images: how many those are.
        draws: samples that were averaged; 0 if none.
        sigma_layer: whose σ are summed for the sample-wise temperature.
        rows: all ways to predict.
        curve: draws, and for each scaling the ECE at those, its temperature fitted anew.
        chosen: the scaling of the mean network that exports take; None for a run whose mean carries nothing.
    """

    split: str
    images: int
    draws: int
    sigma_layer: str | None
    rows: tuple[Row, ...]
    curve: dict[str, list[float]]
    chosen: Scaling | None

    def row(self, prediction: Prediction, scaling: Scaling) -> Row | None:
        """A row, if it was measured."""
        return next((row for row in self.rows if (row.prediction, row.scaling) == (prediction, scaling)), None)

    def to_json(self) -> dict[str, Any]:
        """Plain data, as a run stores it."""
        return {**asdict(self), "rows": [row.to_json() for row in self.rows]}


def calibrate(
    run: Run,
    validation: Batches,
    report: Batches | None = None,
    *,
    split: str = "test",
    draws: int = 0,
    use: Scaling | None = None,
    seed: int = 0,
    device: torch.device | None = None,
    progress: Progress | None = None,
) -> Calibration:
    """Fits temperatures on validation images and measures calibration before and after.

    Args:
        run: a classifier; it is left as it is.
        validation: what temperatures are fitted on, on the device.
        report: what everything is measured on; the validation images themselves when absent.
        split: the name of the latter.
        draws: samples to average for each image; 0 for the mean network alone.
        use: the scaling that exports take; the one with the lower NLL on the validation images when absent.
        seed: of the noise.
        device: where the batches are.
        progress: who listens.

    Raises:
        UsageError: If the run predicts numbers, has no noise to draw samples of, or has no such scaling.
    """
    _check(run, draws)
    device = device or torch.device("cpu")
    model = copy.deepcopy(run.model).to(device)
    noise = run.attach_noise(model)
    if noise is not None:
        noise.to(device)
    counts = [count for count in ROUND_COUNTS if count < draws] + ([draws] if draws else [])
    drawn: dict[str, Any] = {"counts": counts, "seed": seed, "progress": progress}
    fitted = predict(model, noise, validation, task="validation images", **drawn)
    shown = fitted if report is None else predict(model, noise, report, task=f"{split} images", **drawn)
    ways = ([] if run.hollow else [Prediction.MEAN]) + ([Prediction.AVERAGED] if draws else [])
    scalings = [scaling for scaling in Scaling if scaling is not Scaling.SAMPLE_WISE or fitted.spread is not None]
    rows = [_row(fitted, shown, way, scaling, draws) for way in ways for scaling in scalings]
    curve: dict[str, list[float]] = {"draws": [float(count) for count in counts]} if counts else {}
    for scaling in scalings if counts else ():
        found = [_row(fitted, shown, Prediction.AVERAGED, scaling, count) for count in counts]
        curve[str(scaling)] = [row.score.ece for row in found]
    return Calibration(
        split=split, images=len(shown.labels), draws=draws, sigma_layer=find_sigma_layer(noise), rows=tuple(rows),
        curve=curve, chosen=_choose(rows, use, run.name),
    )  # fmt: skip


def _check(run: Run, draws: int) -> None:
    if run.task is Task.REGRESSION:
        raise UsageError(f"{run.name} predicts a number: it has no probabilities of classes to calibrate")
    if draws < 0:
        raise UsageError(f"--samples {draws} is out of range; give 0 or more")
    if draws and run.noise is None:
        raise UsageError(f"{run.name} was not trained with noise: there is nothing to sample; leave --samples out")
    if run.hollow and not draws:
        raise UsageError(
            f"the mean of layer {run.hollow[0]} of {run.name} carries nothing, so only averaged samples can be "
            "calibrated; give --samples 20"
        )


def _row(fitted: Predictions, shown: Predictions, prediction: Prediction, scaling: Scaling, draws: int) -> Row:
    """Fits on the one part and measures on the other."""
    parts = []
    for part in (fitted, shown):
        logits = part.logits if prediction is Prediction.MEAN else part.averaged[draws]
        parts.append((logits, part.spread if scaling is Scaling.SAMPLE_WISE else None))
    temperature = None if scaling is Scaling.NONE else fit_temperature(parts[0][0], fitted.labels, parts[0][1])
    divided = [scaled(logits, temperature or 1.0, spread) for logits, spread in parts]
    nll = measure_score(divided[0], fitted.labels).nll
    return Row(prediction, scaling, temperature, nll, measure_score(divided[1], shown.labels))


def _choose(rows: list[Row], use: Scaling | None, name: str) -> Scaling | None:
    """What exports take of what was fitted for the mean network."""
    mean = {row.scaling: row for row in rows if row.prediction is Prediction.MEAN and row.temperature is not None}
    if use is not None and use not in mean:
        needs = "needs noise that predicts σ: train with --method se-snn" if mean else "needs a mean network"
        raise UsageError(f"--use {use}: {name} has no such temperature; it {needs}")
    if use is not None or not mean:
        return use
    return min(mean, key=lambda scaling: mean[scaling].validation_nll)
