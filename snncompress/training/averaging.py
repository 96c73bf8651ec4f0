"""The mean of the weights over the last epochs, as the result of training.

    w̄ = 1/T · Σ_t w_t

over the T steps of these epochs. At a rate that stays high, weights walk around a minimum of the loss; their mean lies
nearer to its middle than any of them, and generalizes better. Batch norms are given the statistics of the mean.

Izmailov, Podoprikhin, Garipov, Vetrov, Wilson: Averaging Weights Leads to Wider Optima and Better Generalization,
UAI 2018 (there once an epoch, here after every step).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from snncompress.training.learner import precise_type


class WeightAverage:
    """The mean of some parameters, gathered as training passes; zeros that stay zero are zeros of it, too.

    Args:
        parameters: what the optimizer changes, by name.
        begin: the step after which weights are gathered.
    """

    def __init__(self, parameters: Mapping[str, Tensor], begin: int) -> None:
        self.parameters = parameters
        self.begin = begin
        self._mean = {
            name: torch.zeros_like(p, dtype=precise_type(p.device), requires_grad=False)
            for name, p in parameters.items()
        }

    @torch.no_grad()
    def gather(self, step: int) -> None:
        """Adds the weights as they are after a step."""
        if (count := step - self.begin) > 0:
            for name, mean in self._mean.items():
                mean.add_(self.parameters[name].to(mean.dtype) - mean, alpha=1 / count)

    @torch.no_grad()
    def settle(self) -> None:
        """Gives the parameters their mean."""
        for name, parameter in self.parameters.items():
            parameter.copy_(self._mean[name])

    def tensors(self) -> dict[str, Tensor]:
        """What a resumed run needs beside the weights."""
        return {f"average.{name}": mean for name, mean in self._mean.items()}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Goes on where ``tensors`` were taken."""
        for name, mean in self._mean.items():
            mean.copy_(tensors[f"average.{name}"])
