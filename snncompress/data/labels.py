"""Labels made wrong on purpose, by seed, to see what training does with them.

    patterned:p   every class c has one partner r(c) ≠ c, drawn once a seed; a label c becomes r(c) with probability p
    uniform:p     a label becomes any of the other classes with probability p
    random        every label is drawn uniformly from all classes, whatever the image shows

Patterned noise is that of Hendrycks et al. 2018. Training and validation labels are changed, since nobody who has noisy
labels has clean ones to choose by; test labels stay true.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace
from enum import StrEnum

import torch
from torch import Tensor

from snncompress.data.dataset import Dataset, Images, hold_labels
from snncompress.data.task import Task
from snncompress.errors import UsageError, unknown_name

# Keeps these draws apart from those of the split and of the order of images, which come from the same seed.
STREAM = 2_750_159
PATTERN, TRAIN, VALIDATION = range(3)


class Corruption(StrEnum):
    """Ways to be wrong."""

    PATTERNED = "patterned"
    UNIFORM = "uniform"
    RANDOM = "random"


@dataclass(frozen=True)
class LabelNoise:
    """How labels are changed, and how many; written ``patterned:0.3``, ``uniform:0.3`` or ``random``."""

    kind: Corruption
    strength: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.strength <= 1:
            raise UsageError(f"--label-noise {self.kind}:{self.strength:g} is out of range; give a share from 0 to 1")

    @classmethod
    def parse(cls, text: str) -> LabelNoise | None:
        """Reads what the command line has; None for ``none``."""
        name, colon, share = text.partition(":")
        if name not in [*Corruption, "none"]:
            raise unknown_name("label noise", name, ["none", *Corruption])
        if bool(colon) != (name in (Corruption.PATTERNED, Corruption.UNIFORM)):
            wanted = name if colon else f"{name}:0.3"
            raise UsageError(f"--label-noise '{text}' is not written that way; write {wanted}")
        try:
            strength = float(share) if colon else 1.0
        except ValueError:
            strength = math.nan
        if math.isnan(strength):
            raise UsageError(f"--label-noise '{text}': '{share}' is no share; give a number from 0 to 1")
        return None if name == "none" else cls(Corruption(name), strength)

    def __str__(self) -> str:
        return str(self.kind) if self.kind is Corruption.RANDOM else f"{self.kind}:{self.strength:g}"


def corrupt(data: Dataset, noise: LabelNoise, seed: int) -> Dataset:
    """The data with labels of training and validation images changed; the true ones are remembered.

    Raises:
        UsageError: If there are no classes to mix up.
    """
    if data.task is Task.REGRESSION:
        raise UsageError(
            f"--label-noise mixes up classes, but {data.name} is for predicting a number; leave it out, or give data "
            "with integer labels"
        )
    if len(data.classes) < 2:
        raise UsageError(f"--label-noise needs two classes or more, but {data.name} has {len(data.classes)}")
    train, validation = (
        None if images is None else _relabel(images, change(images.labels.cpu(), len(data.classes), noise, seed, part))
        for images, part in ((data.train, TRAIN), (data.validation, VALIDATION))
    )
    assert train is not None
    return replace(data, train=train, validation=validation, truth=data.train.labels, label_noise=str(noise))


def change(labels: Tensor, classes: int, noise: LabelNoise, seed: int, part: int = TRAIN) -> Tensor:
    """Labels of ``classes`` classes (CPU, int64) with noise; ``part`` has draws of its own but the same pattern."""
    draws = _generator(seed, part)
    if noise.kind is Corruption.RANDOM:
        return torch.randint(classes, labels.shape, generator=draws)
    hit = torch.rand(labels.shape, generator=draws) < noise.strength
    if noise.kind is Corruption.PATTERNED:
        others = partners(classes, seed)[labels]
    else:
        others = (labels + torch.randint(1, classes, labels.shape, generator=draws)) % classes
    return torch.where(hit, others, labels)


def partners(classes: int, seed: int) -> Tensor:
    """The class that each class is taken for under patterned noise, (classes,)."""
    shifts = torch.randint(1, classes, (classes,), generator=_generator(seed, PATTERN))
    return (torch.arange(classes) + shifts) % classes


def _generator(seed: int, part: int) -> torch.Generator:
    return torch.Generator().manual_seed((seed + STREAM * (part + 1)) % 2**63)


def _relabel(images: Images, labels: Tensor) -> Images:
    """The same images, not copied, with other labels."""
    changed = copy.copy(images)
    changed.labels = hold_labels(labels, images.labels.device)  # type: ignore[misc]
    return changed
