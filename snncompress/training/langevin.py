"""Samples of the weights' posterior by stochastic gradient Langevin dynamics, and their first two moments.

From where training converged, without multiplicative noise, for N training images and the prior w ~ N(0, σ₀²):

    θ ← θ − lr/4 · ∇[N · mean loss + ‖θ‖²/2σ₀²] + ε,   ε ~ N(0, T·lr/2)

with lr falling as (1 + t/τ)^−0.55. T = 1 samples the posterior. Below 1 the posterior is a cold one, p^(1/T), and at
T = 0 only the noise of the batches is left: variances are then those of stochastic gradient descent. Mean and variance
of every weight are gathered as the samples pass (Welford), so that any number of them costs the memory of two copies.
Afterwards the network has the posterior's mean.

Welling, Teh: Bayesian Learning via Stochastic Gradient Langevin Dynamics, ICML 2011; used for weight pruning by
Nalisnick, Anandkumar, Smyth, 2015.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from snncompress.errors import UsageError
from snncompress.models.layers import find_zeros
from snncompress.training.learner import Loss, precise_type

POWER = 0.55  # of the decay: between 0.5 and 1 samples converge to the posterior
PHASES = 100  # the decay's time constant is this share of all samples
PLAIN_RATE = 0.01  # lr·N/4, the rate of the gradient descent within, where the user gives no lr


@dataclass(frozen=True)
class PosteriorOptions:
    """How many samples, and how they are drawn."""

    samples: int
    lr: float | None = None  # 4·0.01/N when absent
    prior_std: float = 1.0  # σ₀
    temperature: float = 1.0  # T

    def __post_init__(self) -> None:
        if self.samples < 2:
            raise UsageError(f"--posterior sgld:{self.samples}: moments need at least 2 samples")
        if self.lr is not None and not 0 < self.lr < math.inf:
            raise UsageError(f"--posterior-lr {self.lr:g} is out of range; give a number above 0")
        if not 0 < self.prior_std < math.inf:
            raise UsageError(f"--prior-std {self.prior_std:g} is out of range; give a number above 0")
        if not 0 <= self.temperature < math.inf:
            raise UsageError(f"--posterior-temperature {self.temperature:g} is out of range; give 0 or more")

    @classmethod
    def parse(
        cls, text: str, lr: float | None = None, prior_std: float = 1.0, temperature: float = 1.0
    ) -> PosteriorOptions:
        """``sgld:10000`` as options."""
        kind, _, count = text.partition(":")
        if kind != "sgld" or not count.isdecimal():
            raise UsageError(f"--posterior '{text}' is not of the form sgld:10000")
        return cls(int(count), lr, prior_std, temperature)


class Langevin:
    """The walk through the weights and the moments of where it has been; zeros of a ``sparse`` model stay."""

    def __init__(
        self, model: nn.Module, loss: Loss, options: PosteriorOptions, examples: int, *, sparse: bool = False
    ) -> None:
        self.model = model
        self.loss = loss
        self.options = options
        self.examples = examples
        self.lr = 4 * PLAIN_RATE / examples if options.lr is None else options.lr
        self.count = 0
        self._stuck = find_zeros(model) if sparse else {}
        self.parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._mean = {name: _zeros(p) for name, p in self.parameters.items()}
        self._squares = {name: _zeros(p) for name, p in self.parameters.items()}  # Σ (θ − mean)²

    def rate(self) -> float:
        """The lr of the next sample."""
        return self.lr * math.pow(1 + self.count * PHASES / self.options.samples, -POWER)

    def step(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Draws a sample and adds it to the moments; returns the mean loss of the batch before it."""
        self.model.train()
        self.model.zero_grad(set_to_none=True)
        loss = self.loss(self.model(inputs), targets)
        loss.backward()
        lr, shrink = self.rate(), 1 / self.options.prior_std**2
        noise = math.sqrt(self.options.temperature * lr / 2)
        self.count += 1
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                if parameter.grad is not None:  # else it stays: a layer that was not called
                    gradient = parameter.grad.mul_(self.examples).add_(parameter, alpha=shrink)
                    parameter.sub_(gradient, alpha=lr / 4).add_(torch.randn_like(parameter), alpha=noise)
                if name in self._stuck:
                    parameter.masked_fill_(self._stuck[name], 0.0)
                self._gather(name, parameter)
        return loss.detach()

    def _gather(self, name: str, sample: Tensor) -> None:
        """Welford's update."""
        mean = self._mean[name]
        before = sample.to(mean.dtype) - mean
        mean.add_(before, alpha=1 / self.count)
        self._squares[name].addcmul_(before, sample.to(mean.dtype) - mean)

    def moments(self) -> dict[str, Tensor]:
        """Mean and variance of every parameter, as ``NAME.mean`` and ``NAME.variance``, on the CPU."""
        found = {}
        for name in self.parameters:
            found[f"{name}.mean"] = self._mean[name].float().cpu()
            found[f"{name}.variance"] = (self._squares[name] / (self.count - 1)).float().cpu()
        return found

    @torch.no_grad()
    def settle(self) -> None:
        """Gives the network the posterior's mean."""
        for name, parameter in self.parameters.items():
            parameter.copy_(self._mean[name])

    def tensors(self) -> dict[str, Tensor]:
        """What a resumed walk needs beside the weights."""
        mean = {f"posterior.mean.{name}": tensor for name, tensor in self._mean.items()}
        return mean | {f"posterior.squares.{name}": tensor for name, tensor in self._squares.items()}

    def restore(self, tensors: dict[str, Tensor], count: int) -> None:
        """Goes on where ``tensors`` were taken."""
        self.count = count
        for name in self.parameters:
            self._mean[name].copy_(tensors[f"posterior.mean.{name}"])
            self._squares[name].copy_(tensors[f"posterior.squares.{name}"])


def _zeros(parameter: Tensor) -> Tensor:
    return torch.zeros_like(parameter, dtype=precise_type(parameter.device), requires_grad=False)
