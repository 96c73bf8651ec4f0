"""Temperature scaling: one number that makes probabilities softer or sharper, fitted to validation data.

    p_i = softmax(l_i / T)                  Guo, Pleiss, Sun, Weinberger: On Calibration of Modern Neural Networks, 2017
    p_i = softmax(l_i / (T·Σ_j σ_ij))       sample-wise: Eq. 8 of Yu et al., AAAI 2021; σ of a stochastic layer

T minimizes the negative log-likelihood, by L-BFGS on log T. The order of the logits stays as it is, and so do the
answers.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

MOST = math.log(1000)  # |log T|, beyond which no probability changes that anyone could tell


def scaled(logits: Tensor, temperature: float, spread: Tensor | None = None) -> Tensor:
    """Logits (N, C) divided by T, or by T·Σσ for the sums (N,) of a stochastic layer's σ; in double precision."""
    divisor = temperature if spread is None else temperature * spread.double().unsqueeze(1)
    return logits.double() / divisor


def fit_temperature(logits: Tensor, labels: Tensor, spread: Tensor | None = None) -> float:
    """The T that minimizes the NLL of predictions (N, C), on the CPU.

    Where all answers are right, sharper is always better: there T ends at a thousandth.

    Args:
        logits: Or log-probabilities.
        labels: The truth.
        spread: Σ_j σ_ij of each prediction, for a sample-wise temperature.
    """
    # What T multiplies is brought to 1 first, so that the search begins where nothing is changed.
    unit = 1.0 if spread is None else float(spread.double().mean())
    values = scaled(logits, 1.0 / unit, spread)
    log_t = torch.zeros((), dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([log_t], lr=0.5, max_iter=100, line_search_fn="strong_wolfe", tolerance_grad=1e-9)

    def loss() -> Tensor:
        return F.cross_entropy(values / log_t.clamp(-MOST, MOST).exp(), labels)

    def closure() -> Tensor:
        optimizer.zero_grad()
        found = loss()
        found.backward()
        return found

    with torch.enable_grad():
        optimizer.step(closure)
    with torch.no_grad():
        if not bool(torch.isfinite(log_t)) or float(loss()) > float(F.cross_entropy(values, labels)):
            log_t.zero_()  # nothing better than the beginning was found
    return math.exp(min(max(float(log_t.detach()), -MOST), MOST)) / unit
