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

With ``place=input`` the noise is on what a layer reads, z = h + ε·softplus(f_σ(h)): μ is h itself, f_σ maps the inputs
to as many, at each position alike. So a stochastic layer stands before a classifier, where nothing else does: for
calibration (Eq. 8).

Yu, Yang, Li, Hospedales, Xiang: Simple and Effective Stochastic Neural Networks, AAAI 2021.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from snncompress.errors import UsageError
from snncompress.noise.branch import Branch, Layer, Reach, apply, precise
from snncompress.noise.products import open_product, standard_normal

SIGMA_FLOOR = 1e-10  # keeps log σ finite where softplus underflows
QUARTILES = torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64)


class Aggregate(StrEnum):
    """Over what log σ is averaged before it is compared with the margin."""

    NEURON = "neuron"  # samples and positions, for each neuron: finds neurons that can go
    SAMPLE = "sample"  # neurons and positions, for each sample: finds samples that are odd
    BOTH = "both"  # nothing: every neuron of every sample is pushed to be noisy


class Place(StrEnum):
    """Where a layer's noise enters."""

    OUTPUT = "output"  # what the layer makes, before its activation: its neurons become stochastic
    INPUT = "input"  # what the layer reads, as it comes


@dataclass(frozen=True)
class Options:
    """The paper's values for pruning."""

    aggregate: Aggregate = Aggregate.NEURON
    place: Place = Place.OUTPUT
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


class SigmaBranch(Branch):
    """f_σ, its penalty and its statistics, wherever the noise enters."""

    def __init__(self, options: Options, weight: Tensor) -> None:
        """Takes the weight of f_σ, (K, ...)."""
        super().__init__()
        self.options = options
        self.weight = nn.Parameter(weight)
        start = math.log(math.expm1(math.exp(options.log_sigma)))  # softplus(start) = exp(log_sigma)
        self.bias = nn.Parameter(weight.new_full((len(weight),), start))
        self._omega: list[Tensor] = []  # Ω of each forward pass since the last penalty
        self._observed = 0  # values that the sums over samples and positions hold
        self._log_sigma: Tensor  # such a sum, (K,)
        self.forget()

    @abstractmethod
    def raw(self, layer: Layer, x: Tensor) -> Tensor:
        """f_σ(x) before its softplus."""

    def sigma(self, layer: Layer, x: Tensor) -> Tensor:
        """σ for the input of the layer."""
        return sigma_of(self.raw(layer, x))

    def _charge(self, mean: Tensor, raw: Tensor, log_sigma: Tensor) -> None:
        """Adds the Ω of a forward pass to what the next penalty asks for."""
        if self._learns():
            self._omega.append(self._cost(mean, raw, log_sigma))

    def _learns(self) -> bool:
        """Whether somebody will ask for the penalty: not where gradients are for the inputs alone."""
        return self.training and torch.is_grad_enabled()

    def _cost(self, mean: Tensor, raw: Tensor, log_sigma: Tensor) -> Tensor:
        """Ω of one forward pass."""
        return F.relu(self.options.margin - log_sigma).mean()

    def _averaged(self, layer: Layer, raw: Tensor) -> list[int]:
        """The axes over which log σ is averaged before it is compared with the margin."""
        if self.options.aggregate is Aggregate.BOTH:
            return []  # Eq. 7
        neurons = raw.dim() - (3 if isinstance(layer, nn.Conv2d) else 1)
        kept = neurons if self.options.aggregate is Aggregate.NEURON else 0  # Eq. 5, Eq. 6
        return [axis for axis in range(raw.dim()) if axis != kept]

    def observe(self, layer: Layer, x: Tensor) -> None:
        """Adds this batch to the mean of log σ."""
        self._observe(_per_neuron(layer, self.sigma(layer, x)))

    def _observe(self, sigma: Tensor) -> None:
        self._log_sigma = self._log_sigma + _sum(sigma.log())
        self._observed += sigma.shape[1]

    def forget(self) -> None:
        """Drops all sums over what was observed."""
        self._log_sigma, self._observed = torch.zeros((), dtype=torch.float64), 0

    def _mean_log_sigma(self) -> Tensor:
        return self._log_sigma / max(self._observed, 1)

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
        low, middle, high = self._mean_log_sigma().quantile(QUARTILES).tolist()
        return {"log_sigma_25": low, "log_sigma_50": middle, "log_sigma_75": high}


class NoiseBranch(SigmaBranch):
    """f_σ of one layer, and the sampling of what it makes."""

    _sigma2: Tensor  # sums over samples and positions, (K,)
    _mu: Tensor
    _mu2: Tensor

    def __init__(self, layer: Layer, options: Options, *, normed: bool) -> None:
        # Zero weights: at first every σ is the same whatever the input, and the mean is barely disturbed.
        super().__init__(options, torch.zeros_like(layer.weight))
        self.normed = normed
        self.axes = {"weight": ("out", "in"), "bias": ("out",)}
        self._noise: Tensor | None = None  # waits for the batch norm that follows

    @classmethod
    def for_options(cls, options: Any) -> type[Branch]:
        """The branch of the place where the noise enters."""
        return InputBranch if options.place is Place.INPUT else cls

    def sample(self, layer: Layer, x: Tensor) -> Tensor:
        """Eq. 1."""
        mean, raw = self._mean_and_raw(layer, x)
        sample, log_sigma = perturb(None if self.normed else mean, raw, self._averaged(layer, raw))
        self._charge(mean, raw, log_sigma)
        if not self.normed:
            return sample
        self._noise = sample
        return mean

    def after_norm(self, normalized: Tensor) -> Tensor:
        """The noise enters after the batch norm."""
        noise, self._noise = self._noise, None
        return normalized if noise is None else normalized + noise

    def _mean_and_raw(self, layer: Layer, x: Tensor) -> tuple[Tensor, Tensor]:
        """f_μ(x) and f_σ(x) before its softplus."""
        # Not one product with doubled outputs: putting weights together and gradients apart takes what it saves.
        arranged, multiply = open_product(layer, x)
        return multiply(arranged, layer.weight, layer.bias), multiply(arranged, self.weight, self.bias)

    def raw(self, layer: Layer, x: Tensor) -> Tensor:
        """The layer's own operation with other weights."""
        return apply(layer, x, self.weight, self.bias)

    def _observe(self, sigma: Tensor) -> None:
        super()._observe(sigma)
        self._sigma2 = self._sigma2 + _sum(sigma.square())

    def observe_mean(self, mean: Tensor) -> None:
        """Adds this batch to the mean and the variance of μ."""
        values = precise(mean).movedim(-3 if self.weight.dim() == 4 else -1, 0).flatten(1)
        self._mu, self._mu2 = self._mu + _sum(values), self._mu2 + _sum(values.square())

    def forget(self) -> None:
        """Drops all sums over what was observed."""
        super().forget()
        nothing = torch.zeros((), dtype=torch.float64)
        self._sigma2, self._mu, self._mu2 = nothing, nothing, nothing

    def mean_log_sigma(self) -> Tensor:
        """Mean log σ of each neuron over what was observed, (K,)."""
        return self._mean_log_sigma()

    def importance(self) -> Tensor:
        """(b − mean log σ)⁺ of each neuron, what it pays to stay reliable, (K,)."""
        return F.relu(self.options.margin - self.mean_log_sigma())

    def information(self) -> Tensor:
        """½·log(1 + Var μ / E σ²) of each neuron, the nats that get through its noise, (K,)."""
        count = max(self._observed, 1)
        variance = (self._mu2 / count - (self._mu / count).square()).clamp_min(0)
        return 0.5 * torch.log1p(variance / (self._sigma2 / count))


class InputBranch(SigmaBranch):
    """f_σ on what one layer reads, and the sampling of that; it says nothing about what the layer makes."""

    reach: ClassVar[Reach] = Reach.CLASSIFIER

    def __init__(self, layer: Layer, options: Options, *, normed: bool) -> None:
        inputs = layer.in_channels if isinstance(layer, nn.Conv2d) else layer.in_features
        super().__init__(options, layer.weight.new_zeros(inputs, inputs))
        self.axes = {"weight": ("read", "read"), "bias": ("read",)}

    def sample(self, layer: Layer, x: Tensor) -> Tensor:
        """The layer, reading z = x + ε·σ."""
        raw = self.raw(layer, x)
        z, log_sigma = perturb(x, raw, self._averaged(layer, raw))
        self._charge(x, raw, log_sigma)
        return self.mean(layer, z)

    def raw(self, layer: Layer, x: Tensor) -> Tensor:
        """A linear map of the inputs, at each position alike."""
        if isinstance(layer, nn.Conv2d):
            return F.conv2d(x, self.weight[:, :, None, None], self.bias)
        return F.linear(x, self.weight, self.bias)


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


def _per_neuron(layer: Layer, values: Tensor) -> Tensor:
    """(B, K, H, W) or (B, ..., K) → (K, samples and positions)."""
    return values.movedim(-3 if isinstance(layer, nn.Conv2d) else -1, 0).flatten(1)


def _sum(values: Tensor) -> Tensor:
    return values.sum(1).cpu().double()  # Apple's devices have no double


def sigma_of(raw: Tensor) -> Tensor:
    """σ = softplus(raw), in float32 at least."""
    return F.softplus(precise(raw)).clamp_min_(SIGMA_FLOOR)
