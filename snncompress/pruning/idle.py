"""Neurons that zero weights have made useless, for any input: removed physically, with no change to the outputs.

A neuron is idle if nobody reads it (every weight that would is zero), or if it reads nothing (all its own weights are
zero): it then always gives the same number, which is folded into the layers that read it where that is exact
(``folding.py``). Once it is gone, those that only it read, or that read only it, may be idle, too.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from snncompress.data.batches import IterableBatches
from snncompress.models.layers import weight_layers
from snncompress.progress import Progress
from snncompress.pruning.compaction import compact
from snncompress.pruning.coupling import Group, without
from snncompress.pruning.dead import Dead, find_dead
from snncompress.pruning.folding import fold

Norms = Mapping[str, str | None]
Shape = tuple[int, int, int]


def find_idle(model: nn.Module, groups: Sequence[Group], norms: Norms, input_shape: Shape) -> Dead:
    """The groups that are idle now, at least one group of each family left out.

    Args:
        model: a plain model.
        groups: its neurons.
        norms: the batch norm that follows each layer.
        input_shape: channels, height, width of its images.
    """
    silent, unread = _zero_channels(model)
    idle = [
        group
        for group in groups
        if all(channel in silent.get(name, ()) for name, channel in group.outputs)
        or all(slot in unread.get(name, (slot,)) for name, slot in group.inputs)
    ]
    if not idle:
        return Dead([], {}, [])
    # What they give is the same for any input, so that two random ones tell it.
    images = torch.rand(2, *input_shape, generator=torch.Generator().manual_seed(0)).to(next(model.parameters()))
    batches = IterableBatches([(images, images.new_zeros(2))], device=images.device)
    return find_dead(model, groups, norms, batches, Progress(), among=idle, unread=unread)


def strip(
    model: nn.Module, groups: Sequence[Group], norms: Norms, input_shape: Shape
) -> tuple[nn.Module, Sequence[Group]]:
    """A copy of a plain model without its idle neurons, and the groups that it has."""
    while (idle := find_idle(model, groups, norms, input_shape)).groups:
        model = copy.deepcopy(model)
        fold(model, idle.constants, norms)
        model, _ = compact(model, idle.groups)
        groups = without(groups, idle.groups)
    return model, groups


def _zero_channels(model: nn.Module) -> tuple[dict[str, set[int]], dict[str, set[int]]]:
    """By layer: outputs without a weight, and inputs that no weight reads; grouped convolutions read in their way."""
    silent, unread = {}, {}
    for name, layer in weight_layers(model).items():
        used = (layer.weight.detach() != 0).flatten(2).any(2) if layer.weight.dim() > 2 else layer.weight.detach() != 0
        silent[name] = _false(used.any(1))
        if getattr(layer, "groups", 1) == 1:
            unread[name] = _false(used.any(0))
    return silent, unread


def _false(flags: Tensor) -> set[int]:
    return set((~flags).nonzero().flatten().tolist())
