"""``bootstrap-soft``: mixes the network's own probabilities into the label.

For probabilities q = softmax(f(x)) and a label t, one-hot (Eq. 6):

    L = −Σ_k [β·t_k + (1 − β)·q_k]·log q_k = β·L_cl + (1 − β)·H(q),   β = 0.95

The gradient goes through q in both places, so that confident answers are preferred to hesitant ones.

Reed, Lee, Anguelov, Szegedy, Erhan, Rabinovich: Training Deep Neural Networks on Noisy Labels with Bootstrapping,
ICLR workshop 2015.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from snncompress.training.correcting import Labels, Loss, check_share

DEFAULT = 0.95  # β, the trust in the label
NEEDS_FIRST = False
IS_LIKELIHOOD = False


def make(beta: float, labels: Labels) -> Loss:
    """The loss for a trust β."""
    check_share("bootstrap-soft", beta)

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        log_q = outputs.log_softmax(-1)
        entropy = -(log_q.exp() * log_q).sum(-1).mean()
        return beta * F.nll_loss(log_q, targets) + (1 - beta) * entropy

    return loss
