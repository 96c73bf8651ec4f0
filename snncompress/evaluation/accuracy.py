"""How often a model is wrong, or how far off, and how surprised it is by the truth."""

from __future__ import annotations

from collections.abc import Iterable, Sized
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from snncompress.data.task import Task
from snncompress.errors import DataError, ModelError
from snncompress.evaluation.likelihood import faults, log_likelihood, one_output_needed
from snncompress.models.layout import Arranger
from snncompress.models.modes import evaluating
from snncompress.progress import Progress


@dataclass(frozen=True)
class Evaluation:
    """A model's score on labelled images.

    Attributes:
        error: Images whose largest logit is not the label's, in percent; where targets are numbers, the root of the
            mean squared error, in their units.
        nll: Mean of −log p(label), in nats; of a number, under a Gaussian of unit variance (``likelihood.py``).
        samples: How many images there were.
    """

    error: float
    nll: float
    samples: int


def evaluate(
    model: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    progress: Progress | None = None,
    task: str = "evaluate",
) -> Evaluation:
    """Evaluates a model, in evaluation mode (its modes are restored) and without gradients.

    Args:
        model: Maps images to logits (batch, classes), or to numbers (batch, 1).
        batches: Pairs of images and labels, on the model's device; a float a sample is a number to predict.
        progress: Who listens, one step a batch.
        task: What the listener calls this work.

    Raises:
        ModelError: If the outputs are no (batch, classes) matrix, not finite, or not as many as the targets ask for.
        DataError: If there are no images, or a label that the model has no class for.
    """
    progress = progress or Progress()
    fault, surprise, samples, learned = 0.0, 0.0, 0, Task.CLASSIFICATION
    arrange = Arranger()
    with evaluating(model):
        progress.start(task, len(batches) if isinstance(batches, Sized) else 0)
        for images, labels in batches:
            logits = model(arrange(model, images))
            check_outputs(logits, labels)
            learned = Task.of(labels)
            # Summed in double precision on the CPU: not every device has it.
            fault += float(faults(logits, labels).cpu().double().sum())
            surprise -= float(log_likelihood(logits, labels).cpu().double().sum())
            samples += len(labels)
            if samples:
                progress.advance(1, **{learned.measure: learned.error(fault / samples)})
        progress.finish()
    if samples == 0:
        raise DataError("there are no images to evaluate on; check the data set and its split")
    return Evaluation(error=learned.error(fault / samples), nll=surprise / samples, samples=samples)


def check_outputs(logits: Tensor, labels: Tensor) -> None:
    """Raises if these are no finite outputs, one row an image, with a class for every label or one for a number."""
    if not isinstance(logits, Tensor) or logits.dim() != 2 or len(logits) != len(labels):
        got = f"shape {tuple(logits.shape)}" if isinstance(logits, Tensor) else f"a {type(logits).__name__}"
        raise ModelError(
            f"the model's output for {len(labels)} images is {got}, not ({len(labels)}, classes); "
            "its forward must return one row of logits an image"
        )
    if not bool(torch.isfinite(logits).all()):
        raise ModelError(
            "the model's outputs are NaN or infinite; check its weights, and that the images are normalized "
            "as it was trained"
        )
    if Task.of(labels) is Task.REGRESSION:
        if logits.shape[1] != 1:
            raise one_output_needed(logits, labels)
        return
    if labels.dim() != 1 or labels.is_floating_point():
        raise DataError(
            f"the targets are {labels.dtype} of shape {tuple(labels.shape)}; evaluation knows class numbers and single "
            "floats: leave validation data out, or evaluate with code of your own"
        )
    if len(labels) and (int(labels.min()) < 0 or int(labels.max()) >= logits.shape[1]):
        lowest, highest = int(labels.min()), int(labels.max())
        raise DataError(
            f"the labels run from {lowest} to {highest}, but the model has {logits.shape[1]} classes and the "
            f"data at least {highest + 1}; use data of the model's own classes, numbered from 0, or build "
            "the model for these"
        )
