"""The batches of an epoch: shuffled by seed, augmented and normalized on the training device.

With a number of views, an epoch holds the very batches of the one so many epochs ago, in another order: what was
computed of a batch, as by a teacher, need not be computed again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from snncompress.data.augment import AUGMENTATIONS
from snncompress.data.dataset import Images, Normalization, has_pixels, to_float
from snncompress.data.streaming import StreamedImages
from snncompress.errors import UsageError, unknown_name

# Keeps the orders of neighbouring seeds and epochs apart: a prime larger than any number of epochs.
SEED_STRIDE = 1_000_003


class Batches:
    """Batches of (inputs, labels) from a data set's images, the same for a seed and an epoch.

    Args:
        images: Where they come from.
        batch_size: Images a batch; the last of an epoch may have fewer.
        normalization: Applied to float images 0..1, or to features, after the augmentation.
        device: Where batches are made.
        augment: A name in ``AUGMENTATIONS``.
        shuffle: Whether every epoch has an order of its own; else images come as they are.
        seed: Decides the orders.
        views: Augmented views of each image that are made, one an epoch, and then made again; None: always new ones.
    """

    def __init__(
        self,
        images: Images,
        batch_size: int,
        normalization: Normalization,
        *,
        device: torch.device,
        augment: str = "none",
        shuffle: bool = False,
        seed: int = 0,
        views: int | None = None,
    ) -> None:
        if batch_size < 1:
            raise UsageError(f"--batch-size is {batch_size}; it must be at least 1")
        if augment not in AUGMENTATIONS:
            raise unknown_name("augmentation", augment, AUGMENTATIONS)
        if augment != "none" and not has_pixels(images.shape):
            raise UsageError(f"--augment {augment} moves pixels, but these are features; leave it out")
        if len(normalization.mean) not in (1, images.shape[0]):
            raise UsageError(
                f"the normalization is for {len(normalization.mean)} channels, but the images have "
                f"{images.shape[0]}; choose another with --normalize"
            )
        self.images = images
        self.batch_size = batch_size
        self.normalization = normalization
        self.device = device
        self.augment = AUGMENTATIONS[augment]
        self.shuffle = shuffle
        self.seed = seed
        self.views = views

    @property
    def samples(self) -> int:
        """The number of images."""
        return len(self.images)

    def __len__(self) -> int:
        full, rest = divmod(self.samples, self.batch_size)
        # Batch norm cannot train on a single sample; with an order of its own each epoch leaves out another.
        if rest == 1 and full > 0 and self.shuffle:
            return full
        return full + (rest > 0)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return self.epoch(0)

    def epoch(self, epoch: int, skip: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of an epoch from number ``skip`` on; those before it cost nothing and draw nothing."""
        view = epoch if self.views is None else epoch % self.views
        chunks = self._order(self.samples, view).split(self.batch_size)[: len(self)]
        numbers = range(len(self)) if self.views is None else self._order(len(self), epoch).tolist()
        numbers = numbers[skip:]
        for number, (images, labels) in zip(numbers, self._fetch([chunks[n] for n in numbers]), strict=True):
            with self._draws(view, number):
                images = self.augment(images.to(self.device))
            yield self.normalization(to_float(images)), labels.to(self.device)

    def _order(self, count: int, number: int) -> Tensor:
        if not self.shuffle:
            return torch.arange(count)
        # Not the default generator: the order must not depend on what was drawn before.
        return torch.randperm(count, generator=torch.Generator().manual_seed(self._seed(number)))

    def _seed(self, number: int) -> int:
        return (self.seed * SEED_STRIDE + number) % 2**63

    @contextmanager
    def _draws(self, view: int, number: int) -> Iterator[None]:
        """Within it, what augmentation draws is that of a batch of a view, if views are repeated."""
        if self.views is None:
            yield
            return
        with torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):
            torch.manual_seed(self._seed(view * len(self) + number))
            yield

    def _fetch(self, chunks: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        if isinstance(self.images, StreamedImages):
            return self.images.stream(chunks)
        return map(self.images.batch, chunks)


class IterableBatches:
    """A user's own batches of (inputs, targets), normalized by the user and only moved to the device.

    Args:
        batches: Something that can be gone through again and again, such as a list or a ``DataLoader``.
        device: Where batches go.
    """

    def __init__(self, batches: Iterable[Any], *, device: torch.device) -> None:
        if isinstance(batches, Iterator):
            raise _exhausted()
        self.batches = batches
        self.device = device
        self._length: int | None = None

    @property
    def samples(self) -> int | None:
        """The number of samples an epoch, where it can be known beforehand."""
        if isinstance(self.batches, list | tuple):
            return sum(len(_pair(batch)[0]) for batch in self.batches)
        if isinstance(self.batches, torch.utils.data.DataLoader) and isinstance(self.batches.sampler, Sized):
            return len(self.batches.sampler)
        return None

    def __len__(self) -> int:
        if isinstance(self.batches, Sized):
            return len(self.batches)
        if self._length is None:  # nobody knows but the iterable itself: go through it once
            self._length = sum(1 for _ in self.batches)
        return self._length

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return self.epoch(0)

    def epoch(self, epoch: int, skip: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """One pass from batch ``skip`` on; the order is the iterable's own, whatever ``epoch`` is.

        A resumed run sees the same batches only if the iterable gives the same ones on each pass.
        """
        empty = True
        for batch in islice(self.batches, skip, None):
            inputs, targets = _pair(batch)
            empty = False
            yield inputs.to(self.device), targets.to(self.device)
        if empty and skip == 0:
            raise _exhausted()


def _pair(batch: Any) -> tuple[Tensor, Tensor]:
    if not isinstance(batch, list | tuple) or len(batch) != 2 or not all(isinstance(x, Tensor) for x in batch):
        raise UsageError(f"batches must be pairs of tensors (inputs, targets), not {type(batch).__name__}")
    return batch[0], batch[1]


def _exhausted() -> UsageError:
    return UsageError(
        "the batches can be gone through only once or are empty; pass a list, a DataLoader, "
        "or an object whose __iter__ starts afresh, not a generator"
    )
