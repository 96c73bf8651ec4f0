"""``sigma``: the deviation σ of a weight, for layers that store what they know in their variances.

    σ < τ  goes

Neklyudov, Molchanov, Ashukha, Vetrov: Variance Networks, ICLR 2019, §6.1 and Figure 5.
"""

from __future__ import annotations

from torch import Tensor


def score(mean: Tensor, deviation: Tensor) -> Tensor:
    """The deviation."""
    return deviation
