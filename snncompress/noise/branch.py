"""What every noise branch has in common: it owns its layer's forward while it is attached."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import StrEnum
from typing import ClassVar

from torch import Tensor, nn

Layer = nn.Conv2d | nn.Linear


class Mode(StrEnum):
    """What a branch does in a forward pass."""

    SAMPLE = "sample"  # noise, and its penalty
    MEAN = "mean"  # the plain layer: as if the branch were not there
    OBSERVE = "observe"  # the plain layer, while statistics of the noise are gathered


class Branch(nn.Module, ABC):
    """The noise of one layer.

    The layer is handed in at every call and never stored, so that its parameters stay the user's own.
    """

    # Which axis of the layer each axis of a parameter of the branch runs along ("out", "in" or "").
    # Compaction shrinks the branch by it, along with its layer.
    axes: ClassVar[dict[str, tuple[str, ...]]] = {}

    mode: Mode = Mode.SAMPLE

    @abstractmethod
    def sample(self, layer: Layer, x: Tensor) -> Tensor:
        """The layer's output under noise; the mean alone where a batch norm follows."""

    def after_norm(self, normalized: Tensor) -> Tensor:
        """Adds the noise to the output of the batch norm that follows the layer."""
        return normalized

    @abstractmethod
    def observe(self, layer: Layer, x: Tensor) -> None:
        """Gathers statistics of the noise for this input."""

    @abstractmethod
    def penalty(self) -> Tensor:
        """What the forward passes since the last call add to the loss."""

    @abstractmethod
    def forget(self) -> None:
        """Drops the statistics gathered so far."""

    @abstractmethod
    def summary(self) -> dict[str, float]:
        """A few numbers about the state of the noise for the history."""
