"""Importance of neurons, whatever the criterion: scores of a layer are normalized so that layers compare."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from snncompress import registry
from snncompress.errors import UsageError
from snncompress.noise.attach import Noise
from snncompress.pruning.coupling import Group
from snncompress.training.feed import AnyBatches


@dataclass(frozen=True)
class ScoreRequest:
    """What a criterion may look at: the model with its noise attached, and training images."""

    model: nn.Module
    noise: Noise | None
    batches: AnyBatches
    count: int | None  # how many batches; all when None


def rank(criterion: str, request: ScoreRequest, groups: list[Group]) -> dict[Group, float]:
    """The importance of each group, ℓ2-normalized within its layer (Molchanov et al., ICLR 2017)."""
    scores: dict[str, Tensor] = registry.load("criteria", criterion).score(request)
    missing = sorted({group.layer for group in groups} - scores.keys())
    if missing:
        raise UsageError(
            f"criterion {criterion} says nothing about layer {missing[0]}; train noise on all layers, "
            "or choose --criterion magnitude"
        )
    normalized = {}
    for name, values in scores.items():
        norm = float(values.double().norm())
        normalized[name] = (values.double() / norm if norm > 0 else values.double()).tolist()
    return {group: normalized[group.layer][group.channel] for group in groups}
