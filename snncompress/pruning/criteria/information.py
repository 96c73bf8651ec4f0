"""``information``: how far a neuron's signal stands above its SE-SNN noise.

    importance of neuron j = ½·log(1 + Var_i(μ_ij) / E_i(σ²_ij))

over samples and positions i: the capacity of a Gaussian channel in nats, zero for a neuron that says nothing. It does
not depend on the scale of a layer, so that layers compare.

Yu, Yang, Li, Hospedales, Xiang: Simple and Effective Stochastic Neural Networks, AAAI 2021 (the noise); Shannon:
Communication in the Presence of Noise, 1949 (the capacity).
"""

from __future__ import annotations

from torch import Tensor

from snncompress.pruning.scoring import ScoreRequest, of_branches

SCALE_FREE = True


def score(request: ScoreRequest) -> dict[str, Tensor]:
    """The information that every output of every stochastic layer carries."""
    return of_branches(request, "information", "information")
