"""The layers that names or globs choose, and those whose weights can be zero, for sparse files and training."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from snncompress.errors import unknown_name


def match_layers(patterns: Iterable[str], known: Iterable[str]) -> list[str]:
    """The known layers that names or globs choose, in their order; a pattern that chooses none is refused."""
    names, chosen = list(known), set[str]()
    for pattern in patterns:
        found = fnmatch.filter(names, pattern)
        if not found:
            raise unknown_name("layer", pattern, names)
        chosen.update(found)
    return [name for name in names if name in chosen]


def weight_layers(model: nn.Module) -> dict[str, nn.Conv2d | nn.Linear]:
    """All convolutions and linear layers that hold a weight of their own; one that two share counts once."""
    seen: set[int] = set()
    found = {}
    for name, module in model.named_modules():
        if not isinstance(module, nn.Conv2d | nn.Linear):
            continue
        weight = module._parameters.get("weight")  # None where it is computed (weight norm, say)
        if weight is not None and id(weight) not in seen:
            seen.add(id(weight))
            found[name] = module
    return found


def find_zeros(model: nn.Module) -> dict[str, Tensor]:
    """Where the weights of convolutions and linear layers are zero, by the name of the parameter."""
    return {f"{name}.weight": layer.weight.detach() == 0 for name, layer in weight_layers(model).items()}


@torch.no_grad()
def fill_zeros(model: nn.Module, zeros: dict[str, Tensor]) -> None:
    """Sets weights to zero where ``find_zeros`` said so, in place."""
    for name, zero in zeros.items():
        model.get_parameter(name).masked_fill_(zero, 0.0)
