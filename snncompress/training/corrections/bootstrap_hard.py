"""``bootstrap-hard``: mixes the class that the network itself holds most likely into the label.

For probabilities q = softmax(f(x)) and a label t, one-hot (Eq. 7):

    L = −Σ_k [β·t_k + (1 − β)·z_k]·log q_k,   z_k = 1 if k = argmax q else 0,   β = 0.8

Reed, Lee, Anguelov, Szegedy, Erhan, Rabinovich: Training Deep Neural Networks on Noisy Labels with Bootstrapping,
ICLR workshop 2015.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from snncompress.training.correcting import Labels, Loss, check_share

DEFAULT = 0.8  # β, the trust in the label
NEEDS_FIRST = False
IS_LIKELIHOOD = False


def make(beta: float, labels: Labels) -> Loss:
    """The loss for a trust β."""
    check_share("bootstrap-hard", beta)

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        own = F.cross_entropy(outputs, outputs.detach().argmax(-1))
        return beta * F.cross_entropy(outputs, targets) + (1 - beta) * own

    return loss
