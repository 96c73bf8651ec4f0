"""What is attacked: pixels go in, normalization is inside, and noise is averaged out of gradients and predictions.

Attacks on a stochastic network follow expected gradients, or what looks like a defence is only bad aim (Athalye,
Carlini, Wagner: Obfuscated Gradients Give a False Sense of Security, ICML 2018). For samples k of the noise, logits z_k
and probabilities p_k = softmax(z_k), an attack on label y follows the gradient of one of

    expected   1/K Σ_k −log p_ky
    averaged   −log 1/K Σ_k p_ky, that of the prediction itself, which is an average of probabilities
    mean       −log p_y of mean propagation: an attack that was made for another network
    rounded    as expected, but left to float32 and automatic differentiation: what not to do

Only the direction of that gradient counts, image by image, and it must not get lost where p_y is 1 to the last digit
(a network with large logits would seem to be safe). With the log-odds o = log Σ_{j≠y} p_j − log p_y

    ∇(−log p_y) = (1 − p_y)·∇o

so that the factor 1 − p_y is put aside: it stays as the weight of a sample among the others, in logarithms. In
``rounded`` gradients it becomes zero for margins of 17 and more, and the label's own logit is lost from the direction.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from enum import StrEnum

import torch
from torch import Tensor, nn

from snncompress.data.dataset import Normalization
from snncompress.errors import UsageError
from snncompress.noise.attach import Noise
from snncompress.noise.branch import Mode
from snncompress.run import Run


class Gradient(StrEnum):
    """Which gradient an attack on a stochastic network, or on an ensemble, follows."""

    EXPECTED = "expected"
    AVERAGED = "averaged"
    MEAN = "mean"
    ROUNDED = "rounded"


class Member:
    """One network in evaluation mode, its noise attached, with nothing to learn."""

    def __init__(self, run: Run, device: torch.device) -> None:
        self.model: nn.Module = copy.deepcopy(run.model).to(device).eval().requires_grad_(False)
        self.normalization: Normalization = run.normalization
        noise = run.attach_noise(self.model)
        self.noise: Noise | None = None if noise is None else noise.to(device).freeze()
        self._shared = self.noise is not None  # whether samples share what comes before the first noise

    def logits(self, pixels: Tensor, draws: int) -> Tensor:
        """Logits of several samples, (K, B, classes); one of mean propagation for no draws, or without noise."""
        inputs = self.normalization(pixels)
        if self.noise is None or draws == 0:
            with self.noise.mode(Mode.MEAN) if self.noise is not None else nullcontext():
                outputs: Tensor = self.model(inputs)
            return outputs.unsqueeze(0)
        if self._shared:
            try:
                outputs = self._branching(inputs, draws)
                if outputs.dim() == 2 and len(outputs) == draws * len(inputs):
                    return outputs.view(draws, len(inputs), -1)
            except RuntimeError:  # a shortcut around the first noise, say, whose batch was not repeated
                pass
            self._shared = False
        outputs = self.model(inputs.repeat(draws, *[1] * (inputs.dim() - 1)))
        return outputs.view(draws, len(inputs), -1)

    def _branching(self, inputs: Tensor, draws: int) -> Tensor:
        """One forward pass whose batch is repeated where the first noise comes: what is before it is done once."""
        assert self.noise is not None
        modules = dict(self.model.named_modules())
        met: list[str] = []

        def repeat(module: nn.Module, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
            met.append("a noisy layer")
            x = arguments[0]
            return (x.repeat(draws, *[1] * (x.dim() - 1)),) if len(met) == 1 else None

        hooks = [modules[name].register_forward_pre_hook(repeat) for name in self.noise.branches]
        try:
            outputs: Tensor = self.model(inputs)
        finally:
            for hook in hooks:
                hook.remove()
        return outputs


class Victim:
    """One network, or several whose probabilities are averaged, as an attack sees it.

    Args:
        runs: the networks.
        gradient: which gradient is followed.
        gradient_samples: samples of the noise in every gradient.
        ensemble_samples: samples of the noise in every prediction; 0 for mean propagation.
        device: where images are.
        tick: is called after every gradient and every prediction.
    """

    def __init__(
        self,
        runs: Sequence[Run],
        *,
        gradient: Gradient = Gradient.EXPECTED,
        gradient_samples: int = 20,
        ensemble_samples: int = 10,
        device: torch.device | None = None,
        tick: Callable[[], None] = lambda: None,
    ) -> None:
        if not runs:
            raise UsageError("there is no network to attack")
        self.members = [Member(run, device or torch.device("cpu")) for run in runs]
        self.gradient_kind = gradient
        means = gradient is Gradient.MEAN or ensemble_samples == 0
        self.gradient_samples = 0 if means else gradient_samples
        self.ensemble_samples = ensemble_samples
        self.tick = tick

    def logits(self, pixels: Tensor, draws: int) -> Tensor:
        """Logits of all samples of all networks, (K, B, classes)."""
        return torch.cat([member.logits(pixels, draws) for member in self.members])

    @torch.no_grad()
    def predict(self, pixels: Tensor) -> Tensor:
        """The logarithms of averaged probabilities, (B, classes)."""
        log_p = self.logits(pixels, self.ensemble_samples).float().log_softmax(-1)
        self.tick()
        return log_p.logsumexp(0) - math.log(len(log_p))

    def ascent(self, pixels: Tensor, labels: Tensor) -> Tensor:
        """A direction in which the loss of these labels grows, of the same shape as the pixels."""
        pixels = pixels.detach().requires_grad_()
        loss = self._loss(self.logits(pixels, self.gradient_samples).float().log_softmax(-1), labels)
        (gradient,) = torch.autograd.grad(loss.sum(), pixels)
        self.tick()
        return gradient

    def _loss(self, log_p: Tensor, labels: Tensor) -> Tensor:
        """What grows along the attack, (B,)."""
        if self.gradient_kind is Gradient.AVERAGED:
            return log_odds(log_p.logsumexp(0), labels)[0]
        if self.gradient_kind is Gradient.ROUNDED:
            truth = labels.expand(log_p.shape[:-1]).unsqueeze(-1)
            return -log_p.gather(-1, truth).squeeze(-1).mean(0)
        odds, weight = log_odds(log_p, labels)  # (K, B)
        return (weight.detach().softmax(0) * odds).sum(0)


def log_odds(log_p: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The log-odds log Σ_{j≠y} p_j − log p_y, and its first term, (..., B) for log-probabilities (..., B, classes)."""
    truth = labels.expand(log_p.shape[:-1]).unsqueeze(-1)
    own = log_p.gather(-1, truth).squeeze(-1)
    others = log_p.scatter(-1, truth, -math.inf).logsumexp(-1)
    return others - own, others


def margin(log_p: Tensor, labels: Tensor) -> Tensor:
    """How far the label is ahead of the best other class, (..., B): below zero if it is not the answer."""
    truth = labels.expand(log_p.shape[:-1]).unsqueeze(-1)
    best = log_p.scatter(-1, truth, -math.inf).amax(-1)
    return log_p.gather(-1, truth).squeeze(-1) - best
