"""``weight-posterior``: the signal-to-noise ratio of a neuron's weights, summed.

    importance of neuron j = Σ_w |μ_w| / σ_w

over the weights w of neuron j. Mean and deviation come from noise on the weights (sparse-vd, vd) or from a sampled
posterior (``--posterior``).

Graves: Practical Variational Inference for Neural Networks, 2011.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from snncompress.errors import UsageError
from snncompress.pruning.moments import weight_moments
from snncompress.pruning.scoring import ScoreRequest
from snncompress.pruning.weight_criteria import snr


def score(request: ScoreRequest) -> dict[str, Tensor]:
    """The sum for every output of every layer whose weights have a distribution."""
    return sum_over_weights(request, snr.score, "weight-posterior")


@torch.no_grad()
def sum_over_weights(
    request: ScoreRequest, value: Callable[[Tensor, Tensor], Tensor], criterion: str
) -> dict[str, Tensor]:
    """A function of mean and deviation, summed over each neuron's weights."""
    moments = weight_moments(request.model, request.noise, request.posterior)
    if not moments:
        raise UsageError(
            f"criterion {criterion} needs a distribution of the weights: run `snncompress train ... --method "
            "sparse-vd` or `--method dropout --posterior sgld:10000` first, or choose --criterion taylor"
        )
    return {
        name: value(mean.double(), deviation.double()).flatten(1).sum(1).cpu()
        for name, (mean, deviation) in moments.items()
    }
