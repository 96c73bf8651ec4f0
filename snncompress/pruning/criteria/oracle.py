"""``oracle``: the loss that is measured without a neuron; slow, for small networks.

    importance of neuron j = L(without j) − L

on some training images, neuron by neuron.
"""

from __future__ import annotations

from itertools import islice

import torch

from snncompress.pruning.coupling import Group
from snncompress.pruning.masking import masked
from snncompress.pruning.scoring import ScoreRequest


@torch.no_grad()
def score_groups(request: ScoreRequest) -> dict[Group, float]:
    """The change of the loss for every neuron."""
    batches = list(islice(request.batches.epoch(0), request.count))
    model = request.model.eval()

    def loss() -> float:
        total = sum(float(request.loss(model(inputs), targets)) * len(inputs) for inputs, targets in batches)
        return total / sum(len(inputs) for inputs, _ in batches)

    base = loss()
    scores = {}
    for group in request.groups:
        with masked(model, [group]):
            scores[group] = loss() - base
    return scores
