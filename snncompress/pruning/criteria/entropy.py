"""``entropy``: what a neuron pays to stay reliable under SE-SNN noise.

    importance of neuron j = (b − 1/N Σ_i log σ_ij)⁺

over samples and positions i: zero for a neuron that has drowned in noise up to the margin b (Eq. 5).

Yu, Yang, Li, Hospedales, Xiang: Simple and Effective Stochastic Neural Networks, AAAI 2021.
"""

from __future__ import annotations

from torch import Tensor

from snncompress.errors import UsageError
from snncompress.pruning.scoring import ScoreRequest
from snncompress.training.loop import observe


def score(request: ScoreRequest) -> dict[str, Tensor]:
    """The importance of every output of every stochastic layer."""
    branches = {} if request.noise is None else request.noise.branches
    if request.noise is None or not all(hasattr(branch, "importance") for branch in branches.values()):
        raise UsageError(
            "criterion entropy needs noise with an entropy: run `snncompress train ... --method se-snn` first, "
            "or choose --criterion taylor"
        )
    observe(request.model, request.noise, request.batches, request.count)
    return {name: branch.importance() for name, branch in branches.items()}  # type: ignore[operator]
