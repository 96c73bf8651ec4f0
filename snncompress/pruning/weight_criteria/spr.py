"""``spr``: signal plus robustness of a weight: the size of its mean plus its deviation.

    |μ| + σ < τ  goes   (Eq. 17)

A weight whose deviation is large can be chosen freely: the network is robust to it.

Nalisnick, Anandkumar, Smyth: A Scale Mixture Perspective of Multiplicative Noise in Neural Networks, 2015.
"""

from __future__ import annotations

from torch import Tensor


def score(mean: Tensor, deviation: Tensor) -> Tensor:
    """The sum."""
    return mean.abs() + deviation
