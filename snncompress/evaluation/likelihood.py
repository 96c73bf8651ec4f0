"""What single predictions are worth: faults, log-likelihoods, averages, and the loss that training minimizes.

A classifier's likelihood is its softmax. A regression's is a Gaussian of unit variance around the prediction:

    −log p(y | x) = (y − f(x))²/2 + log(2π)/2

Its loss is the part that depends on f, half the squared error, so that KL terms, Langevin dynamics and the evidence
lower bound speak of the likelihood that training maximizes.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from snncompress.data.task import Task
from snncompress.errors import ModelError

HALF_LOG_2PI = math.log(2 * math.pi) / 2


def default_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Half the mean squared error where the targets are one float a sample, else cross-entropy."""
    if Task.of(targets) is Task.CLASSIFICATION:
        return F.cross_entropy(outputs, targets)
    if outputs.numel() != len(targets):
        raise one_output_needed(outputs, targets)
    return squares(as_rows(outputs), targets).mean() / 2


def one_output_needed(outputs: Tensor, targets: Tensor) -> ModelError:
    """The error for a model that gives more, or less, than one number a sample."""
    return ModelError(
        f"the model's output for {len(targets)} samples is {tuple(outputs.shape)}, but their targets are single "
        "numbers (floats); build it with one output, or give class numbers (integers) as labels"
    )


def squares(outputs: Tensor, targets: Tensor) -> Tensor:
    """Squared distances (..., B) of outputs (..., B, 1) from targets (B,) or (B, 1), in float32 at least."""
    predicted = outputs.squeeze(-1).to(torch.promote_types(outputs.dtype, torch.float32))
    return (predicted - targets.flatten().to(predicted.dtype)).square()


def as_rows(outputs: Tensor) -> Tensor:
    """Outputs of B samples as (B, C), whatever shape the model gives them."""
    return outputs.flatten(1) if outputs.dim() > 1 else outputs.unsqueeze(1)


def faults(outputs: Tensor, targets: Tensor) -> Tensor:
    """What each sample contributes to the error (``Task.error``), (..., B) for outputs (..., B, C)."""
    if Task.of(targets) is Task.REGRESSION:
        return squares(outputs, targets)
    return outputs.argmax(-1) != targets


def log_likelihood(outputs: Tensor, targets: Tensor) -> Tensor:
    """The log of p(target) for each sample, (..., B) for outputs (..., B, C)."""
    if Task.of(targets) is Task.REGRESSION:
        return -squares(outputs, targets) / 2 - HALF_LOG_2PI
    truth = targets.expand(outputs.shape[:-1]).unsqueeze(-1)
    return outputs.float().log_softmax(-1).gather(-1, truth).squeeze(-1)


def average(outputs: Tensor, task: Task) -> Tensor:
    """The prediction (B, C) of several samples' outputs (K, B, C): mean probabilities as logits, or mean numbers."""
    if task is Task.REGRESSION:
        return outputs.float().mean(0)
    return outputs.float().log_softmax(-1).logsumexp(0) - math.log(len(outputs))
