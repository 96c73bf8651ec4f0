"""Physical removal: plain layers lose the channels of the removed neurons, on a copy of the model."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from snncompress.errors import UsageError
from snncompress.noise.attach import Noise
from snncompress.pruning.coupling import Group


@dataclass(frozen=True)
class Removal:
    """Which outputs and inputs of which layers go, and which channels of which batch norms."""

    outputs: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    inputs: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    norms: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))

    @classmethod
    def of(cls, groups: Iterable[Group]) -> Removal:
        """Collects what the groups touch."""
        removal = cls()
        for group in groups:
            removal.outputs[group.layer].add(group.channel)
            for name, channel in group.norms:
                removal.norms[name].add(channel)
            for name, slot in group.inputs:
                removal.inputs[name].add(slot)
        return removal


def _kept(name: str, size: int, gone: set[int]) -> Tensor | None:
    if len(gone) == size:
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
    removal = Removal.of(groups)
    smaller = copy.deepcopy(model)
    cuts: Cuts = {}
    for name, module in smaller.named_modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            kept_out = _kept(name, module.weight.shape[0], removal.outputs[name])
            kept_in = _kept(name, module.weight.shape[1], removal.inputs[name])
            axes = {"weight": (kept_out, kept_in), "bias": (kept_out,)}
            _cut_module(module, name, axes, cuts)
            if isinstance(module, nn.Conv2d):
                module.out_channels, module.in_channels = (
                    module.weight.shape[0],
                    module.weight.shape[1] * module.groups,
                )
            else:
                module.out_features, module.in_features = module.weight.shape
            if noise is not None and name in noise.branches:
                _cut_branch(noise, name, kept_out, kept_in, cuts)
        elif removal.norms.get(name):
            kept = _kept(name, module.num_features, removal.norms[name])  # type: ignore[arg-type]
            _cut_module(module, name, dict.fromkeys(("weight", "bias", "running_mean", "running_var"), (kept,)), cuts)
            assert kept is not None
            module.num_features = len(kept)  # type: ignore[assignment]
    return smaller, cuts


def _cut_module(module: nn.Module, name: str, axes: dict[str, tuple[Tensor | None, ...]], cuts: Cuts) -> None:
    for leaf, kept in axes.items():
        tensor = getattr(module, leaf)
        if tensor is None or all(indices is None for indices in kept):
            continue
        _replace(module, leaf, _cut(tensor.detach(), *kept))
        cuts[f"model.{name}.{leaf}"] = lambda moment, kept=kept: _cut(moment, *kept)  # type: ignore[misc]


def _cut_branch(noise: Noise, name: str, kept_out: Tensor | None, kept_in: Tensor | None, cuts: Cuts) -> None:
    branch = noise.branches[name]
    kept_along = {"out": kept_out, "in": kept_in, "": None}
    for leaf, axes in branch.axes.items():
        kept = tuple(kept_along[axis] for axis in axes)
        _replace(branch, leaf, _cut(getattr(branch, leaf).detach(), *kept))
        cuts[f"noise.{name}.{leaf}"] = lambda moment, kept=kept: _cut(moment, *kept)  # type: ignore[misc]


def _replace(module: nn.Module, leaf: str, tensor: Tensor) -> None:
    old = getattr(module, leaf)
    fresh = tensor.clone()
    setattr(module, leaf, nn.Parameter(fresh, old.requires_grad) if isinstance(old, nn.Parameter) else fresh)
