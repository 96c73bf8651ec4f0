"""``log-alpha``: −log α of a weight, α = σ²/μ²: its dropout rate.

    log α > τ  goes,   τ = 3 unless you say otherwise (a dropout rate over 0.95)

The order is that of ``snr``; the threshold is the published one.

Molchanov, Ashukha, Vetrov: Variational Dropout Sparsifies Deep Neural Networks, ICML 2017.
"""

from __future__ import annotations

from torch import Tensor

from snncompress.noise.weights import FLOOR

THRESHOLD = 3.0
SIGN = -1  # of the threshold: what is above it goes


def score(mean: Tensor, deviation: Tensor) -> Tensor:
    """−log σ² + log μ², floored as in training."""
    return (mean.square() + FLOOR).log() - 2 * deviation.log()
