"""Losses for labels that may be wrong: the contract of the files in ``corrections/``, and what they are given.

A correction is a module with ``make(value, labels) -> loss``, a ``DEFAULT`` for its one number (written behind its
name, ``bootstrap-hard:0.7``), ``NEEDS_FIRST`` (whether it learns from a network that was trained without it), and
``IS_LIKELIHOOD`` (whether exp(−loss) is a probability of the label, so that a posterior can be sampled with it).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from snncompress import registry
from snncompress.data.task import Task
from snncompress.errors import UsageError
from snncompress.progress import Progress
from snncompress.training.distillation import DistillOptions, Teacher

if TYPE_CHECKING:
    from snncompress.run import Run
    from snncompress.training.feed import AnyBatches

Loss = Callable[[Tensor, Tensor], Tensor]
SAME = ("name", "seed", "label_noise", "limit_train")  # what a first run's labels depend on


@dataclass
class Labels:
    """What a correction may ask about the labels, and what it found out about them.

    Attributes:
        first: a network that was trained on the same labels without the correction.
        batches: the training images as they are.
        device: where they are.
        progress: who listens.
        matrix: the estimate of p(label | true class), where the correction makes one.
    """

    first: Teacher | None
    batches: AnyBatches
    device: torch.device
    progress: Progress
    matrix: list[list[float]] | None = field(default=None, init=False)

    def probabilities(self) -> Tensor:
        """What the first network says of every training image, (N, classes), on the CPU."""
        assert self.first is not None
        self.progress.start("look at labels", len(self.batches))
        found = []
        for inputs, _ in self.batches.epoch(0):
            found.append(self.first.logits(inputs).float().softmax(-1).cpu())
            self.progress.advance()
        self.progress.finish()
        return torch.cat(found)

    def tell(self, matrix: Tensor) -> None:
        """Remembers an estimate of p(label | true class), and says what it comes to."""
        self.matrix = matrix.tolist()
        kept = matrix.diagonal()
        self.progress.message(
            f"labels are estimated to be right with probability {float(kept.mean()):.2f} on average, "
            f"{float(kept.min()):.2f} for class {int(kept.argmin())}"
        )


@dataclass(frozen=True)
class Correction:
    """A loss in place of cross-entropy, and what a run remembers of it."""

    loss: Loss
    record: dict[str, Any]
    matrix: list[list[float]] | None


def correct(
    text: str, first: Run | None, run: Run, batches: AnyBatches, device: torch.device, progress: Progress
) -> Correction:
    """Prepares a correction.

    Args:
        text: its name, with its number behind a colon where that is not the default.
        first: a run that was trained on the same labels without it, for corrections that need one.
        run: what is about to be trained.
        batches: the training images as they are, without augmentation.
        device: where they are.
        progress: who listens.
    """
    if run.task is Task.REGRESSION:
        raise UsageError(f"--correction is for labels that are classes, but {run.name} predicts a number; leave it out")
    name, colon, number = text.partition(":")
    module = registry.load("corrections", name)
    try:
        value = float(number) if colon else module.DEFAULT
    except ValueError:
        raise UsageError(f"--correction '{text}': '{number}' is no number; write {name}:{module.DEFAULT:g}") from None
    if (first is not None) != module.NEEDS_FIRST:
        if first is None:
            raise UsageError(
                f"--correction {name} learns from a run on the same labels: train one without --correction, "
                "and give its folder as --correction-from"
            )
        raise UsageError(f"--correction {name} needs no other run; leave --correction-from out")
    labels = Labels(None if first is None else _asked(first, run, device), batches, device, progress)
    loss = module.make(value, labels)
    where = None if first is None else first.name if first.path is None else str(first.path.resolve())
    return Correction(loss, {"name": name, "value": value, "from": where}, labels.matrix)


def check_combination(text: str, teacher: Run | None, *, posterior: bool, own_loss: bool) -> None:
    """Refuses what makes no sense together with a correction."""
    name = text.partition(":")[0]
    module = registry.load("corrections", name)
    if own_loss:
        raise UsageError("a correction is a loss in place of cross-entropy: give a correction or a loss, not both")
    if posterior and not module.IS_LIKELIHOOD:
        raise UsageError(f"--posterior samples by a likelihood, which the loss of --correction {name} is not")
    if teacher is not None and module.NEEDS_FIRST and _repeats_noise(teacher):
        raise UsageError(
            f"--correction {name} teaches the true classes, but the teacher {teacher.name} was trained on noisy labels "
            f"without it and would teach their noise; give a teacher trained with --correction {name}, or no --distill"
        )


def check_share(name: str, value: float) -> None:
    """Raises unless a trust in labels lies in 0..1."""
    if not 0 <= value <= 1:
        raise UsageError(f"--correction {name}:{value:g} is out of range; give a trust in labels from 0 to 1")


def _repeats_noise(teacher: Run) -> bool:
    """Whether a teacher gives the probabilities of noisy labels, not of true classes."""
    corrected = teacher.config.get("correction") or {}
    unmixed = bool(corrected) and bool(registry.load("corrections", corrected["name"]).NEEDS_FIRST)
    return "label_noise" in teacher.data and not unmixed


def _asked(first: Run, run: Run, device: torch.device) -> Teacher:
    """The first network, if it knows the same images and labels."""
    if first.data and run.data:
        for key in SAME:
            if first.data.get(key) != run.data.get(key):
                raise UsageError(
                    f"--correction-from {first.name}: it was trained with {key.replace('_', ' ')} "
                    f"{first.data.get(key)}, this run has {run.data.get(key)}; they must agree"
                )
    return Teacher(first, run, DistillOptions(), device, option="--correction-from")
