"""``sparse-vd``: a Gaussian on every weight; those that drown in their noise are set to zero.

Additive parameterization, with μ the layer's own weight and log σ² learned beside it:

    w ~ N(μ, σ²),   log α = log σ² − log μ²   (clipped to ±8)

sampled by local reparameterization (``weights.py``). The penalty is the KL to the log-uniform prior,

    KL ≈ k1 − k1·sigmoid(k2 + k3·log α) + ½·log(1 + 1/α),   k1 = 0.63576, k2 = 1.87320, k3 = 1.48695,

which falls with α: a weight pays for being more than noise. A weight with log α over the threshold is zero in
the mean, in training already, and in the network that is left when the branch is taken off.

Molchanov, Ashukha, Vetrov: Variational Dropout Sparsifies Deep Neural Networks, ICML 2017.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from snncompress.errors import UsageError
from snncompress.noise.branch import Layer, Reach
from snncompress.noise.weights import FLOOR, K1, K2, K3, SILENT, KlOptions, WeightBranch

LIMIT = 8.0  # of |log α|: beyond it the KL is flat, and its gradient would only add noise


@dataclass(frozen=True)
class Options(KlOptions):
    """The published values."""

    threshold: float = 3.0  # log α above which a weight is zero: α > 20, a dropout rate over 0.95
    log_sigma2: float = -10.0  # where log σ² starts: small, so that training begins almost without noise

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value, allowed in (
            ("threshold", self.threshold, -LIMIT <= self.threshold <= LIMIT),
            ("log_sigma2", self.log_sigma2, -40 <= self.log_sigma2 <= 5),
        ):
            if not allowed:
                raise UsageError(f"method sparse-vd: option {name}={value:g} is out of range")


class NoiseBranch(WeightBranch):
    """log σ² of one layer's weights."""

    reach: ClassVar[Reach] = Reach.ALL
    zeros_stay: ClassVar[bool] = True

    def __init__(self, layer: Layer, options: Options, *, normed: bool) -> None:
        super().__init__()
        self.options = options
        self.log_sigma2 = nn.Parameter(torch.full_like(layer.weight, options.log_sigma2))
        self.axes = {"log_sigma2": ("out", "in")}

    def log_alpha(self, layer: Layer) -> Tensor:
        """The value of log σ² − log μ² of every weight, within the limits."""
        return (self.log_sigma2 - (layer.weight.square() + FLOOR).log()).clamp(-LIMIT, LIMIT)

    def moments(self, layer: Layer) -> tuple[Tensor, Tensor]:
        """μ, zero where it drowns in noise, and σ²."""
        variance = self.log_sigma2.exp()
        return torch.where(self._drowned(layer, variance), 0.0, layer.weight), variance

    @torch.no_grad()
    def silence(self, layer: Layer, gone: Tensor) -> None:
        """Mean and variance are zero."""
        super().silence(layer, gone)
        self.log_sigma2.masked_fill_(gone, SILENT)

    def audible(self) -> Tensor:
        """Where log σ² is not that of silence."""
        return self.log_sigma2.detach() > SILENT

    @torch.no_grad()
    def _drowned(self, layer: Layer, variance: Tensor) -> Tensor:
        """Where log α is over the threshold."""
        return variance > layer.weight.square().add_(FLOOR).mul_(math.exp(self.options.threshold))

    def kl(self, layer: Layer) -> Tensor:
        """The known approximation, summed over the weights."""
        kl: Tensor = _Kl.apply(layer.weight, self.log_sigma2)
        return kl

    def hollow(self, layer: Layer) -> bool:
        """All weights zero: nothing passes."""
        return not bool(self.moments(layer)[0].any())

    @torch.no_grad()
    def summary(self, layer: Layer) -> dict[str, float]:
        """Mean log α, and the share of weights that are zero."""
        zero = self.moments(layer)[0] == 0
        return {"log_alpha": float(self.log_alpha(layer).mean()), "sparsity": float(zero.float().mean())}


class _Kl(torch.autograd.Function):
    """``kl_log_uniform(log α)``, summed over the weights, in few passes: the end of a VGG is all weights.

    With q = μ² + 1e-8, r = sigmoid(log α) and s = sigmoid(−k2 − k3·log α),

        KL = k1·s − ½·log r,   dKL/dlog α = −k1·k3·s·(1 − s) − ½·(1 − r),   dlog α/dμ = −2μ/q,   dlog α/dlog σ² = 1
    """

    @staticmethod
    def forward(ctx: Any, mu: Tensor, log_sigma2: Tensor) -> Tensor:
        q = mu.square().add_(FLOOR)
        log_alpha = (log_sigma2 - q.log()).masked_fill_(log_sigma2 <= SILENT, math.inf)  # silent weights pay nothing
        clipped = log_alpha.clamp(-LIMIT, LIMIT)
        r = clipped.sigmoid()
        s = clipped.mul_(-K3).sub_(K2).sigmoid_()
        kl = K1 * s.sum() - 0.5 * r.log().sum()
        twice = r.sub_(1).sub_(s.addcmul_(s, s, value=-1), alpha=2 * K1 * K3)  # 2·dKL/dlog α
        ctx.save_for_backward(mu, q, torch.where(log_alpha.abs_() > LIMIT, 0.0, twice))
        return kl

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        mu, q, twice = ctx.saved_tensors
        return (mu * twice).div_(q).mul_(-gradient), twice * (0.5 * gradient)
