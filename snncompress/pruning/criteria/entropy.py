"""``entropy``: what a neuron pays to stay reliable under SE-SNN noise.

    importance of neuron j = (b − 1/N Σ_i log σ_ij)⁺

over samples and positions i: zero for a neuron that has drowned in noise up to the margin b (Eq. 5).

Yu, Yang, Li, Hospedales, Xiang: Simple and Effective Stochastic Neural Networks, AAAI 2021.
"""

from __future__ import annotations

from torch import Tensor

from snncompress.pruning.scoring import ScoreRequest, of_branches


def score(request: ScoreRequest) -> dict[str, Tensor]:
    """The importance of every output of every stochastic layer."""
    return of_branches(request, "importance", "entropy")
