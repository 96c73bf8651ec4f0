"""Neurons that never fire: removed in one batch, with no change to the outputs on the data.

What counts is what arrives: a neuron is dead if every layer that reads it got exactly zero from it for every
image. A convolution or a matrix product adds nothing for a zero, so the removal is exact, whatever stands between
(a ReLU, pooling, flattening); a neuron whose zero means something on the way (a batch norm after the ReLU shifts
it) arrives as something else and is not dead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from snncompress.errors import SnncompressError
from snncompress.progress import Progress
from snncompress.pruning.coupling import Group
from snncompress.training.feed import AnyBatches

EXACT = 1e-5  # of the largest logit: what another order of summation may change


class InexactRemovalError(SnncompressError):
    """Removing dead neurons changed the outputs."""


@torch.no_grad()
def find_dead(
    model: nn.Module, groups: Sequence[Group], batches: AnyBatches, progress: Progress
) -> tuple[list[Group], list[Tensor]]:
    """The groups that never fire on the data, at least one group of each layer left out, and the logits."""
    largest: dict[str, Tensor] = {}

    def watch(name: str, dim: int) -> Any:
        def hook(module: nn.Module, args: tuple[Tensor, ...]) -> None:
            seen = args[0].movedim(dim, 0).flatten(1).abs().amax(1)  # (channels,)
            largest[name] = torch.maximum(largest[name], seen) if name in largest else seen

        return hook

    readers = {name for group in groups for name, _ in group.inputs}
    modules = dict(model.named_modules())
    handles = [
        modules[name].register_forward_pre_hook(watch(name, 1 if isinstance(modules[name], nn.Conv2d) else -1))
        for name in sorted(readers)
    ]
    try:
        logits = outputs(model, batches, progress, "look for dead neurons")
    finally:
        for handle in handles:
            handle.remove()
    zero = {name: (values == 0).tolist() for name, values in largest.items()}
    dead = [group for group in groups if all(zero[name][slot] for name, slot in group.inputs)]
    return _leave_one(groups, dead), logits


def _leave_one(groups: Sequence[Group], dead: list[Group]) -> list[Group]:
    """A layer is never pruned to nothing: one neuron stays where all are dead."""
    alive = {group.layer for group in set(groups) - set(dead)}
    kept = []
    for group in dead:
        if group.layer in alive:
            kept.append(group)
        else:
            alive.add(group.layer)
    return kept


@torch.no_grad()
def outputs(model: nn.Module, batches: AnyBatches, progress: Progress, task: str) -> list[Tensor]:
    """The model's outputs on all batches."""
    model.eval()
    progress.start(task, len(batches))
    found = []
    for inputs, _ in batches.epoch(0):
        found.append(model(inputs))
        progress.advance()
    progress.finish()
    return found


def check_exact(before: Sequence[Tensor], after: Sequence[Tensor]) -> float:
    """The largest change of a logit relative to the largest logit; more than 1e-5 is an error."""
    largest = max(float(logits.abs().max()) for logits in before)
    changes = [(a - b).abs().max() for a, b in zip(before, after, strict=True)]
    change = float(torch.stack(changes).max()) / max(largest, 1e-12)  # torch's maximum keeps a NaN
    if not change <= EXACT:
        raise InexactRemovalError(f"removing dead neurons changed the logits by {change:.1e} of the largest")
    return change
