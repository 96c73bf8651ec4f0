"""``random``: a number drawn for each weight; the floor that any criterion must beat."""

from __future__ import annotations

import torch
from torch import Tensor

NEEDS_DEVIATION = False
DRAWS = True  # other scores every time


def score(mean: Tensor, deviation: Tensor) -> Tensor:
    """Uniform numbers of the default generator."""
    return torch.rand_like(mean)
