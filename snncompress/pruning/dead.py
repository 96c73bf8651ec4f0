"""Neurons that never fire: removed in one batch, with no change to the outputs on the data.

What counts is what arrives: a neuron is dead if every layer that reads it got exactly zero from it for every
image. A convolution or a matrix product adds nothing for a zero, so the removal is exact, whatever stands between
(a ReLU, pooling, flattening). One that always arrives as the same other number (a batch norm after the ReLU shifts
it) is dead too where that number can be folded into the reader (``folding.py``). A grouped convolution leaves
together with what it reads, so it has no say.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from snncompress.errors import SnncompressError
from snncompress.models.channels import channel_axis
from snncompress.models.layout import Arranger
from snncompress.progress import Progress
from snncompress.pruning.coupling import Group, Place, by_family
from snncompress.pruning.folding import can_fold
from snncompress.pruning.targets import Budget
from snncompress.training.feed import AnyBatches

EXACT = 1e-5  # of the largest logit: what another order of summation may change


class InexactRemovalError(SnncompressError):
    """Removing dead neurons changed the outputs."""


@dataclass(frozen=True)
class Dead:
    """Neurons that can go without a trace, what they leave in the layers that read them, and the logits."""

    groups: list[Group]
    constants: dict[Place, float]  # by (layer, input): other than zero
    logits: list[Tensor]


@torch.no_grad()
def find_dead(
    model: nn.Module,
    groups: Sequence[Group],
    norms: Mapping[str, str | None],
    batches: AnyBatches,
    progress: Progress,
    budget: Budget | None = None,
    *,
    among: Sequence[Group] | None = None,
    unread: Mapping[str, set[int]] | None = None,
) -> Dead:
    """The groups that never fire on the data, at least one group of each family left out.

    Stops looking as soon as none can be dead that may go.

    Args:
        model: a plain model.
        groups: its neurons.
        norms: the batch norm that follows each layer.
        batches: the data.
        progress: is told what happens.
        budget: which widths are allowed; some dead neurons stay where another width would not be.
        among: looks at these groups only.
        unread: by layer, inputs whose weights are all zero: whatever arrives there is as good as zero.
    """
    among = groups if among is None else among
    watch = _Watch(model, among, norms, unread or {}, lambda dead: bool(_removable(groups, dead, budget)))
    try:
        logits = outputs(model, batches, progress, "look for dead neurons", go_on=watch.hopeful)
    finally:
        watch.stop()
    constants = watch.constants()
    dead = _removable(groups, [group for group in groups if group in constants], budget)
    folded = {place: value for group in dead for place, value in constants[group].items() if value}
    return Dead(dead, folded, logits)


class _Watch:
    """Looks at all that arrives in the layers that read these neurons."""

    def __init__(
        self,
        model: nn.Module,
        groups: Sequence[Group],
        norms: Mapping[str, str | None],
        unread: Mapping[str, set[int]],
        removable: Callable[[list[Group]], bool],
    ) -> None:
        self.unread = unread
        self.removable = removable
        names = sorted({name for group in groups for name, _ in group.inputs})
        modules = {name: model.get_submodule(name) for name in names}
        self.readers = {name: module for name, module in modules.items() if getattr(module, "groups", 1) == 1}
        self.folds = {name for name in self.readers if can_fold(model, name, norms.get(name))}
        self.candidates = list(groups)  # dead as far as is known
        self.bounds: dict[str, tuple[Tensor, Tensor]] = {}  # least and largest value that arrived in each input
        self.batches = 0
        self.handles = {name: m.register_forward_pre_hook(self._hook(name)) for name, m in self.readers.items()}

    def _hook(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Tensor, ...]) -> None:
            low, high = args[0].movedim(channel_axis(module), 0).flatten(1).aminmax(dim=1)  # (channels,) each
            if name in self.bounds:
                low, high = torch.minimum(low, self.bounds[name][0]), torch.maximum(high, self.bounds[name][1])
            self.bounds[name] = low, high

        return hook

    def stop(self) -> None:
        """Takes the hooks off."""
        for handle in self.handles.values():
            handle.remove()

    def hopeful(self) -> bool:
        """Whether some neuron may be dead still, and may go then; looked up after 1, 2, 4, 8, ... batches."""
        self.batches += 1
        if self.batches & (self.batches - 1) == 0:
            self.candidates = list(self.constants())
            asked = {name for group in self.candidates for name, _ in group.inputs}
            for name in self.handles.keys() - asked:  # all that it reads has fired
                self.handles.pop(name).remove()
            if not self.removable(self.candidates):
                self.candidates = []
        return bool(self.candidates)

    def constants(self) -> dict[Group, dict[Place, float]]:
        """What each of the candidates that are dead so far has always given, by the inputs that read it."""
        arrived = {
            name: [
                a if a == b and (a == 0 or name in self.folds) else None
                for a, b in zip(low.tolist(), high.tolist(), strict=True)
            ]
            for name, (low, high) in self.bounds.items()
        }
        found = {}
        for group in self.candidates:
            values = {
                (name, slot): 0.0 if slot in self.unread.get(name, ()) else arrived[name][slot]
                for name, slot in group.inputs
                if name in self.readers
            }
            known = {place: value for place, value in values.items() if value is not None}
            if len(known) == len(values):
                found[group] = known
        return found


def _removable(groups: Sequence[Group], dead: Sequence[Group], budget: Budget | None) -> list[Group]:
    """Those of the dead that can go: a layer is never pruned to nothing, nor to a width that is not allowed."""
    sizes = Counter(group.family for group in groups)
    gone: list[Group] = []
    for family, members in by_family(dead).items():
        left = max(1, sizes[family] - len(members))
        if budget is not None:
            left = budget.at_least(family, left)
        gone += members[len(members) - (sizes[family] - left) :]
    return gone


@torch.no_grad()
def outputs(
    model: nn.Module, batches: AnyBatches, progress: Progress, task: str, go_on: Callable[[], bool] = lambda: True
) -> list[Tensor]:
    """The model's outputs on all batches, or until ``go_on`` says no."""
    model.eval()
    progress.start(task, len(batches))
    found, arrange = [], Arranger()
    for inputs, _ in batches.epoch(0):
        found.append(model(arrange(model, inputs)))
        progress.advance()
        if not go_on():
            break
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
