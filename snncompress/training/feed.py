"""What training is fed with: shuffled batches, the same images in evaluation form, and validation batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from snncompress.data.batches import Batches, IterableBatches
from snncompress.data.dataset import Dataset, Normalization
from snncompress.data.task import Task
from snncompress.errors import UsageError
from snncompress.training.options import TrainOptions

EVALUATION_BATCH = 250  # on a CPU twice as fast as 1,000, whose feature maps fit no cache
AnyBatches = Batches | IterableBatches
UserBatches = Iterable[tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Feed:
    """The streams of batches.

    Attributes:
        train: what is learned from.
        plain: the training data without augmentation.
        norms: one augmented view of each, for the statistics of batch norms: a network that has learned from images
            with black borders expects them, and errs more without.
        validation: if there is such data.
    """

    train: AnyBatches
    plain: AnyBatches
    norms: AnyBatches
    validation: AnyBatches | None


def make_feed(
    data: Dataset | UserBatches,
    validation: UserBatches | None,
    options: TrainOptions,
    normalization: Normalization,
    device: torch.device,
) -> Feed:
    """Batches of a data set, or the user's own iterables of (inputs, targets)."""
    if not isinstance(data, Dataset):
        if options.views:
            raise UsageError("views are made of a data set's images, not of your own batches; leave --views out")
        own = IterableBatches(data, device=device)
        return Feed(own, own, own, None if validation is None else IterableBatches(validation, device=device))
    train = Batches(
        data.train,
        options.batch_size,
        normalization,
        device=device,
        augment=options.augment,
        shuffle=True,
        seed=options.seed,
        views=options.views,
    )
    # Shuffled once and for all: often only its first batches are taken, and a folder is sorted by class.
    ordered = partial(
        Batches, data.train, EVALUATION_BATCH, normalization, device=device, shuffle=True, seed=options.seed
    )
    plain = ordered()
    norms = plain if options.augment == "none" else ordered(augment=options.augment, views=1)
    held_out = None
    if data.validation is not None:
        held_out = Batches(data.validation, EVALUATION_BATCH, normalization, device=device)
    return Feed(train, plain, norms, held_out)


def task_of(data: Dataset | UserBatches) -> Task:
    """What is to be learned; the user's own batches are asked for the first of them."""
    if isinstance(data, Dataset):
        return data.task
    with torch.random.fork_rng(devices=()):  # a loader that shuffles draws
        _, targets = next(iter(IterableBatches(data, device=torch.device("cpu"))))
    return Task.of(targets)


def count_examples(batches: AnyBatches) -> int:
    """The number of examples an epoch; an estimate where only the batches can be counted."""
    if batches.samples is not None:
        return batches.samples
    return len(batches) * len(next(iter(batches))[0])


class Cursor:
    """Takes training batches by the number of the step, across epochs and from anywhere."""

    def __init__(self, batches: AnyBatches) -> None:
        self.batches = batches
        self._next = -1
        self._iterator: Iterator[tuple[Tensor, Tensor]] = iter(())

    def take(self, step: int) -> tuple[Tensor, Tensor]:
        """The batch of a step; cheap when steps come in order."""
        epoch, index = divmod(step, len(self.batches))
        if step != self._next or index == 0:
            self._iterator = self.batches.epoch(epoch, skip=index)
        self._next = step + 1
        return next(self._iterator)


def pick_device(name: str) -> torch.device:
    """``auto`` is CUDA if there is one, then Apple's, then the CPU; what is not there is refused."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError):
        raise UsageError(f"--device {name} is not available here; use --device cpu or --device auto") from None
    return device
