"""Adversarial training: half of the loss is that of images that are attacked as the network is now.

    L = ½·L_cl(x, y) + ½·L_cl(x', y),   x' = clip(x + ε·sign ∇_x L_cl(x, y), 0, 1)

in pixels of 0..1, with one sample of the noise in the gradient, if there is any, and batch norms in evaluation mode.

Goodfellow, Shlens, Szegedy: Explaining and Harnessing Adversarial Examples, ICLR 2015, §6.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from snncompress.data.dataset import Normalization, has_pixels
from snncompress.data.task import Task
from snncompress.errors import UsageError
from snncompress.evaluation.attacks.victim import log_odds
from snncompress.evaluation.likelihood import default_loss


@dataclass(frozen=True)
class AdversarialOptions:
    """Which attack a network is trained with, and its strength ε in pixels of 0..1."""

    eps: float
    attack: str = "fgs"

    def __post_init__(self) -> None:
        if self.attack != "fgs":
            raise UsageError(f"--adversarial {self.attack}: training knows the attack fgs only; give fgs:0.3, say")
        if not 0 < self.eps <= 1:
            raise UsageError(f"--adversarial fgs:{self.eps:g} is out of range; give a strength above 0, up to 1")

    @classmethod
    def parse(cls, text: str) -> AdversarialOptions:
        """Reads ``fgs:0.3``."""
        attack, _, eps = text.partition(":")
        try:
            return cls(float(eps), attack)
        except ValueError:
            raise UsageError(f"--adversarial '{text}' is not of the form fgs:0.3") from None


class Attacker:
    """Makes attacked copies of normalized images while a network learns."""

    def __init__(
        self,
        options: AdversarialOptions,
        normalization: Normalization,
        input_shape: Sequence[int],
        device: torch.device,
    ) -> None:
        if not has_pixels(tuple(input_shape)):
            raise UsageError("--adversarial changes pixels between 0 and 1, but these samples are features; omit it")
        zeros = torch.zeros(1, input_shape[0], 1, 1, device=device)
        self.low, self.high = normalization(zeros), normalization(zeros + 1)
        self.length = options.eps * (self.high - self.low)  # of a step, in normalized units

    def attack(
        self, model: nn.Module, loss: Callable[[Tensor, Tensor], Tensor], inputs: Tensor, targets: Tensor
    ) -> Tensor:
        """The attacked inputs; the model is left in evaluation mode and its gradients as they are."""
        model.eval()
        inputs = inputs.detach().requires_grad_()
        with torch.enable_grad():
            outputs = model(inputs)
            if loss is default_loss and Task.of(targets) is Task.CLASSIFICATION:
                # The same direction as that of cross-entropy, and none is lost to rounding where p_y is almost 1.
                rising = log_odds(outputs.float().log_softmax(-1), targets)[0].sum()
            else:
                rising = loss(outputs, targets)
            (gradient,) = torch.autograd.grad(rising, inputs)
        with torch.no_grad():
            moved = inputs + self.length * gradient.sign()
            return torch.minimum(torch.maximum(moved, self.low), self.high)
