"""What a data source is asked for and what it gives back: the contract of the files beside this one.

A source is a module with a line in its docstring for each name (see ``snncompress/registry.py``) and a
function ``load(request: DataRequest) -> Parts``. If it reads a place that follows its name (``folder:PATH``),
it says ``TAKES_PATH = True``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from snncompress.data.dataset import Images, Normalization, TensorImages, split
from snncompress.errors import DataError

# Where a set has no test part of its own. The seed is fixed, whatever the run's: evaluating with another
# seed than the training's must not put training images into the test set.
TEST_FRACTION = 0.1
TEST_SEED = 0


@dataclass(frozen=True)
class DataRequest:
    """Which data set to load, from where, and how to hold it."""

    name: str
    path: Path | None
    root: Path
    download: bool
    device: torch.device
    image_size: int | None
    memory_budget_bytes: int

    def hold(self, images: Tensor, labels: Tensor) -> TensorImages:
        """Puts images on the training device if the budget allows; else they stay, and batches travel."""
        if images.numel() * images.element_size() <= self.memory_budget_bytes:
            images = images.to(self.device)
        return TensorImages(images, labels, device=self.device, image_size=self.image_size)


@dataclass(frozen=True)
class Parts:
    """A data set as its source has it; a missing validation part is cut from ``train`` later."""

    classes: tuple[str, ...]
    normalization: Normalization
    train: Images
    validation: Images | None
    test: Images | None


def split_test(images: Images) -> tuple[Images, Images]:
    """Cuts a tenth off as the test set, always the same one: (training images, test images)."""
    return split(images, TEST_FRACTION, TEST_SEED)


def check_labels(labels: Tensor, images: int, classes: int, where: str) -> None:
    """Raises unless there is one label in 0..classes−1 for each of ``images`` images."""
    if images == 0:
        raise DataError(f"{where} holds no images")
    if len(labels) != images:
        raise DataError(f"{where}: {images} images but {len(labels)} labels; each image needs one")
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= classes:
        wrong = low if low < 0 else high
        raise DataError(f"{where}: label {wrong} is outside 0..{classes - 1}; the file is damaged or another set's")


def default_normalization(channels: int) -> Normalization:
    """For sets that nobody measured: ImageNet's for colour images, else 0.5/0.5."""
    return Normalization.parse("imagenet" if channels == 3 else "0.5/0.5", channels)
