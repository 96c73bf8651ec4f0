"""Channel graphs as lists that one can draw by hand."""

from __future__ import annotations

from collections import defaultdict

from networks import IMAGE
from torch import nn

from snncompress.models.channels import ChannelGraph, trace_channels
from snncompress.models.identities import FIXED

Channel = tuple[str, int]


def makers(graph: ChannelGraph) -> dict[int, list[Channel]]:
    """Who makes each identity, fixed ones left out."""
    found = defaultdict(list)
    for name, layer in graph.layers.items():
        for channel, identity in enumerate(layer.made.tolist()):
            if identity != FIXED:
                found[identity].append((name, channel))
    return found


def coupled(graph: ChannelGraph) -> list[list[Channel]]:
    """All removable channels: those that can only leave together in one list."""
    return list(makers(graph).values())


def reading(graph: ChannelGraph) -> dict[str, list[Channel | None]]:
    """What every input of every layer reads, as the first (layer, channel) that makes it; None where it is fixed."""
    source = makers(graph)
    return {
        name: [None if identity == FIXED else source[identity][0] for identity in layer.read.tolist()]
        for name, layer in graph.layers.items()
    }


def channels(layer: str, *numbers: int, times: int = 1) -> list[Channel | None]:
    return [(layer, number) for number in numbers for _ in range(times)]


def traced(*layers: nn.Module) -> ChannelGraph:
    return trace_channels(nn.Sequential(*layers), IMAGE)
