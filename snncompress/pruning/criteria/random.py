"""``random``: the floor that every other criterion has to beat."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from snncompress.pruning.scoring import ScoreRequest


def score(request: ScoreRequest) -> dict[str, Tensor]:
    """A random importance for every output of every convolution and linear layer."""
    return {
        name: torch.rand(len(module.weight))
        for name, module in request.model.named_modules()
        if isinstance(module, (nn.Conv2d, nn.Linear))
    }
