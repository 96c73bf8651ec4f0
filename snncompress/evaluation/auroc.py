"""How well a score tells two groups apart: the area under the receiver operating characteristic, by ranks.

    AUROC = P(s⁺ > s⁻) + P(s⁺ = s⁻)/2 = (R⁺ − n⁺(n⁺ + 1)/2) / (n⁺·n⁻)

with R⁺ the sum of the ranks of the positives among all scores, ties at their average rank (Mann and Whitney 1947).
"""

from __future__ import annotations

import torch
from torch import Tensor

from snncompress.errors import DataError


def auroc(negatives: Tensor, positives: Tensor) -> float:
    """The chance that a positive has a larger score than a negative: 0.5 by guessing, 1 at best."""
    if not len(negatives) or not len(positives):
        raise DataError("an AUROC compares two groups, but one of them is empty")
    scores = torch.cat([negatives, positives]).cpu().double()
    if bool(scores.isnan().any()):
        raise DataError("an AUROC ranks scores, but some of them are NaN; check the model's outputs")
    _, places, counts = scores.unique(return_inverse=True, return_counts=True)
    ranks = counts.cumsum(0) - (counts - 1) / 2  # of each value, counted from 1, in the middle of its ties
    n, m = len(positives), len(negatives)
    above = float(ranks.double()[places][m:].sum()) - n * (n + 1) / 2
    return above / (n * m)
