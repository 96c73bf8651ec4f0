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
from typing import ClassVar

import torch
from torch import Tensor, nn

from snncompress.errors import UsageError
from snncompress.noise.branch import Layer, Reach
from snncompress.noise.weights import FLOOR, KlOptions, WeightBranch, kl_log_uniform

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
        return layer.weight.masked_fill(self._drowned(layer, variance), 0.0), variance

    @torch.no_grad()
    def _drowned(self, layer: Layer, variance: Tensor) -> Tensor:
        """Where log α is over the threshold."""
        return variance > (layer.weight.square() + FLOOR) * math.exp(self.options.threshold)

    def kl(self, layer: Layer) -> Tensor:
        """The known approximation, summed over the weights."""
        return kl_log_uniform(self.log_alpha(layer)).sum()

    def hollow(self, layer: Layer) -> bool:
        """All weights zero: nothing passes."""
        return not bool(self.moments(layer)[0].any())

    @torch.no_grad()
    def summary(self, layer: Layer) -> dict[str, float]:
        """Mean log α, and the share of weights that are zero."""
        zero = self.moments(layer)[0] == 0
        return {"log_alpha": float(self.log_alpha(layer).mean()), "sparsity": float(zero.float().mean())}
