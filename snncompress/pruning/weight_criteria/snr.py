"""``snr``: signal-to-noise ratio of a weight: the size of its mean over its deviation.

    |μ| / σ < τ  goes

Graves: Practical Variational Inference for Neural Networks, 2011; Blundell et al., 2015.
"""

from __future__ import annotations

from torch import Tensor

FLOOR = 1e-12  # a deviation of zero is not a ratio of infinity


def score(mean: Tensor, deviation: Tensor) -> Tensor:
    """The ratio."""
    return mean.abs() / (deviation + FLOOR)
