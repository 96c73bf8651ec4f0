"""``weight-robustness``: signal plus robustness of a neuron's weights, summed.

    importance of neuron j = Σ_w (|μ_w| + σ_w)

A weight whose deviation is large can be chosen freely: the network is robust to it.

Nalisnick, Anandkumar, Smyth: A Scale Mixture Perspective of Multiplicative Noise in Neural Networks, 2015.
"""

from __future__ import annotations

from torch import Tensor

from snncompress.pruning.criteria.weight_posterior import sum_over_weights
from snncompress.pruning.scoring import ScoreRequest
from snncompress.pruning.weight_criteria import spr


def score(request: ScoreRequest) -> dict[str, Tensor]:
    """The sum for every output of every layer whose weights have a distribution."""
    return sum_over_weights(request, spr.score, "weight-robustness")
