"""Training samples whose labels one should look at again."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch

from snncompress.data.batches import Batches
from snncompress.data.dataset import Dataset
from snncompress.data.task import Task
from snncompress.errors import UsageError
from snncompress.evaluation.auroc import auroc
from snncompress.evaluation.uncertainty import Score, score_samples
from snncompress.progress import Progress
from snncompress.run import Run

BATCH = 250
HOLLOW_DRAWS = 10  # for a run whose mean says nothing


@dataclass(frozen=True)
class Suspect:
    """One sample.

    Attributes:
        index: its number in the training part that the run was given.
        name: what a person finds it by: its file, or its number in the source.
        score: how odd it is.
        given: its label's number.
        predicted: the class that the run holds most likely.
        truth: its true class, where the label may have been changed on purpose.
    """

    index: int
    name: str
    score: float
    given: int
    predicted: int
    truth: int | None


@dataclass(frozen=True)
class Suspects:
    """The oddest training samples, the oddest first.

    Attributes:
        score: what they are ranked by.
        found: the samples.
        samples: how many there were to choose from.
        flipped: the share of wrong labels among those found, in percent, where it is known.
        flipped_overall: the same among all: what guessing finds.
        auroc: how well the score tells wrong labels from right ones.
    """

    score: Score
    found: tuple[Suspect, ...]
    samples: int
    flipped: float | None = None
    flipped_overall: float | None = None
    auroc: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        content = asdict(self)
        return {"score": content.pop("score"), "suspects": content.pop("found"), **content}


def find_suspects(
    run: Run,
    data: Dataset,
    count: int,
    *,
    by: Score = Score.LOSS,
    draws: int = 0,
    seed: int = 0,
    device: torch.device | None = None,
    progress: Progress | None = None,
) -> Suspects:
    """Ranks the training samples by how odd a run finds them.

    Args:
        run: a classifier, best one that was trained on these data.
        data: labels as the run has seen them.
        count: how many to list.
        by: the score. σ is of the image alone, so that it finds odd images; the loss of the label finds wrong labels.
        draws: samples of the noise for a prediction; 0 predicts by the mean.
        seed: of the noise.
        device: where to compute.
        progress: who listens.
    """
    if data.task is Task.REGRESSION:
        raise UsageError(f"--suspects looks for wrong classes, but {run.name} predicts a number; leave it out")
    if not 1 <= count <= len(data.train):
        raise UsageError(f"--suspects {count} is out of range; {data.name} has {len(data.train):,} training samples")
    device = device or torch.device("cpu")
    batches = Batches(data.train, BATCH, run.normalization, device=device)
    draws = draws or (HOLLOW_DRAWS if run.hollow else 0)
    if by is Score.INFORMATION and not draws:
        raise UsageError("the mutual information takes several samples; give --samples 20")
    scored = score_samples(run, batches, draws=draws, seed=seed, device=device, progress=progress, task="suspects")
    if by not in scored.scores:
        raise UsageError(
            f"{run.name} has no σ to rank by: its noise does not depend on the sample (that of se-snn does); rank by "
            f"{Score.LOSS} or {Score.ENTROPY}"
        )
    scores = scored.scores[by]
    order = scores.argsort(descending=True, stable=True)[:count].tolist()
    truth = None if data.truth is None else data.truth.cpu()
    found = tuple(
        Suspect(
            i, str(data.train.names[i]), float(scores[i]), int(scored.labels[i]), int(scored.predicted[i]),
            None if truth is None else int(truth[i]),
        )
        for i in order
    )  # fmt: skip
    if truth is None:
        return Suspects(by, found, len(scores))
    wrong = scored.labels != truth
    return Suspects(
        by, found, len(scores), 100 * float(wrong[order].float().mean()), 100 * float(wrong.float().mean()),
        auroc(scores[~wrong], scores[wrong]) if 0 < int(wrong.sum()) < len(wrong) else None,
    )  # fmt: skip
