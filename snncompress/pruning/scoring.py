"""Importance of neurons, whatever the criterion.

A criterion scores every output of a layer. Scores are ℓ2-normalized within their layer, so that layers compare
(Molchanov et al., ICLR 2017), unless they mean the same everywhere (``SCALE_FREE``). A neuron that several layers
make has the mean of its members' scores. A criterion that looks at whole neurons scores them itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor, nn

from snncompress import registry
from snncompress.errors import UsageError
from snncompress.evaluation.likelihood import default_loss
from snncompress.noise.attach import Noise
from snncompress.pruning.coupling import Group, by_family
from snncompress.training.epoch_end import observe
from snncompress.training.feed import AnyBatches
from snncompress.training.learner import Loss


@dataclass(frozen=True)
class ScoreRequest:
    """What a criterion may look at.

    Attributes:
        model: the model, with its noise attached.
        noise: its branches.
        batches: training images and labels.
        count: how many batches to look at; all when None.
        groups: its neurons.
        norms: the batch norm that follows each layer.
        posterior: mean and variance of every weight, as ``NAME.mean`` and ``NAME.variance``, where they were sampled.
        loss: takes outputs and targets.
    """

    model: nn.Module
    noise: Noise | None
    batches: AnyBatches
    count: int | None = None
    groups: Sequence[Group] = ()
    norms: Mapping[str, str | None] = field(default_factory=dict)
    posterior: Mapping[str, Tensor] | None = None
    loss: Loss = default_loss


def pick_criterion(
    criterion: str, noise: Noise | None, posterior: Mapping[str, Tensor] | None, groups: Sequence[Group]
) -> str:
    """What ``auto`` means: the criterion that reads the noise of all these neurons, or the one that needs none."""
    if criterion != "auto":
        registry.load("criteria", criterion)  # an unknown name is refused, whether it will be needed or not
        return criterion
    branches = {} if noise is None else noise.branches
    sampled = {name.removesuffix(".weight.mean") for name in posterior or ()}
    informed = {name for name, branch in branches.items() if hasattr(branch, "information")}
    weighed = {name for name, branch in branches.items() if hasattr(branch, "moments")} | sampled
    for choice, layers in (("information", informed), ("weight-posterior", weighed)):
        if layers and all(any(name in layers for name, _ in group.outputs) for group in groups):
            return choice
    return "taylor"


def rank(criterion: str, request: ScoreRequest) -> dict[Group, float]:
    """The importance of each group."""
    module = registry.load("criteria", criterion)
    if hasattr(module, "score_groups"):
        found: dict[Group, float] = module.score_groups(request)
        return found
    scores: dict[str, Tensor] = module.score(request)
    values = {name: _comparable(each, getattr(module, "SCALE_FREE", False)) for name, each in scores.items()}
    ranked = {}
    for group in request.groups:
        members = [values[name][channel] for name, channel in group.outputs if name in values]
        if not members:
            raise UsageError(
                f"criterion {criterion} says nothing about layer {group.outputs[0][0]}; train noise on all layers, "
                "or choose --criterion taylor"
            )
        ranked[group] = sum(members) / len(members)
    return ranked


def least_important(ranked: Mapping[Group, float], widths: Mapping[str, int]) -> list[Group]:
    """The neurons that go when ``widths`` of each family stay."""
    gone: list[Group] = []
    for family, members in by_family(ranked).items():
        gone += sorted(members, key=ranked.__getitem__)[: len(members) - widths[family]]
    return gone


def of_branches(request: ScoreRequest, measure: str, criterion: str) -> dict[str, Tensor]:
    """What a method of the branches says of every neuron, after they have observed some images."""
    branches = {} if request.noise is None else request.noise.branches
    if request.noise is None or not all(hasattr(branch, measure) for branch in branches.values()):
        raise UsageError(
            f"criterion {criterion} needs the noise of se-snn: run `snncompress train ... --method se-snn` first, "
            "or choose --criterion taylor"
        )
    observe(request.model, request.noise, request.batches, request.count)
    return {name: getattr(branch, measure)() for name, branch in branches.items()}


def _comparable(scores: Tensor, scale_free: bool) -> list[float]:
    values = scores.double()
    norm = float(values.norm())
    return (values if scale_free or norm == 0 else values / norm).tolist()
