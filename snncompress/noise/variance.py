"""``variance``: zero-mean weights; all that the layer knows is stored in their variances.

    gaussian    w = σ·ε,         ε ~ N(0, 1): sampled by local reparameterization, b = ε·√(layer(a²; σ²) + 1e-8)
    bernoulli   w = σ·(2ε − 1),  ε ~ Bernoulli(½)
    uniform     w = σ·ε,         ε ~ U(−1, 1)

(Eq. 4 and §3.3.) The layer's own weight is not used; its bias is. The last two are sampled as weights, one set a
batch, with independent signs for each image's inputs and outputs, which leaves every image its exact distribution
(flipout; Wen et al. 2018). There is no penalty: the KL to the log-uniform prior is the same for every σ (Appendix F),
0 with the constant of ``vd``. By mean propagation such a network guesses: predict by averaging over samples.

Neklyudov, Molchanov, Ashukha, Vetrov: Variance Networks, ICLR 2019.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

import torch
from torch import Tensor, nn

from snncompress.errors import UsageError
from snncompress.noise.branch import Layer, Mode, Reach, apply
from snncompress.noise.weights import SILENT, WeightBranch, along_outputs, extremes


class Distribution(StrEnum):
    """Of the weights around zero."""

    GAUSSIAN = "gaussian"
    BERNOULLI = "bernoulli"
    UNIFORM = "uniform"


@dataclass(frozen=True)
class Options:
    """The distribution, and where its scale starts."""

    noise: Distribution = Distribution.GAUSSIAN
    scale: float = 1.0  # σ starts at this multiple of the layer's own |weight|: no two neurons are alike

    def __post_init__(self) -> None:
        if not 0 < self.scale < math.inf:
            raise UsageError(f"method variance: option scale={self.scale:g} is out of range; give a number above 0")


class NoiseBranch(WeightBranch):
    """log σ of one layer's weights."""

    reach: ClassVar[Reach] = Reach.FIRST_LINEAR
    watched: ClassVar[tuple[Mode, ...]] = (Mode.SAMPLE,)

    def __init__(self, layer: Layer, options: Options, *, normed: bool) -> None:
        super().__init__()
        self.options = options
        weight = layer.weight.detach()
        size = weight.square().mean().sqrt()
        least = torch.where(size > 0, 0.1 * size, weight[0].numel() ** -0.5)  # the logarithm of 0 never learns
        self.log_sigma = nn.Parameter((weight.abs().maximum(least) * options.scale).log())
        self.axes = {"log_sigma": ("out", "in")}

    def moments(self, layer: Layer) -> tuple[Tensor, Tensor]:
        """Zero, and the variance."""
        third = 1 / 3 if self.options.noise is Distribution.UNIFORM else 1.0
        return torch.zeros_like(layer.weight), (2 * self.log_sigma).exp() * third

    def sample(self, layer: Layer, x: Tensor) -> Tensor:
        """Gaussian: by local reparameterization. Others: by sampled weights."""
        if self.options.noise is Distribution.GAUSSIAN:
            return self.sample_zero(layer, x)
        sigma = self.log_sigma.exp()
        noise = signs(sigma) if self.options.noise is Distribution.BERNOULLI else torch.rand_like(sigma) * 2 - 1
        flipped = apply(layer, x * signs(_units(layer, x)), sigma * noise, None)
        flipped = flipped * signs(_units(layer, flipped))
        return flipped + along_outputs(layer, layer.bias, flipped)

    @torch.no_grad()
    def silence(self, layer: Layer, gone: Tensor) -> None:
        """Their variance is zero."""
        self.log_sigma.masked_fill_(gone, SILENT)

    def penalty(self, layer: Layer) -> Tensor:
        """None: the KL does not depend on σ."""
        return layer.weight.new_zeros(())

    def kl(self, layer: Layer) -> Tensor:
        """Constant, and zero as for an infinite α."""
        return layer.weight.new_zeros(())

    def hollow(self, layer: Layer) -> bool:
        """By construction."""
        return True

    def summary(self, layer: Layer) -> dict[str, float]:
        """Mean and extremes of log σ."""
        return extremes("log_sigma", self.log_sigma)


def signs(like: Tensor) -> Tensor:
    """+1 or −1 with equal chances."""
    return torch.randint_like(like, 2) * 2 - 1


def _units(layer: Layer, values: Tensor) -> Tensor:
    """One value for each image and unit: all its positions, or tokens, share a sign, as they share the weights."""
    return values[..., :1, :1] if isinstance(layer, nn.Conv2d) else values[:, *[slice(1)] * (values.dim() - 2)]
