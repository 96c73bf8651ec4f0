"""Mean and deviation of every weight, wherever the noise or the samples of a run keep them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from snncompress.models.layers import weight_layers
from snncompress.noise.attach import Noise
from snncompress.noise.weights import WeightBranch


class Moments(NamedTuple):
    """Of the weights of one layer, in the weight's shape."""

    mean: Tensor
    deviation: Tensor


@torch.no_grad()
def weight_moments(model: nn.Module, noise: Noise | None, posterior: Mapping[str, Tensor] | None) -> dict[str, Moments]:
    """The moments of all layers whose weights have a distribution.

    Args:
        model: convolutions and linear layers with the means (where noise masks some, it is asked).
        noise: branches; those on weights know a deviation.
        posterior: sampled ``NAME.variance``; the mean is the weight itself, which fine-tuning may have moved.
    """
    found: dict[str, Moments] = {}
    for name, layer in weight_layers(model).items():
        branch = None if noise is None else noise.branches.get(name)
        sampled = (posterior or {}).get(f"{name}.weight.variance")
        if isinstance(branch, WeightBranch):
            mean, variance = branch.moments(layer)
            found[name] = Moments(mean.detach(), variance.detach().sqrt())
        elif sampled is not None:
            found[name] = Moments(layer.weight.detach(), sampled.to(layer.weight.device).sqrt())
    return found
