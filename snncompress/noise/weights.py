"""What the methods with a Gaussian on every weight share: w ~ N(mean, variance), sampled by its effect.

Local reparameterization: instead of weights, the layer's outputs are sampled, each image with its own noise.
For the input a of a layer (Kingma, Salimans, Welling 2015; Eq. 4 of Neklyudov et al.),

    b = layer(a; E w) + ε·√(layer(a²; Var w) + 1e-8),   ε ~ N(0, 1)

The bias has no noise and never enters the variance. The loss is the mean cross-entropy plus KL(q ‖ p)/N for N
training images: the negative evidence lower bound (ELBO), divided by N.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from snncompress.errors import UsageError
from snncompress.noise.branch import Branch, Layer, apply, precise
from snncompress.noise.products import open_product, standard_normal

SILENT = -200.0  # log σ or log σ² whose exponential is zero, and its gradient: it stays there
FLOOR = 1e-8  # in the square root, whose slope at zero is infinite
# KL to the log-uniform prior ≈ k1 − k1·sigmoid(k2 + k3·log α) + ½·log(1 + 1/α) (Molchanov et al. 2017, Eq. 14)
K1, K2, K3 = 0.63576, 1.87320, 1.48695


@dataclass(frozen=True)
class KlOptions:
    """How strongly the KL term counts, and from when on."""

    kl_scale: float = 1.0  # 1 is the ELBO
    kl_warmup: str = "0"  # epochs: "5:20" raises the scale from 0 at epoch 5 to its full value at epoch 20

    def __post_init__(self) -> None:
        self.ramp(0.0)
        if not 0 <= self.kl_scale < math.inf:
            raise UsageError(f"option kl_scale={self.kl_scale:g} is out of range; give 0 or more")

    def ramp(self, epoch: float) -> float:
        """The share of the KL term that counts at an epoch, 0 to 1."""
        first, _, last = self.kl_warmup.rpartition(":")
        try:
            start, end = float(first or 0), float(last)
        except ValueError:
            start, end = math.nan, math.nan
        if not 0 <= start <= end < math.inf:
            raise UsageError(
                f"option kl_warmup '{self.kl_warmup}' is not of the form 20 or 5:20 (first and last epoch)"
            )
        if epoch >= end or epoch <= start:
            return float(epoch >= end)
        return (epoch - start) / (end - start)


class WeightBranch(Branch):
    """A Gaussian on every weight of a layer."""

    options: Any  # the method's, with the fields of KlOptions

    @abstractmethod
    def moments(self, layer: Layer) -> tuple[Tensor, Tensor]:
        """Mean and variance of every weight, of the weight's shape."""

    def audible(self) -> Tensor | None:
        """Where the weights have not been silenced, if the branch knows: elsewhere nothing is multiplied or learned."""
        return None

    def sample(self, layer: Layer, x: Tensor) -> Tensor:
        """Local reparameterization."""
        mean, variance = self.moments(layer)
        arranged, multiply = open_product(layer, x, self.audible())
        a, squared = with_square(arranged)
        return perturb(multiply(a, mean, layer.bias), multiply(squared, variance, None))

    def sample_zero(self, layer: Layer, x: Tensor) -> Tensor:
        """The same around zero."""
        arranged, multiply = open_product(layer, x)
        spread = multiply(arranged.square(), self.moments(layer)[1], None)
        return perturb(along_outputs(layer, layer.bias, spread), spread)

    def mean(self, layer: Layer, x: Tensor) -> Tensor:
        """Mean propagation."""
        return apply(layer, x, self.moments(layer)[0], layer.bias)

    @torch.no_grad()
    def settle(self, layer: Layer) -> None:
        """Writes the means into the layer."""
        layer.weight.copy_(self.moments(layer)[0])

    @torch.no_grad()
    def silence(self, layer: Layer, gone: Tensor) -> None:
        """Sets some weights to zero, their variance too, for good."""
        layer.weight.masked_fill_(gone, 0.0)

    def penalty(self, layer: Layer) -> Tensor:
        """KL / N, scaled."""
        factor: float = self.options.kl_scale * self.options.ramp(self.clock.epoch)
        kl = self.kl(layer) if factor else None
        return super().penalty(layer) if kl is None else kl * (factor / self.clock.examples)


class _WithSquare(torch.autograd.Function):
    """a and a²; on the way back one pass instead of three."""

    @staticmethod
    def forward(ctx: Any, a: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(a)
        return a, a.square()

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, by_a: Tensor, by_square: Tensor) -> Tensor:
        (a,) = ctx.saved_tensors
        return torch.addcmul(by_a, a, by_square, value=2)


def with_square(a: Tensor) -> tuple[Tensor, Tensor]:
    """The input of a layer for its mean and for its variance."""
    pair: tuple[Tensor, Tensor] = _WithSquare.apply(a)
    return pair


class _Perturb(torch.autograd.Function):
    """mean + ε·√(variance + floor); keeps one tensor for the way back instead of four."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, variance: Tensor) -> Tensor:
        deviation = precise(variance).clamp_min(0).add_(FLOOR).sqrt_()
        slope = standard_normal(deviation, 0.5).div_(deviation)  # d sample / d variance = ½·ε/deviation
        ctx.save_for_backward(slope.to(variance.dtype))
        # ε·deviation = 2·slope·deviation²; in place, since new memory takes longer than arithmetic.
        return torch.addcmul(mean.to(slope.dtype), slope, deviation.square_(), value=2, out=deviation).to(mean.dtype)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        (slope,) = ctx.saved_tensors
        return gradient, gradient.to(slope.dtype) * slope


def perturb(mean: Tensor, variance: Tensor) -> Tensor:
    """A sample of N(mean, variance) that can be differentiated by both."""
    sample: Tensor = _Perturb.apply(mean, variance)
    return sample


def along_outputs(layer: Layer, bias: Tensor | None, like: Tensor) -> Tensor:
    """A bias of each output neuron, or none, in the shape of the layer's output."""
    if bias is None:
        return torch.zeros_like(like)
    return (bias[:, None, None] if isinstance(layer, nn.Conv2d) else bias).expand_as(like)


@torch.no_grad()
def extremes(name: str, values: Tensor) -> dict[str, float]:
    """Mean, least and largest of a parameter, for the history."""
    return {f"{name}_{which}": float(getattr(values, which)()) for which in ("mean", "min", "max")}


def kl_log_uniform(log_alpha: Tensor) -> Tensor:
    """KL(N(μ, αμ²) ‖ log-uniform) of each weight; 0 where α is infinite."""
    return K1 - K1 * torch.sigmoid(K2 + K3 * log_alpha) + kl_ard(log_alpha)


def kl_ard(log_alpha: Tensor) -> Tensor:
    """KL(N(μ, αμ²) ‖ N(0, (α+1)μ²)) = ½·log(1 + 1/α) of each weight, the best prior variance put in.

    Eq. 11 of Neklyudov et al. lacks the ½.
    """
    return 0.5 * F.softplus(-log_alpha)
