"""Which families a model's own code lets shrink: found by removing channels from a copy and tracing it again.

A forward may count on a width without showing it in one pass: ``x.view(-1, 320)``, ``x[:, :16]``, an auxiliary head
that runs in training only. The channel graph says what every layer reads; if a layer of the smaller copy reads
something else, or the copy cannot run, the family whose channels went is *rigid* and stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from snncompress.errors import ModelError, UsageError
from snncompress.models.channels import trace_channels
from snncompress.pruning.compaction import compact
from snncompress.pruning.coupling import Group, by_family, find_groups, without


def rigid_families(model: nn.Module, input_shape: tuple[int, int, int], groups: Sequence[Group]) -> set[str]:
    """The families whose neurons cannot be removed after all; one more trace where there are none.

    Args:
        model: a plain model; it is left as it is.
        input_shape: channels, height, width of its images.
        groups: its neurons, as the channel graph shows them.
    """
    # The first half: its absence moves every boundary that a forward may have drawn between channels.
    halves = {name: half for name, all_ in by_family(groups).items() if (half := all_[: len(all_) // 2])}
    removed: list[Group] = []
    rigid: set[str] = set()

    def settle(names: list[str]) -> None:
        """Removes what can be removed of these families; halves them to find those that resist."""
        more = [group for name in names for group in halves[name]]
        if not more:
            return
        if _shrinks(model, input_shape, groups, removed + more):
            removed.extend(more)
        elif len(names) == 1:
            rigid.add(names[0])
        else:
            settle(names[: len(names) // 2])
            settle(names[len(names) // 2 :])

    settle(list(halves))
    return rigid


def _shrinks(
    model: nn.Module, input_shape: tuple[int, int, int], groups: Sequence[Group], removed: Sequence[Group]
) -> bool:
    """Whether the model without these neurons has the others, each made and read where it was, and can be trained."""
    try:
        smaller, _ = compact(model, removed)
        found = find_groups(trace_channels(smaller, input_shape))
        parameter = next(smaller.parameters())
        images = torch.zeros(2, *input_shape, device=parameter.device, dtype=parameter.dtype)
        with torch.no_grad(), torch.random.fork_rng():  # dropout draws
            smaller.train()(images)
    except (UsageError, ModelError, RuntimeError, ValueError, IndexError):  # nothing is left of a layer; it cannot run
        return False
    return _refines(found, without(groups, removed))


def _refines(found: Sequence[Group], expected: Sequence[Group]) -> bool:
    """Whether the groups found are the expected ones, or parts of them.

    What is left of two coupled channels may be free of one another (a grouped convolution with its last group).
    """
    owners = {(kind, place): group for group in expected for kind, all_ in enumerate(group.places) for place in all_}
    seen = 0
    for group in found:
        places = [(kind, place) for kind, all_ in enumerate(group.places) for place in all_]
        if places[0] not in owners or len({owners.get(place) for place in places}) > 1:
            return False
        seen += len(places)
    return seen == len(owners)
