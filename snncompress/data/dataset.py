"""What a data set is once it is loaded: images by index in three parts, and how they are normalized."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from snncompress.data.task import Task
from snncompress.errors import DataError, UsageError

# Mean and standard deviation of the training images' channels, images scaled to 0..1.
NORMALIZATIONS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "mnist": ((0.1307,), (0.3081,)),
    "fashion-mnist": ((0.2860,), (0.3530,)),
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "none": ((0.0,), (1.0,)),
}
MOST_CHANNELS = 4  # of an image; inputs of more are features


@dataclass(frozen=True)
class Normalization:
    """(image − mean) / std for each channel of an image scaled to 0..1, or for each feature.

    One mean and one standard deviation hold for all channels.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std) or not self.mean:
            raise UsageError(
                f"--normalize: {len(self.mean)} means but {len(self.std)} standard deviations; give as many of each"
            )
        if not all(map(math.isfinite, self.mean + self.std)) or min(self.std) <= 0:
            raise UsageError("--normalize: means must be finite and standard deviations greater than 0")

    @classmethod
    def parse(cls, text: str, channels: int) -> Normalization:
        """Reads ``mnist``, ``imagenet``, ``none``, ... or ``MEAN/STD`` (commas between channels).

        A single mean and standard deviation holds for every channel; it is repeated for images only, since a run
        writes down as many numbers as there are.
        """
        if text in NORMALIZATIONS:
            mean, std = NORMALIZATIONS[text]
        else:
            parts = text.split("/")
            try:
                mean, std = (tuple(float(number) for number in part.split(",")) for part in parts)
            except ValueError:
                raise UsageError(
                    f"--normalize '{text}' is neither {', '.join(NORMALIZATIONS)} nor MEAN/STD "
                    "(such as 0.1307/0.3081 or 0.485,0.456,0.406/0.229,0.224,0.225)"
                ) from None
        if len(mean) == len(std) == 1:
            repeats = channels if channels <= MOST_CHANNELS else 1
            return cls(mean * repeats, std * repeats)
        if len(mean) != channels:
            raise UsageError(
                f"--normalize '{text}' is for {len(mean)} channels, but the images have {channels}; "
                "give one number, or as many as there are channels"
            )
        return cls(mean, std)

    def __call__(self, images: Tensor) -> Tensor:
        """Normalizes float images 0..1, or features, of shape (..., C, H, W)."""
        mean = torch.tensor(self.mean, dtype=images.dtype, device=images.device).view(-1, 1, 1)
        std = torch.tensor(self.std, dtype=images.dtype, device=images.device).view(-1, 1, 1)
        return (images - mean) / std


class Images(Protocol):
    """Labelled images of one shape, taken by index."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height, width."""

    @property
    def labels(self) -> Tensor:
        """The class of every image, int64, or its number to predict, float32; wherever the images are held."""

    @property
    def names(self) -> Sequence[object]:
        """What a person finds each image by: its file, or its number in the part that it was taken from."""

    def __len__(self) -> int: ...

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Images (uint8 0..255, float 0..1, or float features) and labels at ``indices``, on the training device."""

    def subset(self, indices: Tensor) -> Images:
        """The images at ``indices`` only, in that order."""


class TensorImages:
    """Images held in memory, usually on the training device.

    Args:
        images: uint8 0..255, float 0..1, or float features, shape (N, C, H, W).
        labels: Class numbers, or floats to predict, shape (N,).
        device: Where batches go; the images stay where they are.
        image_size: Batches are resized to this height and width (shorter side, then the centre).
        names: What a person finds each image by; their numbers when absent.
    """

    def __init__(
        self,
        images: Tensor,
        labels: Tensor,
        *,
        device: torch.device,
        image_size: int | None = None,
        names: Sequence[object] | None = None,
    ) -> None:
        self.images = images
        self.names: Sequence[object] = range(len(images)) if names is None else names
        self.labels = hold_labels(labels, images.device)
        self.device = device
        self.image_size = image_size
        channels, height, width = images.shape[1:]
        size = (image_size, image_size) if image_size else (height, width)
        self.shape: tuple[int, int, int] = (channels, *size)

    def __len__(self) -> int:
        return len(self.images)

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Images and labels at ``indices``, on the training device."""
        indices = indices.to(self.images.device)
        # index_select copies whole images; indexing with [] is ten times slower on a CPU.
        images = self.images.index_select(0, indices).to(self.device)
        labels = self.labels.index_select(0, indices).to(self.device)
        if images.shape[1:] != self.shape:
            images = resize(to_float(images), self.shape[1])
        return images, labels

    def subset(self, indices: Tensor) -> TensorImages:
        """A copy of the images at ``indices``."""
        indices = indices.to(self.images.device)
        images, labels = self.images.index_select(0, indices), self.labels.index_select(0, indices)
        names = take(self.names, indices)
        return TensorImages(images, labels, device=self.device, image_size=self.image_size, names=names)


@dataclass(frozen=True)
class Dataset:
    """A loaded data set: every choice is made on ``validation``, only the last word is the test set's.

    Attributes:
        validation: None where all training images are for training.
        truth: the true labels of the training images, where ``label_noise`` has changed them.
        label_noise: what was done to the labels of training and validation images, such as ``patterned:0.3``.
    """

    name: str
    classes: tuple[str, ...]
    normalization: Normalization
    train: Images
    validation: Images | None
    test: Images | None
    truth: Tensor | None = None
    label_noise: str | None = None

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height, width of every image; (features, 1, 1) of what is no image."""
        return self.train.shape

    @property
    def task(self) -> Task:
        """What there is to learn from its labels."""
        return Task.of(self.train.labels)

    @property
    def noun(self) -> str:
        """What its inputs are."""
        return noun(self.image_shape)

    def part(self, name: str) -> Images:
        """The images of ``train``, ``validation`` or ``test``, or a DataError that says which there are."""
        parts = {"train": self.train, "validation": self.validation, "test": self.test}
        found = parts.get(name)
        if found is None:
            there = " or ".join(other for other, images in parts.items() if images is not None)
            raise DataError(f"{self.name} has no {name} {self.noun}; use --split {there}")
        return found


def has_pixels(shape: tuple[int, ...]) -> bool:
    """Whether inputs of a shape are images, not features."""
    return shape[1:] != (1, 1)


def noun(shape: tuple[int, ...]) -> str:
    """What inputs of a shape are called."""
    return "images" if has_pixels(shape) else "samples"


def take(names: Sequence[object], indices: Tensor) -> list[object]:
    """The names at ``indices``."""
    return [names[i] for i in indices.tolist()]


def hold_labels(labels: Tensor, device: torch.device) -> Tensor:
    """Class numbers as int64, numbers to predict as float32."""
    return labels.to(device=device, dtype=torch.float32 if labels.is_floating_point() else torch.int64)


def to_float(images: Tensor) -> Tensor:
    """Float images 0..1 of uint8 images 0..255; float images as they are."""
    return images.to(torch.float32).div_(255) if images.dtype == torch.uint8 else images


def resize(images: Tensor, size: int) -> Tensor:
    """Scales the shorter side of float images (B, C, H, W) to ``size`` and cuts the centre square."""
    height, width = images.shape[2:]
    scale = size / min(height, width)
    scaled = (max(size, round(height * scale)), max(size, round(width * scale)))
    images = F.interpolate(images, scaled, mode="bilinear", antialias=True)
    top, left = (scaled[0] - size) // 2, (scaled[1] - size) // 2
    return images[:, :, top : top + size, left : left + size].clamp(0, 1)


def split(images: Images, fraction: float, seed: int) -> tuple[Images, Images]:
    """Cuts a random part off: (the rest, the part), the same on every machine for a seed."""
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    count = min(max(1, round(len(images) * fraction)), len(images) - 1)
    # Sorted, so that neighbours in a file stay neighbours in memory and on disk.
    return images.subset(order[count:].sort().values), images.subset(order[:count].sort().values)
