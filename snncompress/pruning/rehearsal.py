"""Which families a model's own code lets shrink: found by removing channels from a copy and tracing it again.

A forward may count on a width without showing it in one pass: ``x.view(-1, 320)``, ``x[:, :16]``, an auxiliary head
that runs in training only. The channel graph says what every layer reads; if a layer of the smaller copy reads
something else, or the copy cannot run or computes something else, the family whose channels went is *rigid* and
stays as it is.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from snncompress.errors import ModelError, UsageError
from snncompress.models.channels import trace_channels
from snncompress.models.modes import evaluating
from snncompress.pruning.compaction import compact
from snncompress.pruning.coupling import Group, by_family, find_groups, without
from snncompress.pruning.masking import masked

TOLERANCE = 1e-4  # of the largest output: what another order of summation may change


def rigid_families(model: nn.Module, input_shape: tuple[int, int, int], groups: Sequence[Group]) -> set[str]:
    """The families whose neurons cannot be removed after all; one more trace where there are none.

    Args:
        model: a plain model; it is left as it is.
        input_shape: channels, height, width of its images.
        groups: its neurons, as the channel graph shows them.
    """
    parts = _parts(groups)
    parameter = next(model.parameters())
    images = torch.randn(2, *input_shape, generator=torch.Generator().manual_seed(0)).to(parameter)
    removed: list[Group] = []
    rigid: set[str] = set()

    def settle(names: list[str]) -> None:
        """Removes what can be removed of these families; halves them to find those that resist."""
        more = [group for name in names for group in parts[name]]
        if not more:
            return
        if _shrinks(model, images, groups, removed + more, trains=trains):
            removed.extend(more)
        elif len(names) == 1:
            rigid.add(names[0])
        else:
            settle(names[: len(names) // 2])
            settle(names[len(names) // 2 :])

    with torch.random.fork_rng():  # dropout draws
        trains = _trains(copy.deepcopy(model), images)
        settle(list(parts))
    return rigid


def _parts(groups: Sequence[Group]) -> dict[str, list[Group]]:
    """What is removed of each family: every second, or all but every fourth; the second and the last stay.

    So every boundary that a forward may have drawn between channels lies elsewhere, with channels on both of its
    sides; and one that takes half of all channels, or every other one, notices that some have lost more than others.
    (Of three, two stay: a single channel broadcasts, and hides what it is coupled with.)
    """
    parts = {}
    for index, (name, members) in enumerate(by_family(groups).items()):
        step = 4 if index % 2 else 2
        if len(members) > 1:
            parts[name] = [group for place, group in enumerate(members[:-1]) if place % step != 1]
    return parts


def _shrinks(
    model: nn.Module, images: Tensor, groups: Sequence[Group], removed: Sequence[Group], *, trains: bool
) -> bool:
    """Whether the model without these neurons has the others, each made and read where it was, and can be trained."""
    try:
        smaller, _ = compact(model, removed)
        if trains and not _trains(copy.deepcopy(smaller), images):
            return False
        _, channels, height, width = images.shape
        found = find_groups(trace_channels(smaller, (channels, height, width)))
        return _refines(found, without(groups, removed)) and _agree(model, smaller, removed, images)
    except (UsageError, ModelError):  # nothing is left of a layer; it cannot run
        return False


def _trains(model: nn.Module, images: Tensor) -> bool:
    """Whether it runs in training mode, which changes its running statistics."""
    try:
        with torch.no_grad():
            model.train()(images)
    except Exception:  # whatever a user's forward may raise
        return False
    return True


def _agree(model: nn.Module, smaller: nn.Module, removed: Sequence[Group], images: Tensor) -> bool:
    """Whether the smaller model computes what the large one does while these neurons are silent."""

    def outputs(network: nn.Module) -> Tensor:
        with evaluating(network):
            leaves = [leaf for leaf in tree_leaves(network(images)) if isinstance(leaf, Tensor)]
        return torch.cat([leaf.flatten().double() for leaf in leaves])

    with masked(model, removed):
        expected, found = outputs(model), outputs(smaller)
        if not float((found - expected).abs().max()) > TOLERANCE * float(expected.abs().max()):
            return True
        return not torch.equal(expected, outputs(model))  # a forward that draws numbers tells nothing


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
