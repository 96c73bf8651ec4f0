"""``se-snn``: Gaussian noise on every neuron's pre-activation, pushed to high entropy.

For the input h of a layer (Eq. 1):

    μ = f_μ(h),   σ = softplus(f_σ(h)),   z = μ + ε·σ,   ε ~ N(0, 1)

f_μ is the layer itself, with the batch norm that follows it where there is one; f_σ is a layer of the same
shape. The max-entropy penalty of a layer with K neurons j over N samples (and positions) i, aggregated a neuron
(Eq. 5), a sample (Eq. 6) or a value (Eq. 7), and the loss (Eq. 9):

    neuron   Ω = 1/K Σ_j (b − 1/N Σ_i log σ_ij)⁺
    sample   Ω = 1/N Σ_i (b − 1/K Σ_j log σ_ij)⁺
    both     Ω = 1/NK Σ_ij (b − log σ_ij)⁺
    L = L_cl + ω Σ_layers Ω

Neurons that the task needs pay the penalty to stay reliable; the others drown in noise, turn their mean
negative, and can be removed. Without the branch the layer computes μ: the deterministic network.

Yu, Yang, Li, Hospedales, Xiang: Simple and Effective Stochastic Neural Networks, AAAI 2021.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from snncompress.errors import UsageError
from snncompress.noise.branch import Branch, Layer, apply, precise
from snncompress.noise.products import open_product, standard_normal

SIGMA_FLOOR = 1e-10  # keeps log σ finite where softplus underflows
QUARTILES = torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64)


class Aggregate(StrEnum):
    """Over what log σ is averaged before it is compared with the margin."""

    NEURON = "neuron"  # samples and positions, for each neuron: finds neurons that can go
    SAMPLE = "sample"  # neurons and positions, for each sample: finds samples that are odd
    BOTH = "both"  # nothing: every neuron of every sample is pushed to be noisy


@dataclass(frozen=True)
class Options:
    """The paper's values for pruning."""

    aggregate: Aggregate = Aggregate.NEURON
    omega: float = 0.01  # ω, the weight of the penalty
    margin: float = 4.0  # b, above which entropy costs nothing
    log_sigma: float = -3.0  # where log σ starts

    def __post_init__(self) -> None:
        for name, value, allowed in (
            ("omega", self.omega, 0 <= self.omega < math.inf),
            ("margin", self.margin, math.isfinite(self.margin)),
            ("log_sigma", self.log_sigma, -20 <= self.log_sigma <= 5),  # softplus can be inverted there
        ):
            if not allowed:
                raise UsageError(f"method se-snn: option {name}={value:g} is out of range")


class NoiseBranch(Branch):
    """f_σ of one layer, and the sampling."""

    def __init__(self, layer: Layer, options: Options, *, normed: bool) -> None:
        super().__init__()
        self.options = options
        self.normed = normed
        # Zero weights: at first every σ is the same whatever the input, and the mean is barely disturbed.
        self.weight = nn.Parameter(torch.zeros_like(layer.weight))
        start = math.log(math.expm1(math.exp(options.log_sigma)))  # softplus(start) = exp(log_sigma)
        self.bias = nn.Parameter(layer.weight.new_full((len(layer.weight),), start))
        self.axes = {"weight": ("out", "in"), "bias": ("out",)}
        self._noise: Tensor | None = None  # waits for the batch norm that follows
        self._omega: list[Tensor] = []  # Ω of each forward pass since the last penalty
        self._observed = 0  # values that the sums over samples and positions hold
        self._log_sigma: Tensor
        self._sigma2: Tensor
        self._mu: Tensor
        self._mu2: Tensor
        self.forget()

    def sample(self, layer: Layer, x: Tensor) -> Tensor:
        """Eq. 1."""
        mean, raw = self._mean_and_raw(layer, x)
        sample, log_sigma = perturb(None if self.normed else mean, raw, self._averaged(layer, raw))
        if self._learns():
            self._omega.append(self._cost(layer, mean, raw, log_sigma))
        if not self.normed:
            return sample
        self._noise = sample
        return mean

    def _learns(self) -> bool:
        """Whether somebody will ask for the penalty: not where gradients are for the inputs alone."""
        return self.training and torch.is_grad_enabled()

    def _cost(self, layer: Layer, mean: Tensor, raw: Tensor, log_sigma: Tensor) -> Tensor:
        """Ω of one forward pass."""
        return F.relu(self.options.margin - log_sigma).mean()

    def _averaged(self, layer: Layer, raw: Tensor) -> list[int]:
        """The axes over which log σ is averaged before it is compared with the margin."""
        if self.options.aggregate is Aggregate.BOTH:
            return []  # Eq. 7
        neurons = raw.dim() - (3 if isinstance(layer, nn.Conv2d) else 1)
        kept = neurons if self.options.aggregate is Aggregate.NEURON else 0  # Eq. 5, Eq. 6
        return [axis for axis in range(raw.dim()) if axis != kept]

    def after_norm(self, normalized: Tensor) -> Tensor:
        """The noise enters after the batch norm."""
        noise, self._noise = self._noise, None
        return normalized if noise is None else normalized + noise

    def _mean_and_raw(self, layer: Layer, x: Tensor) -> tuple[Tensor, Tensor]:
        """f_μ(x) and f_σ(x) before its softplus."""
        # Not one product with doubled outputs: putting weights together and gradients apart takes what it saves.
        arranged, multiply = open_product(layer, x)
        return multiply(arranged, layer.weight, layer.bias), multiply(arranged, self.weight, self.bias)

    def observe(self, layer: Layer, x: Tensor) -> None:
        """Adds this batch to the mean of log σ."""
        sigma = self._per_neuron(sigma_of(apply(layer, x, self.weight, self.bias)))
        self._log_sigma = self._log_sigma + _sum(sigma.log())
        self._sigma2 = self._sigma2 + _sum(sigma.square())
        self._observed += sigma.shape[1]

    def observe_mean(self, mean: Tensor) -> None:
        """Adds this batch to the mean and the variance of μ."""
        values = self._per_neuron(precise(mean))
        self._mu, self._mu2 = self._mu + _sum(values), self._mu2 + _sum(values.square())

    def forget(self) -> None:
        """Drops all sums over what was observed."""
        nothing = torch.zeros((), dtype=torch.float64)
        self._log_sigma, self._sigma2, self._mu, self._mu2, self._observed = nothing, nothing, nothing, nothing, 0

    def mean_log_sigma(self) -> Tensor:
        """Mean log σ of each neuron over what was observed, (K,)."""
        return self._log_sigma / max(self._observed, 1)

    def importance(self) -> Tensor:
        """(b − mean log σ)⁺ of each neuron, what it pays to stay reliable, (K,)."""
        return F.relu(self.options.margin - self.mean_log_sigma())

    def _per_neuron(self, values: Tensor) -> Tensor:
        """(B, K, H, W) or (B, ..., K) → (K, samples and positions)."""
        return values.movedim(-3 if self.weight.dim() == 4 else -1, 0).flatten(1)

    def information(self) -> Tensor:
        """½·log(1 + Var μ / E σ²) of each neuron, the nats that get through its noise, (K,)."""
        count = max(self._observed, 1)
        variance = (self._mu2 / count - (self._mu / count).square()).clamp_min(0)
        return 0.5 * torch.log1p(variance / (self._sigma2 / count))

    def penalty(self, layer: Layer) -> Tensor:
        """ω·Ω."""
        omega, self._omega = self._omega, []
        if not omega:
            return torch.zeros((), device=self.bias.device)
        return self.options.omega * torch.stack(omega).sum()

    def summary(self, layer: Layer) -> dict[str, float]:
        """Quartiles of mean log σ over the neurons."""
        if not self._observed:
            return {}
        low, middle, high = self.mean_log_sigma().quantile(QUARTILES).tolist()
        return {"log_sigma_25": low, "log_sigma_50": middle, "log_sigma_75": high}


class _Perturb(torch.autograd.Function):
    """mean + ε·σ, and the mean of log σ over some axes, for σ = softplus(raw).

    Keeps two tensors for the way back: d sample / d raw = ε·sigmoid(raw) and d log σ / d raw = sigmoid(raw)/σ. The
    latter is not cut off at the floor of σ, so that what fell below it can come back.
    """

    @staticmethod
    def forward(ctx: Any, mean: Tensor | None, raw: Tensor, axes: list[int]) -> tuple[Tensor, Tensor]:
        sigma = sigma_of(raw)
        log_sigma = sigma.log()
        if axes:
            log_sigma = log_sigma.mean(axes, keepdim=True)
        noise = standard_normal(sigma)
        sample = noise * sigma if mean is None else torch.addcmul(mean.to(sigma.dtype), noise, sigma)
        slope = torch.sigmoid(precise(raw))
        ctx.save_for_backward(noise.mul_(slope), slope.div_(sigma))
        return sample.to(raw.dtype), log_sigma

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, by_sample: Tensor, by_log_sigma: Tensor) -> tuple[Tensor | None, Tensor, None]:
        to_sample, to_log_sigma = ctx.saved_tensors
        share = by_log_sigma * (by_log_sigma.numel() / to_sample.numel())  # of every value in its average
        by_raw = (by_sample.to(to_sample.dtype) * to_sample).addcmul_(to_log_sigma, share)
        return by_sample if ctx.needs_input_grad[0] else None, by_raw.to(by_sample.dtype), None


def perturb(mean: Tensor | None, raw: Tensor, axes: list[int]) -> tuple[Tensor, Tensor]:
    """A sample of N(mean, softplus(raw)²), or its noise alone, and the mean of log σ over the axes, which are kept."""
    pair: tuple[Tensor, Tensor] = _Perturb.apply(mean, raw, axes)
    return pair


def _sum(values: Tensor) -> Tensor:
    return values.sum(1).cpu().double()  # Apple's devices have no double


def sigma_of(raw: Tensor) -> Tensor:
    """σ = softplus(raw), in float32 at least."""
    return F.softplus(precise(raw)).clamp_min_(SIGMA_FLOOR)
