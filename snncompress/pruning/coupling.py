"""Neurons and everything that must leave with them, read from the channel graph.

A neuron is a *group* of channels that can only leave together: one output channel of a layer where nothing else
holds it, or all that a residual sum, a gate or a grouped convolution ties to it. With it go the channels of its norms
and paddings, and the inputs of the layers that read it (sixteen of them where a 4×4 map is flattened). Groups that
touch the same layers in the same numbers cost the same: they are a *family*, called by the first layer that makes it.
Channels that the graph holds fixed (what a layer norm reads, the model's outputs) are no neurons: they stay.
"""

from __future__ import annotations

import fnmatch
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from snncompress.models.channels import ChannelGraph
from snncompress.models.identities import FIXED

Place = tuple[str, int]  # a module and one of its channels


@dataclass(frozen=True)
class Group:
    """One neuron: where it is made, normalized, padded and read. It is known by its number in the original model."""

    number: int
    family: str = field(compare=False)
    outputs: tuple[Place, ...] = field(compare=False)  # (layer, output channel)
    norms: tuple[Place, ...] = field(compare=False)  # (norm, channel)
    inputs: tuple[Place, ...] = field(compare=False)  # (layer, input channel or feature)
    pads: tuple[Place, ...] = field(compare=False, default=())  # (padding, its channel of zeros)

    @property
    def places(self) -> tuple[tuple[Place, ...], ...]:
        """All that leaves with it."""
        return self.outputs, self.norms, self.inputs, self.pads


def find_groups(graph: ChannelGraph) -> list[Group]:
    """All neurons that can be removed, in the order of the layers that make them."""
    outputs = _by_identity((name, layer.made.tolist()) for name, layer in graph.layers.items())
    norms = _by_identity((name, ids.tolist()) for name, ids in graph.norms.items())
    inputs = _by_identity((name, layer.read.tolist()) for name, layer in graph.layers.items())
    pads = _by_identity((name, ids.tolist()) for name, ids in graph.pads.items())
    names: dict[tuple[frozenset[tuple[str, int]], ...], str] = {}
    groups = []
    for number, (identity, made) in enumerate(outputs.items()):
        places = made, norms[identity], inputs[identity], pads[identity]
        footprint = tuple(frozenset(Counter(name for name, _ in kind).items()) for kind in places)
        if footprint not in names:
            first = made[0][0]
            namesakes = sum(name.partition("#")[0] == first for name in names.values())
            names[footprint] = f"{first}#{namesakes + 1}" if namesakes else first
        groups.append(Group(number, names[footprint], *(tuple(kind) for kind in places)))
    return groups


def _by_identity(modules: Iterable[tuple[str, list[int]]]) -> dict[int, list[Place]]:
    found: dict[int, list[Place]] = defaultdict(list)
    for name, ids in modules:
        for channel, identity in enumerate(ids):
            if identity != FIXED:
                found[identity].append((name, channel))
    return found


def by_family(groups: Iterable[Group]) -> dict[str, list[Group]]:
    """The members of each family."""
    families: dict[str, list[Group]] = defaultdict(list)
    for group in groups:
        families[group.family].append(group)
    return dict(families)


def touching(groups: Sequence[Group], patterns: Collection[str]) -> set[str]:
    """The families with an output of a layer whose name matches one of the patterns."""
    return {
        group.family
        for group in groups
        if any(fnmatch.fnmatch(name, pattern) for name, _ in group.outputs for pattern in patterns)
    }


def touched(groups: Iterable[Group]) -> list[dict[str, set[int]]]:
    """The channels that groups hold, by module, for each kind of their ``places``."""
    kinds: list[dict[str, set[int]]] = [defaultdict(set) for _ in range(4)]
    for group in groups:
        for kind, places in zip(kinds, group.places, strict=True):
            for name, channel in places:
                kind[name].add(channel)
    return kinds


def without(groups: Sequence[Group], removed: Collection[Group]) -> list[Group]:
    """The groups that are left, by the numbers that channels have once the others are gone."""
    gone = touched(removed)
    shifts = [{name: _shift(channels) for name, channels in kind.items()} for kind in gone]

    def renumber(places: tuple[Place, ...], shift: dict[str, list[int]]) -> Iterator[Place]:
        for name, channel in places:
            below = shift.get(name)
            yield name, channel - (0 if below is None else below[min(channel, len(below) - 1)])

    numbers = {group.number for group in removed}
    left = [group for group in groups if group.number not in numbers]
    if not any(gone):
        return left
    return [
        Group(
            group.number,
            group.family,
            *(tuple(renumber(places, shift)) for places, shift in zip(group.places, shifts, strict=True)),
        )
        for group in left
    ]


def _shift(gone: set[int]) -> list[int]:
    """How many of the channels up to each number are gone; the last holds for all above."""
    counts, below = [], 0
    for channel in range(max(gone) + 1):
        below += channel in gone
        counts.append(below)
    return counts
