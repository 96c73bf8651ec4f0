"""Whether a run notices images that are of another kind than those it was trained for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from snncompress.data.task import Task
from snncompress.errors import UsageError
from snncompress.evaluation.auroc import auroc
from snncompress.evaluation.uncertainty import Score, score_samples
from snncompress.progress import Progress
from snncompress.run import Run

SCORES = (Score.ENTROPY, Score.INFORMATION, Score.SIGMA)


@dataclass(frozen=True)
class Detection:
    """One score on two sets of images.

    Attributes:
        score: which.
        inside: its mean over images of the run's own kind.
        outside: its mean over the others.
        auroc: the chance that one of the others has the larger score.
    """

    score: Score
    inside: float
    outside: float
    auroc: float


@dataclass(frozen=True)
class Outliers:
    """What a run's scores say of its own images and of others."""

    detections: tuple[Detection, ...]
    inside_samples: int
    outside_samples: int
    draws: int

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def detect_outliers(
    run: Run,
    inside: Iterable[tuple[Tensor, Tensor]],
    outside: Iterable[tuple[Tensor, Tensor]],
    *,
    draws: int = 0,
    seed: int = 0,
    device: torch.device | None = None,
    progress: Progress | None = None,
) -> Outliers:
    """Scores two sets of images by entropy, mutual information (with draws) and σ (SE-SNN), and tells them apart.

    Args:
        run: a classifier; it is left as it is.
        inside: batches of its own kind.
        outside: batches of another kind, of the same shape and normalization; their labels are not looked at.
        draws: samples of the noise for each image; 0 predicts by the mean network.
        seed: of the noise.
        device: where the batches are.
        progress: who listens.
    """
    if run.task is Task.REGRESSION:
        raise UsageError(f"--ood compares probabilities of classes, but {run.name} predicts a number; leave it out")
    ours, theirs = (
        score_samples(
            run, batches, draws=draws, labelled=False, seed=seed, device=device, progress=progress, task=task
        ).scores
        for batches, task in ((inside, "own images"), (outside, "other images"))
    )
    found = tuple(
        Detection(score, float(ours[score].mean()), float(theirs[score].mean()), auroc(ours[score], theirs[score]))
        for score in SCORES
        if score in ours
    )
    return Outliers(found, len(ours[Score.ENTROPY]), len(theirs[Score.ENTROPY]), draws)
