"""``vd``: variational dropout with a noise level α a layer, a neuron or a weight.

Multiplicative parameterization, with μ the layer's own weight and log α learned beside it (Eq. 14):

    w ~ N(μ, α·μ²),   α shared by a layer, by the weights of an output neuron, or by none

sampled by local reparameterization (``weights.py``). The penalty is the KL to a prior, each falling with α:

    log-uniform   const − ½·log α + E log|1 + √α·ε|                                  (Eq. 8; the approximation there)
    student       const − ½·log αμ² + (ν+1)/2 · E log(ν + μ²(1 + √α·ε)²), one sample  (Eq. 10; ν = 1e-16)
    ard           ½·log(1 + 1/α)                                                     (Eq. 11, which lacks the ½)

Constants are such that the KL of an infinite α is 0 (for Student, as ν → 0). Where α grows without end, the mean
carries nothing any more and all is stored in the variances: the layer has become a variance layer.

A shared α is learned in coordinates in which it leaves the weights' second moment alone: the layer's weight θ stands
for μ = θ·√((1 + α₀)/(1 + α)), with α₀ the value at which θ was the mean. The distributions are the same; but where α
and μ are free, every growth of α first blows up the outputs of the layer, and α gets nowhere.

Neklyudov, Molchanov, Ashukha, Vetrov: Variance Networks, ICLR 2019; Kingma, Salimans, Welling, NIPS 2015.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from snncompress.errors import UsageError
from snncompress.noise.branch import Layer, Mode, Reach
from snncompress.noise.weights import KlOptions, WeightBranch, extremes, kl_ard, kl_log_uniform

LIMIT = 20.0  # of |log α|: α·μ² must stay a number
HOLLOW = 10.0  # α over this many times the inputs of a neuron: even if all agree, their mean is lost in the noise
NU = 1e-16  # degrees of freedom of Student's t
FAR = 0.5 * (0.5772156649015329 + math.log(2))  # −E log|ε|, with Euler's constant: the KL of an infinite α is zero


class Alpha(StrEnum):
    """Who shares a noise level."""

    LAYER = "layer"
    NEURON = "neuron"
    WEIGHT = "weight"


class Prior(StrEnum):
    """Prior distributions of the weights."""

    LOG_UNIFORM = "log-uniform"
    STUDENT = "student"
    ARD = "ard"


@dataclass(frozen=True)
class Options(KlOptions):
    """Where the noise starts, who shares it, and what draws it up."""

    alpha: Alpha = Alpha.LAYER
    prior: Prior = Prior.LOG_UNIFORM
    log_alpha: float = -5.0  # where log α starts: the means carry everything

    def __post_init__(self) -> None:
        super().__post_init__()
        if not -LIMIT <= self.log_alpha <= LIMIT:
            raise UsageError(f"method vd: option log_alpha={self.log_alpha:g} is out of range")


class NoiseBranch(WeightBranch):
    """log α of one layer."""

    reach: ClassVar[Reach] = Reach.ALL
    lr_factor: ClassVar[float] = 10.0  # log α has a long way to go, one small step after the other
    # The KL's gradient falls as 1/α: with the usual memory of a thousand steps, the large gradients of the beginning
    # would hold log α back long after they are gone.
    beta2: ClassVar[float] = 0.9
    watched: ClassVar[tuple[Mode, ...]] = (Mode.SAMPLE, Mode.ZERO)

    def __init__(self, layer: Layer, options: Options, *, normed: bool) -> None:
        super().__init__()
        self.options = options
        shape, axis = {
            Alpha.LAYER: ((1,) * layer.weight.dim(), ""),
            Alpha.NEURON: ((len(layer.weight),) + (1,) * (layer.weight.dim() - 1), "out"),
            Alpha.WEIGHT: (tuple(layer.weight.shape), "out"),
        }[options.alpha]
        self.log_alpha = nn.Parameter(layer.weight.new_full(shape, options.log_alpha))
        self.reference = nn.Parameter(self.log_alpha.detach().clone(), requires_grad=False)  # log α₀
        self.axes = dict.fromkeys(("log_alpha", "reference"), (axis, "in" if options.alpha is Alpha.WEIGHT else ""))

    def moments(self, layer: Layer) -> tuple[Tensor, Tensor]:
        """μ and α·μ²."""
        mean = layer.weight * self._shrinkage()
        return mean, self._log_alpha().exp() * mean.square()

    def _shrinkage(self) -> Tensor | float:
        """μ/θ = √((1 + α₀)/(1 + α))."""
        if self.options.alpha is Alpha.WEIGHT:
            return 1.0
        return (0.5 * (F.softplus(self.reference) - F.softplus(self._log_alpha()))).exp()

    @torch.no_grad()
    def settle(self, layer: Layer) -> None:
        """The layer's weight is the mean from now on."""
        super().settle(layer)
        self.reference.copy_(self._log_alpha())

    @torch.no_grad()
    def unsettle(self, layer: Layer) -> None:
        """Back to weights of the size that the variance has: steps would be too long for means that are almost zero."""
        self.reference.fill_(self.options.log_alpha)
        layer.weight.div_(self._shrinkage())

    def _log_alpha(self) -> Tensor:
        return self.log_alpha.clamp(-LIMIT, LIMIT)

    def kl(self, layer: Layer) -> Tensor:
        """The KL to the prior, summed over the weights."""
        log_alpha = self._log_alpha()
        if self.options.prior is Prior.STUDENT:
            return kl_student(self.moments(layer)[0], log_alpha).sum()
        kl = kl_ard if self.options.prior is Prior.ARD else kl_log_uniform
        return kl(log_alpha).sum() * (layer.weight.numel() // log_alpha.numel())

    def hollow(self, layer: Layer) -> bool:
        """Whether the means of all inputs together stay far below the noise of the weights."""
        mean, variance = self.moments(layer)
        inputs = layer.weight[0].numel()
        return float(variance.sum()) > HOLLOW * inputs * float(mean.square().sum())

    def summary(self, layer: Layer) -> dict[str, float]:
        """Mean and extremes of log α."""
        return extremes("log_alpha", self._log_alpha())


def kl_student(mu: Tensor, log_alpha: Tensor, nu: float = NU) -> Tensor:
    """KL(N(μ, αμ²) ‖ Student's t with ν degrees of freedom) of each weight, estimated by one sample (Eq. 10)."""
    squared = mu.square() + torch.finfo(mu.dtype).tiny  # a weight that is exactly zero
    noise = 1 + (0.5 * log_alpha).exp() * torch.randn_like(mu)
    return FAR - 0.5 * (log_alpha + squared.log()) + 0.5 * (nu + 1) * (nu + squared * noise.square()).log()
