"""What every noise branch has in common: it owns its layer's forward while it is attached."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Layer = nn.Conv2d | nn.Linear


class Mode(StrEnum):
    """What a branch does in a forward pass."""

    SAMPLE = "sample"  # noise, and its penalty
    MEAN = "mean"  # mean propagation: the noise at its mean
    OBSERVE = "observe"  # the same, while statistics of the noise are gathered
    ZERO = "zero"  # noise around zero: what the variances alone know


class Reach(StrEnum):
    """Sets of layers, by their place in the network."""

    ALL = "all"
    HIDDEN = "hidden"  # all but the classifier
    INNER = "inner"  # all but the first: those that read units of the network, not the image
    LAST_HIDDEN = "last-hidden"
    FIRST_LINEAR = "first-linear"  # the first hidden linear layer, best one that does not read the image
    CLASSIFIER = "classifier"  # what makes the output


@dataclass(frozen=True)
class Clock:
    """Where training is: penalties may depend on it."""

    epoch: float = 0.0
    examples: int = 1  # in the training data


class Branch(nn.Module, ABC):
    """The noise of one layer.

    The layer is handed in at every call and never stored, so that its parameters stay the user's own.
    """

    # Which axis of the layer each axis of a parameter of the branch runs along: "out" and "in" of its weight, "read",
    # all the channels that it reads (more than "in" where they come in groups), or "".
    # Compaction shrinks the branch by it, along with its layer.
    axes: dict[str, tuple[str, ...]]
    reach: ClassVar[Reach] = Reach.HIDDEN  # the layers that get noise unless the user chooses
    lr_factor: ClassVar[float] = 1.0  # how much faster than the weights its parameters learn, unless the user says
    beta2: ClassVar[float] = 0.999  # Adam's memory of its parameters' squared gradients
    zeros_stay: ClassVar[bool] = False  # whether its products leave out weights that are zero for good
    watched: ClassVar[tuple[Mode, ...]] = ()  # ways of sampling whose errors the history follows, too

    mode: Mode = Mode.SAMPLE
    clock: Clock = Clock()

    def __init__(self) -> None:
        super().__init__()
        self.axes = {}

    @classmethod
    def for_options(cls, options: Any) -> type[Branch]:
        """The class of branches that a method's options ask for: this one, where there is only one."""
        return cls

    @abstractmethod
    def sample(self, layer: Layer, x: Tensor) -> Tensor:
        """The layer's output under noise; the mean alone where the noise waits for the batch norm that follows."""

    def sample_zero(self, layer: Layer, x: Tensor) -> Tensor:
        """The layer's output under noise whose mean is set to zero; the mean stays where that has no sense."""
        return self.sample(layer, x)

    def after_norm(self, normalized: Tensor) -> Tensor:
        """Adds noise to the output of the batch norm that follows the layer."""
        return normalized

    def mean(self, layer: Layer, x: Tensor) -> Tensor:
        """The layer's output with the noise at its mean."""
        output: Tensor = type(layer).forward(layer, x)  # type: ignore[arg-type]
        return output

    def settle(self, layer: Layer) -> None:
        """Makes the layer's own weights those of ``mean``, before the branch is taken off for good."""

    def unsettle(self, layer: Layer) -> None:
        """Undoes ``settle`` where training goes on better from other weights of the same distribution."""

    def silence(self, layer: Layer, gone: Tensor) -> None:
        """Where each weight has noise of its own: some weights are zero from now on, and have none."""

    def hollow(self, layer: Layer) -> bool:
        """Whether the mean carries nothing: such a layer is used by sampling only."""
        return False

    def sigma(self, layer: Layer, x: Tensor) -> Tensor | None:
        """The deviations that the noise predicts for this input, (B, ...); None where it predicts none."""
        return None

    def observe(self, layer: Layer, x: Tensor) -> None:
        """Gathers statistics of the noise for this input."""

    def observe_mean(self, mean: Tensor) -> None:
        """Gathers statistics of the mean for the same input, after the batch norm that follows."""

    def forget(self) -> None:
        """Drops the statistics gathered so far."""

    def penalty(self, layer: Layer) -> Tensor:
        """What the forward passes since the last call add to the loss."""
        return layer.weight.new_zeros(())

    def kl(self, layer: Layer) -> Tensor | None:
        """KL(q(w) ‖ p(w)) of the layer's weights, in nats; None if the method has no such term."""
        return None

    def summary(self, layer: Layer) -> dict[str, float]:
        """A few numbers about the state of the noise for the history."""
        return {}


def apply(layer: Layer, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The layer's own operation with other weights."""
    if isinstance(layer, nn.Conv2d):
        convolved: Tensor = layer._conv_forward(x, weight, bias)  # with the layer's stride, padding and so on
        return convolved
    return F.linear(x, weight, bias)


def precise(values: Tensor) -> Tensor:
    """At least float32: under autocast, logarithms and square roots of small numbers need it."""
    return values if values.dtype in (torch.float32, torch.float64) else values.float()
