"""New weights for a model of any shape, as its layers themselves would draw them."""

from __future__ import annotations

from torch import nn


def reinitialize(model: nn.Module) -> None:
    """Draws all weights anew, in place, by each module's own ``reset_parameters``."""
    for module in model.modules():
        reset = getattr(module, "reset_parameters", None)
        if callable(reset):
            reset()
