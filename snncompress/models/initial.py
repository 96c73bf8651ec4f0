"""New weights for a model of any shape, as its layers themselves would draw them."""

from __future__ import annotations

from torch import nn

from snncompress.models.layers import fill_zeros, find_zeros


def reinitialize(model: nn.Module, *, sparse: bool = False) -> None:
    """Draws all weights anew, in place, by each module's own ``reset_parameters``; zeros of a sparse model stay."""
    zeros = find_zeros(model) if sparse else {}
    for module in model.modules():
        reset = getattr(module, "reset_parameters", None)
        if callable(reset):
            reset()
    fill_zeros(model, zeros)
