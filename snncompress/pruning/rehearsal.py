"""Which layers a model's own code lets shrink: found by removing channels from a copy and tracing it again.

A forward may count on a width without showing it in one pass: ``x.view(-1, 320)``, ``x[:, :16]``, a channel
shuffle, two halves of a ``chunk``. The channel graph says what every layer reads; if a layer of the smaller copy
reads something else, or the copy cannot run, the layer whose channels went is *rigid* and stays as it is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from torch import nn

from snncompress.errors import ModelError, UsageError
from snncompress.models.channels import ChannelGraph, trace_channels
from snncompress.pruning.compaction import compact
from snncompress.pruning.coupling import Group

Source = tuple[str, int] | None  # a layer and its channel; None where it is fixed


def rigid_layers(
    model: nn.Module, input_shape: tuple[int, int, int], graph: ChannelGraph, groups: Sequence[Group]
) -> set[str]:
    """The layers whose neurons cannot be removed after all; one more trace where there are none.

    Args:
        model: a plain model; it is left as it is.
        input_shape: channels, height, width of its images.
        graph: its channel graph.
        groups: its neurons, as the graph shows them.
    """
    members: dict[str, list[Group]] = defaultdict(list)
    for group in groups:
        members[group.layer].append(group)
    # The first half: its absence moves every boundary that a forward may have drawn between channels.
    halves = {name: gone for name, all_ in members.items() if (gone := all_[: len(all_) // 2])}
    if _shrinks(model, input_shape, graph, [group for half in halves.values() for group in half]):
        return set()
    removed: list[Group] = []
    rigid = set()
    for name, half in halves.items():
        if _shrinks(model, input_shape, graph, removed + half):
            removed += half
        else:
            rigid.add(name)
    return rigid


def _shrinks(
    model: nn.Module, input_shape: tuple[int, int, int], graph: ChannelGraph, removed: Sequence[Group]
) -> bool:
    """Whether the model without these neurons reads what is left of what it read before."""
    gone = {(group.layer, group.channel) for group in removed}
    numbers = {name: list(range(len(layer.made))) for name, layer in graph.layers.items()}
    kept = {name: [channel for channel in all_ if (name, channel) not in gone] for name, all_ in numbers.items()}
    before = _reading(graph, numbers)
    try:
        smaller, _ = compact(model, removed)
        after = _reading(trace_channels(smaller, input_shape), kept)
    except (UsageError, ModelError):  # a layer reads only what went; the model does not run
        return False
    return after == {name: [source for source in sources if source not in gone] for name, sources in before.items()}


def _reading(graph: ChannelGraph, numbers: dict[str, list[int]]) -> dict[str, list[Source]]:
    """What each layer and norm reads, by the numbers that channels have in the original model."""
    source = {
        identity: (name, number)
        for name, layer in graph.layers.items()
        for identity, number in zip(layer.made.tolist(), numbers[name], strict=True)
        if identity >= 0
    }

    read = {name: layer.read for name, layer in graph.layers.items()} | graph.norms
    return {name: [source.get(identity) for identity in ids.tolist()] for name, ids in read.items()}
