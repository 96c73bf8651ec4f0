"""Constants that removed neurons leave behind, added to what reads them.

A neuron that always gives c ≠ 0 (a batch norm's shift through a ReLU) adds w·c to every output of a layer that reads
it. Removed, its constant goes into the bias, or out of the running mean of the batch norm that follows: the outputs
do not change. That is exact for linear layers and for convolutions that do not pad with zeros.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import torch
from torch import nn

from snncompress.models.channels import BATCH_NORMS
from snncompress.pruning.coupling import Place


def can_fold(model: nn.Module, reader: str, norm: str | None) -> bool:
    """Whether a constant that a layer reads can be folded; ``norm`` is the batch norm that follows it."""
    layer = model.get_submodule(reader)
    if isinstance(layer, nn.Conv2d) and (layer.groups > 1 or layer.padding not in ("valid", (0, 0))):
        return False
    following = None if norm is None else model.get_submodule(norm)
    has_mean = isinstance(following, BATCH_NORMS) and following.running_mean is not None
    return layer.bias is not None or has_mean  # type: ignore[union-attr]


@torch.no_grad()
def fold(model: nn.Module, constants: Mapping[Place, float], norms: Mapping[str, str | None]) -> None:
    """Adds the constants that layers read in some of their inputs to their biases, in place.

    Args:
        model: still with the neurons that give the constants.
        constants: by (layer, input).
        norms: the batch norm that follows each layer.
    """
    by_reader: dict[str, dict[int, float]] = defaultdict(dict)
    for (reader, slot), value in constants.items():
        by_reader[reader][slot] = value
    for reader, slots in by_reader.items():
        layer = model.get_submodule(reader)
        assert isinstance(layer, (nn.Conv2d, nn.Linear))
        values = layer.weight.new_tensor(list(slots.values()))
        read = layer.weight[:, list(slots)]  # (out, constants, ...)
        added = read.flatten(2).sum(2) @ values if read.dim() > 2 else read @ values
        if layer.bias is not None:
            layer.bias += added
        else:
            norm = model.get_submodule(str(norms[reader]))
            norm.running_mean -= added  # type: ignore[operator]
