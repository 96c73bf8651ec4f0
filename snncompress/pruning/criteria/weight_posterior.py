"""``weight-posterior``: the signal-to-noise ratio of a neuron's weights, summed.

    importance of neuron j = Σ_w |μ_w| / σ_w

over the weights w of neuron j. Mean and deviation come from noise on the weights (sparse-vd, vd) or from a sampled
posterior (``--posterior``).

Graves: Practical Variational Inference for Neural Networks, 2011.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from snncompress.errors import UsageError
from snncompress.pruning.scoring import ScoreRequest

FLOOR = 1e-12  # a deviation of zero is not a ratio of infinity


def score(request: ScoreRequest) -> dict[str, Tensor]:
    """The sum for every output of every layer whose weights have a distribution."""
    return sum_over_weights(request, lambda mean, deviation: mean.abs() / (deviation + FLOOR), "weight-posterior")


@torch.no_grad()
def sum_over_weights(
    request: ScoreRequest, value: Callable[[Tensor, Tensor], Tensor], criterion: str
) -> dict[str, Tensor]:
    """A function of mean and deviation, summed over each neuron's weights."""
    moments: dict[str, tuple[Tensor, Tensor]] = {}
    for name, module in request.model.named_modules():
        if not isinstance(module, (nn.Conv2d, nn.Linear)):
            continue
        branch = None if request.noise is None else request.noise.branches.get(name)
        if hasattr(branch, "moments"):
            moments[name] = branch.moments(module)  # type: ignore[union-attr, operator]
        elif request.posterior is not None and f"{name}.weight.mean" in request.posterior:
            moments[name] = request.posterior[f"{name}.weight.mean"], request.posterior[f"{name}.weight.variance"]
    if not moments:
        raise UsageError(
            f"criterion {criterion} needs a distribution of the weights: run `snncompress train ... --method "
            "sparse-vd` or `--method dropout --posterior sgld:10000` first, or choose --criterion taylor"
        )
    return {
        name: value(mean.double(), variance.double().sqrt()).flatten(1).sum(1).cpu()
        for name, (mean, variance) in moments.items()
    }
