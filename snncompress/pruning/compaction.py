"""Physical removal: plain layers lose the channels of the removed neurons, on a copy of the model."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from snncompress.errors import UsageError
from snncompress.noise.attach import Noise
from snncompress.noise.branch import Layer
from snncompress.pruning.coupling import Group, touched


@dataclass(frozen=True)
class Removal:
    """Which outputs and inputs of which layers go, and which channels of which norms and paddings."""

    outputs: dict[str, set[int]]
    norms: dict[str, set[int]]
    inputs: dict[str, set[int]]
    pads: dict[str, set[int]]


def _kept(name: str, size: int, gone: set[int] | None) -> Tensor | None:
    if gone and len(gone) == size:
        raise UsageError(f"layer {name} would be left with nothing; keep at least one of its {size} channels")
    return torch.tensor([i for i in range(size) if i not in gone]) if gone else None


def _cut(tensor: Tensor, *kept: Tensor | None) -> Tensor:
    """Keeps the given indices along each leading axis; None keeps all."""
    for axis, indices in enumerate(kept):
        if indices is not None:
            tensor = tensor.index_select(axis, indices.to(tensor.device))
    return tensor


Cuts = dict[str, Callable[[Tensor], Tensor]]


def compact(model: nn.Module, groups: Iterable[Group], noise: Noise | None = None) -> tuple[nn.Module, Cuts]:
    """Returns a smaller copy of a plain model, and how each parameter was cut, for an optimizer's moments.

    Args:
        model: without attached branches.
        groups: the neurons to remove.
        noise: detached branches of the model, which are shrunk along, in place.
    """
    removal = Removal(*touched(groups))
    smaller = copy.deepcopy(model)
    cuts: Cuts = {}
    for name, module in smaller.named_modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            _cut_layer(module, name, removal, noise, cuts)
        elif removal.norms.get(name):
            _cut_norm(module, name, removal.norms[name], cuts)
        elif removal.pads.get(name):
            gone = removal.pads[name]
            before = sum(channel < module.pad_before for channel in gone)  # type: ignore[operator]
            module.pad_before -= before  # type: ignore[operator]
            module.pad_after -= len(gone) - before  # type: ignore[operator]
    return smaller, cuts


def _cut_layer(module: Layer, name: str, removal: Removal, noise: Noise | None, cuts: Cuts) -> None:
    groups = getattr(module, "groups", 1)
    kept_out = _kept(name, module.weight.shape[0], removal.outputs.get(name))
    kept_in = kept_read = _kept(name, module.weight.shape[1] * groups, removal.inputs.get(name))
    if groups > 1:  # whole groups go: those that stay read as much as before
        inputs = module.weight.shape[1] * groups if kept_in is None else len(kept_in)
        module.groups, kept_in = inputs // module.weight.shape[1], None
    _cut_module(module, name, {"weight": (kept_out, kept_in), "bias": (kept_out,)}, cuts)
    outs, ins = module.weight.shape[:2]
    if isinstance(module, nn.Conv2d):
        module.out_channels, module.in_channels = outs, ins * module.groups
    else:
        module.out_features, module.in_features = outs, ins
    if noise is not None and name in noise.branches:
        _cut_branch(noise, name, {"out": kept_out, "in": kept_in, "read": kept_read, "": None}, cuts)


def _cut_norm(module: nn.Module, name: str, gone: set[int], cuts: Cuts) -> None:
    size = module.num_channels if isinstance(module, nn.GroupNorm) else module.num_features
    kept = _kept(name, size, gone)  # type: ignore[arg-type]
    assert kept is not None
    leaves = [leaf for leaf in ("weight", "bias", "running_mean", "running_var") if hasattr(module, leaf)]
    _cut_module(module, name, dict.fromkeys(leaves, (kept,)), cuts)
    if isinstance(module, nn.GroupNorm):
        a_group = module.num_channels // module.num_groups
        module.num_channels, module.num_groups = len(kept), len(kept) // a_group
    else:
        module.num_features = len(kept)  # type: ignore[assignment]


def _cut_module(module: nn.Module, name: str, axes: dict[str, tuple[Tensor | None, ...]], cuts: Cuts) -> None:
    for leaf, kept in axes.items():
        tensor = getattr(module, leaf)
        if tensor is None or all(indices is None for indices in kept):
            continue
        _replace(module, leaf, _cut(tensor.detach(), *kept))
        cuts[f"model.{name}.{leaf}"] = lambda moment, kept=kept: _cut(moment, *kept)  # type: ignore[misc]


def _cut_branch(noise: Noise, name: str, kept_along: dict[str, Tensor | None], cuts: Cuts) -> None:
    branch = noise.branches[name]
    for leaf, axes in branch.axes.items():
        kept = tuple(kept_along[axis] for axis in axes)
        _replace(branch, leaf, _cut(getattr(branch, leaf).detach(), *kept))
        cuts[f"noise.{name}.{leaf}"] = lambda moment, kept=kept: _cut(moment, *kept)  # type: ignore[misc]


def _replace(module: nn.Module, leaf: str, tensor: Tensor) -> None:
    old = getattr(module, leaf)
    fresh = tensor.clone()
    setattr(module, leaf, nn.Parameter(fresh, old.requires_grad) if isinstance(old, nn.Parameter) else fresh)
