"""Neurons and everything that must leave with them, read from the channel graph.

A neuron is an output channel of a layer. With it go its batch norm's channel and the inputs of the layers that
read it (sixteen of them where a 4×4 map is flattened). Channels that the graph holds fixed (residual sums,
grouped convolutions, the model's outputs) are no neurons here: they stay.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from snncompress.models.channels import FIXED, ChannelGraph


@dataclass(frozen=True)
class Group:
    """One neuron: where it is made, normalized and read."""

    layer: str
    channel: int
    norms: tuple[tuple[str, int], ...]  # (batch norm, channel)
    inputs: tuple[tuple[str, int], ...]  # (layer, input channel or feature)


def find_groups(graph: ChannelGraph) -> list[Group]:
    """All neurons that can be removed, layer by layer."""
    norms: dict[int, list[tuple[str, int]]] = defaultdict(list)
    inputs: dict[int, list[tuple[str, int]]] = defaultdict(list)
    for name, ids in graph.norms.items():
        for channel, identity in enumerate(ids.tolist()):
            norms[identity].append((name, channel))
    for name, layer in graph.layers.items():
        for slot, identity in enumerate(layer.read.tolist()):
            inputs[identity].append((name, slot))
    return [
        Group(name, channel, tuple(norms[identity]), tuple(inputs[identity]))
        for name, layer in graph.layers.items()
        for channel, identity in enumerate(layer.made.tolist())
        if identity != FIXED
    ]
