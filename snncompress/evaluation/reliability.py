"""How far a classifier's confidence is from its accuracy.

The expected calibration error (Eq. 10 of Yu et al.; Naeini, Cooper, Hauskrecht, AAAI 2015) over bins B_k of equal width
on the confidence, the largest probability of a prediction:

    ECE = Σ_k |B_k|/n · |acc(B_k) − conf(B_k)|

A bin holds its lower end and not its upper one; the last holds both. The Brier score is Σ_c (p_c − 1[c = label])², of a
prediction from 0 to 2.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

BINS = 15  # the paper's


@dataclass(frozen=True)
class Reliability:
    """What a reliability diagram shows, bin by bin from no confidence to full.

    Attributes:
        counts: Predictions in each bin.
        confidences: Their mean confidence, 0..1; 0 where there is none.
        accuracies: The share of them that is right, 0..1.
    """

    counts: tuple[int, ...]
    confidences: tuple[float, ...]
    accuracies: tuple[float, ...]

    @property
    def ece(self) -> float:
        """The expected calibration error, in percent."""
        bins = zip(self.counts, self.confidences, self.accuracies, strict=True)
        return 100 * sum(n * abs(accuracy - confidence) for n, confidence, accuracy in bins) / max(sum(self.counts), 1)


@dataclass(frozen=True)
class Score:
    """How good the probabilities of a prediction are.

    Attributes:
        error: Wrong answers, in percent.
        ece: The expected calibration error, in percent.
        nll: Mean of −log p(label), in nats.
        brier: The mean Brier score.
        reliability: The bins of the ECE.
    """

    error: float
    ece: float
    nll: float
    brier: float
    reliability: Reliability

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def measure_reliability(probabilities: Tensor, labels: Tensor, bins: int = BINS) -> Reliability:
    """Puts predictions (N, C) into bins of their confidence."""
    confidences, answers = probabilities.double().max(1)
    right = (answers == labels).double()
    inner = torch.linspace(0, 1, bins + 1, dtype=torch.float64)[1:-1]
    places = torch.bucketize(confidences, inner, right=True)
    counts = torch.bincount(places, minlength=bins)
    filled = counts.clamp_min(1)
    sums = [torch.bincount(places, values, minlength=bins) / filled for values in (confidences, right)]
    return Reliability(tuple(counts.tolist()), tuple(sums[0].tolist()), tuple(sums[1].tolist()))


def measure_score(logits: Tensor, labels: Tensor, bins: int = BINS) -> Score:
    """Scores predictions (N, C), given as logits or log-probabilities, on the CPU."""
    log_p = logits.double().log_softmax(1)
    probabilities = log_p.exp()
    reliability = measure_reliability(probabilities, labels, bins)
    truth = F.one_hot(labels, logits.shape[1])
    return Score(
        error=100 * float((log_p.argmax(1) != labels).double().mean()),
        ece=reliability.ece,
        nll=float(F.nll_loss(log_p, labels)),
        brier=float((probabilities - truth).square().sum(1).mean()),
        reliability=reliability,
    )
