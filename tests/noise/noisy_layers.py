"""Layers of every kind, branches of every kind, and the moments of a linear map, for the tests of noise."""

from __future__ import annotations

import copy
import math
from dataclasses import fields
from enum import StrEnum
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Normal

from snncompress import registry
from snncompress.noise.attach import make_options

METHODS = list(registry.entries("methods"))

torch.manual_seed(0)  # the layers below are made on import, whose order must not matter
LAYERS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "linear": (nn.Linear(7, 5), (7,)),
    "linear without bias": (nn.Linear(7, 5, bias=False), (7,)),
    "linear on tokens": (nn.Linear(7, 5), (6, 7)),
    "conv": (nn.Conv2d(4, 6, 3), (4, 9, 8)),
    "stride, padding": (nn.Conv2d(4, 6, (3, 5), stride=(2, 1), padding=(1, 2), bias=False), (4, 9, 8)),
    "dilation": (nn.Conv2d(4, 6, 3, dilation=2, padding="same"), (4, 9, 8)),
    "groups": (nn.Conv2d(4, 6, 3, groups=2), (4, 9, 8)),
    "depthwise": (nn.Conv2d(4, 4, 3, groups=4, padding=1), (4, 9, 8)),
    "reflect": (nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect"), (4, 9, 8)),
    "circular": (nn.Conv2d(4, 6, 3, padding=1, padding_mode="circular"), (4, 9, 8)),
}


def _variants() -> dict[str, tuple[str, dict[str, str]]]:
    """Every method with every combination of its closed choices."""
    found = {}
    for method in METHODS:
        choices = {f.name: type(f.default) for f in fields(registry.load("methods", method).Options)}
        choices = {name: kind for name, kind in choices.items() if issubclass(kind, StrEnum)}
        for values in product(*choices.values()):
            options = {name: str(value) for name, value in zip(choices, values, strict=True)}
            found[" ".join([method, *options.values()])] = (method, options)
    return found


VARIANTS = _variants()


def make_layer(name: str, images: int = 3, dtype: torch.dtype = torch.float64) -> tuple[Any, Tensor]:
    """A copy of a layer of the table, and an input for it."""
    layer, shape = LAYERS[name]
    return copy.deepcopy(layer).to(dtype), torch.randn(images, *shape, dtype=dtype)


def make_branch(layer: Any, variant: str, **options: Any) -> Any:
    """A variant's branch, whose parameters differ from one element to the next."""
    method, chosen = VARIANTS[variant]
    values = make_options(method, chosen | options)
    branch: Any = registry.load("methods", method).NoiseBranch.for_options(values)(layer, values, normed=False)
    with torch.no_grad():
        for parameter in branch.parameters():
            parameter.add_(torch.randn_like(parameter))
    return branch


def with_weight(layer: Any, weight: Tensor, x: Tensor) -> Tensor:
    """The output of the layer, if that were its weight; written out, not by the layer's or the noise's own way."""
    if isinstance(layer, nn.Linear):
        return F.linear(x, weight, layer.bias)
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    x = F.pad(x, layer._reversed_padding_repeated_twice, mode=mode)
    return F.conv2d(x, weight, layer.bias, layer.stride, 0, layer.dilation, layer.groups)


@torch.no_grad()
def output_moments(layer: Any, x: Tensor, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Exact mean and variance of the layer's output for independent weights with these moments.

    The output is linear in the weights: what each of them adds is seen by setting it to 1, and the others to 0.
    """
    none = center = with_weight(layer, torch.zeros_like(mean), x)
    spread = torch.zeros_like(center)
    effect = torch.zeros_like(mean)
    alone = effect.view(-1)
    for i, (m, v) in enumerate(zip(mean.flatten().tolist(), variance.flatten().tolist(), strict=True)):
        alone[i] = 1
        added = with_weight(layer, effect, x) - none
        alone[i] = 0
        center, spread = center + m * added, spread + v * added.square()
    return center, spread


def assert_moments(samples: Tensor, mean: Tensor, variance: Tensor) -> None:
    """Samples (count, ...) have these moments, within 7 standard errors: of 100,000 elements none strays so far."""
    count, errors = len(samples), samples - mean
    assert float((errors.mean(0) / variance.sqrt()).abs().max()) < 7 / count**0.5
    spread = (errors.square() - variance).square().mean(0).sqrt()  # of the squares, whatever the distribution
    off = (errors.square().mean(0) - variance).abs()
    assert bool((off <= 7 * spread / count**0.5 + 1e-12 * variance).all())


def mean_log(log_alpha: Tensor) -> Tensor:
    """E log|1 + √α·ε| in double precision.

    Over t = 1 + √α·ε = ±exp(u) the integrand has no singularity, and the trapezoid rule converges like a Fourier
    series.
    """
    deviation = (0.5 * log_alpha).exp().unsqueeze(1)
    u = torch.linspace(-45, 9, 20_001, dtype=torch.float64)
    density = sum(Normal(1.0, deviation).log_prob(sign * u.exp()).exp() for sign in (1, -1))
    return torch.trapezoid(u * u.exp() * density, u)


def kl_exact(log_alpha: Tensor) -> Tensor:
    """KL to the log-uniform prior, 0 for an infinite α: −½·log α + E log|1 + √α·ε| − E log|ε|."""
    return -0.5 * log_alpha + mean_log(log_alpha) + 0.5 * (math.log(2) + 0.5772156649015329)
