"""``vib``: Gaussian noise on every neuron's pre-activation, held close to a standard normal.

The deep variational information bottleneck. A layer gives a mean and a deviation for its input h, as SE-SNN does,

    μ = f_μ(h),   σ = softplus(f_σ(h)),   z = μ + ε·σ,   ε ~ N(0, 1)

and pays for what z tells about h, in nats, with N(0, 1) in place of the unknown marginal of z (their Eq. 17):

    L = L_cl + β·1/N Σ_i Σ_j KL(N(μ_ij, σ²_ij) ‖ N(0, 1)),   KL = ½·(μ² + σ² − 1) − log σ

over neurons (and positions) j, as a mean over samples i. With an infinitely wide prior in place of N(0, 1) only −log σ
is left: the max-entropy penalty of SE-SNN.

Alemi, Fischer, Dillon, Murphy: Deep Variational Information Bottleneck, ICLR 2017.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from snncompress.errors import UsageError
from snncompress.noise import se_snn
from snncompress.noise.branch import Branch, Layer, precise


@dataclass(frozen=True)
class Options:
    """The paper's value for MNIST's best error."""

    beta: float = 1e-3  # β, what a nat costs

    def __post_init__(self) -> None:
        if not 0 <= self.beta < math.inf:
            raise UsageError(f"method vib: option beta={self.beta:g} is out of range; give 0 or more")


class NoiseBranch(se_snn.NoiseBranch):
    """SE-SNN's branch with another prior."""

    def __init__(self, layer: Layer, options: Options, *, normed: bool) -> None:
        per_value = se_snn.Options(se_snn.Aggregate.BOTH, omega=options.beta)
        super().__init__(layer, per_value, normed=normed)

    @classmethod
    def for_options(cls, options: Any) -> type[Branch]:
        """There is one place only."""
        return cls

    def _cost(self, mean: Tensor, raw: Tensor, log_sigma: Tensor) -> Tensor:
        """The KL of one forward pass; the mean's part comes later where a batch norm follows."""
        sigma = se_snn.sigma_of(raw)
        cost = self._a_sample((sigma.square() - 1) / 2 - log_sigma)
        return cost if self.normed else cost + self._a_sample(precise(mean).square() / 2)

    def after_norm(self, normalized: Tensor) -> Tensor:
        """The noise enters after the batch norm, whose output is the mean."""
        if self._noise is not None and self._learns():
            self._omega.append(self._a_sample(precise(normalized).square() / 2))
        return super().after_norm(normalized)

    def _a_sample(self, values: Tensor) -> Tensor:
        """The sum over neurons and positions, as a mean over samples."""
        alone = values.dim() == (3 if self.weight.dim() == 4 else 1)  # a single image, without a batch
        return values.sum() / (1 if alone else len(values))

    def importance(self) -> Tensor:
        """The mean KL of each neuron, what it pays to tell something, (K,)."""
        count = max(self._observed, 1)
        return (self._mu2 + self._sigma2) / (2 * count) - 0.5 - self.mean_log_sigma()
