"""``forward``: learns which class is taken for which, then lets the network predict the true one.

With T_ij the probability that an image of class i is labelled j, and q = softmax(f(x)) (Theorem 2):

    L = −log Σ_i T_it·q_i      for the label t

T is estimated from the probabilities p of a first network that was trained on the same noisy labels (Eq. 12, 13): for
each class i, x^i is the training image whose p(i | x) is at the 97th percentile, and

    T_ij = p(j | x^i)

The percentile leaves out what the first network is sure of by accident; 100 takes the largest p(i | x), which is better
where a class has less than 3% of the images.

Patrini, Rozza, Menon, Nock, Qu: Making Deep Neural Networks Robust to Label Noise: a Loss Correction Approach,
CVPR 2017.
"""

from __future__ import annotations

import torch
from torch import Tensor

from snncompress.errors import UsageError
from snncompress.training.correcting import Labels, Loss

DEFAULT = 97.0  # the percentile
NEEDS_FIRST = True
IS_LIKELIHOOD = True
FLOOR = 1e-8  # of T's entries: a label that never happened in the estimate must not give an infinite loss


def make(percentile: float, labels: Labels) -> Loss:
    """The loss for T as estimated at a percentile."""
    if not 0 < percentile <= 100:
        raise UsageError(f"--correction forward:{percentile:g} is out of range; give a percentile above 0, up to 100")
    matrix = estimate(labels.probabilities(), percentile)
    labels.tell(matrix)
    return corrected(matrix.to(labels.device))


def corrected(matrix: Tensor) -> Loss:
    """The loss for T (classes, classes), on the device of what is learned."""
    log_t = matrix.clamp_min(FLOOR).log()

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        log_q = outputs.float().log_softmax(-1)
        return -(log_q + log_t[:, targets].T).logsumexp(-1).mean()  # (B, classes) → ()

    return loss


def estimate(probabilities: Tensor, percentile: float) -> Tensor:
    """T (classes, classes) from the first network's probabilities (N, classes); its rows sum to 1."""
    place = int(percentile / 100 * (len(probabilities) - 1))
    chosen = probabilities.argsort(0)[place]  # for each class, the image at the percentile
    return torch.index_select(probabilities, 0, chosen)
