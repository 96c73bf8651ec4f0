"""The widths of a compact model as data: read from one model, set on a fresh build of its architecture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from snncompress.errors import ModelError

# What compaction may change, by layer type. A module of the zoo or of the user's that needs more
# (the padding of a shortcut) names its attributes in a class attribute `shape_attributes`.
ATTRIBUTES: dict[type[nn.Module], tuple[str, ...]] = {
    nn.Conv2d: ("in_channels", "out_channels", "groups"),
    nn.Linear: ("in_features", "out_features"),
    nn.BatchNorm1d: ("num_features",),
    nn.BatchNorm2d: ("num_features",),
    nn.GroupNorm: ("num_channels", "num_groups"),
}

Shapes = dict[str, dict[str, Any]]


def shape_attributes(module: nn.Module) -> tuple[str, ...]:
    """The names of a module's attributes that hold its widths."""
    for kind, attributes in ATTRIBUTES.items():
        if isinstance(module, kind):
            return attributes
    return tuple(getattr(module, "shape_attributes", ()))


def record_shapes(model: nn.Module) -> Shapes:
    """The widths of every module that has any, JSON-able."""
    return {
        name: {attribute: getattr(module, attribute) for attribute in shape_attributes(module)}
        for name, module in model.named_modules()
        if shape_attributes(module)
    }


def restore(model: nn.Module, shapes: Shapes, tensors: Mapping[str, Tensor]) -> None:
    """Turns a fresh build of the architecture into the compact model, in place.

    Args:
        model: as its builder returns it.
        shapes: what ``record_shapes`` said of the compact model.
        tensors: the compact model's state dict.
    """
    modules = dict(model.named_modules())
    for name, attributes in shapes.items():
        if name not in modules:
            raise ModelError(f"the recorded model has a layer '{name}' that its architecture lacks")
        for attribute, value in attributes.items():
            setattr(modules[name], attribute, value)
    for name, tensor in tensors.items():
        owner, _, leaf = name.rpartition(".")
        module = modules.get(owner)
        old = getattr(module, leaf, None) if module is not None else None
        if module is None or not isinstance(old, Tensor) or old.shape == tensor.shape:
            continue
        fresh = torch.empty_like(tensor, device=old.device)
        if isinstance(old, nn.Parameter):
            setattr(module, leaf, nn.Parameter(fresh, requires_grad=old.requires_grad))
        else:
            setattr(module, leaf, fresh)
    try:
        model.load_state_dict(dict(tensors), strict=True)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise ModelError(f"the recorded weights do not fit their architecture: {reason}") from error
