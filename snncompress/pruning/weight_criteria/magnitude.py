"""``magnitude``: the size of a weight; needs no noise.

    |μ| < τ  goes

Han, Pool, Tran, Dally: Learning both Weights and Connections for Efficient Neural Networks, NIPS 2015.
"""

from __future__ import annotations

from torch import Tensor

NEEDS_DEVIATION = False


def score(mean: Tensor, deviation: Tensor) -> Tensor:
    """The absolute value."""
    return mean.abs()
