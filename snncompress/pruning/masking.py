"""Neurons that are there but silent: the layers that read them get zero."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from snncompress.models.channels import channel_axis
from snncompress.pruning.coupling import Group


@contextmanager
def masked(model: nn.Module, groups: Iterable[Group]) -> Iterator[None]:
    """The model computes what it would without these neurons, at the cost of the whole one."""
    slots: dict[str, list[int]] = defaultdict(list)
    for group in groups:
        for name, slot in group.inputs:
            slots[name].append(slot)
    handles = [
        model.get_submodule(name).register_forward_pre_hook(_silence(torch.tensor(gone)))
        for name, gone in slots.items()
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _silence(gone: Tensor) -> Callable[..., Tensor]:
    def hook(module: nn.Module, args: tuple[Tensor, ...]) -> Tensor:
        return args[0].index_fill(channel_axis(module), gone.to(args[0].device), 0.0)

    return hook
