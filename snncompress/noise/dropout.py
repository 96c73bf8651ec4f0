"""``dropout``: multiplicative noise on the units that a layer reads.

    h_l = f((λ ∘ h_{l−1}) W_l),   E λ = 1, drawn anew for every value of every sample (Eq. 2)

    bernoulli   λ = m/(1 − p),  m ~ Bernoulli(1 − p): dropout, of rate p
    gaussian    λ ~ N(1, p/(1 − p)): the same two moments
    beta        λ = m/(1 − p),  m ~ Beta(1 − p, p): half their variance, arcsine for p = ½

There is no penalty and nothing to learn; what the noise leaves in the weights is told by their posterior
(``training/langevin.py``): small means for the weights that cannot bear to be rescaled, large variances for those
that can.

Nalisnick, Anandkumar, Smyth: A Scale Mixture Perspective of Multiplicative Noise in Neural Networks, 2015.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

import torch
from torch import Tensor

from snncompress.errors import UsageError
from snncompress.noise.branch import Branch, Layer, Reach, precise


class Distribution(StrEnum):
    """Of the factors."""

    BERNOULLI = "bernoulli"
    GAUSSIAN = "gaussian"
    BETA = "beta"


@dataclass(frozen=True)
class Options:
    """The distribution, and how far it reaches."""

    noise: Distribution = Distribution.BERNOULLI
    rate: float = 0.5  # p

    def __post_init__(self) -> None:
        if not 0 < self.rate < 1:
            raise UsageError(f"method dropout: option rate={self.rate:g} is out of range; give one between 0 and 1")


class NoiseBranch(Branch):
    """λ on the input of one layer."""

    reach: ClassVar[Reach] = Reach.INNER

    def __init__(self, layer: Layer, options: Options, *, normed: bool) -> None:
        super().__init__()
        self.options = options

    def sample(self, layer: Layer, x: Tensor) -> Tensor:
        """The layer, reading noisy units."""
        return self.mean(layer, x * self._factors(x))

    def _factors(self, x: Tensor) -> Tensor:
        keep = 1 - self.options.rate
        if self.options.noise is Distribution.BERNOULLI:
            return torch.empty_like(x).bernoulli_(keep).div_(keep)
        if self.options.noise is Distribution.GAUSSIAN:
            return torch.randn_like(x).mul_((self.options.rate / keep) ** 0.5).add_(1)
        # By two gammas: torch's own Beta has neither half precision nor a meta device.
        shapes = precise(x).new_tensor([keep, self.options.rate])
        m, rest = (torch.distributions.Gamma(a, 1.0, validate_args=False).sample(x.shape) for a in shapes)
        return (m / (m + rest) / keep).to(x.dtype)
