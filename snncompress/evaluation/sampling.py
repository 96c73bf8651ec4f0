"""How good a stochastic model is: by one sample, by averaging samples, and its evidence lower bound.

Averaging is in probability space (Eq. 2 of Neklyudov et al.): p(t | x) ≈ 1/K Σ_k p(t | x, W_k).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator, Sized
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from snncompress.errors import DataError, UsageError
from snncompress.evaluation.accuracy import Evaluation, check_outputs, evaluate
from snncompress.models.modes import evaluating
from snncompress.noise.attach import Noise
from snncompress.noise.branch import Mode
from snncompress.progress import Progress
from snncompress.run import Run


@dataclass(frozen=True)
class SampledEvaluation:
    """Scores of a stochastic model on labelled images.

    Attributes:
        one: By a single sample: the mean over the samples that were drawn.
        spread: The standard deviation of that error over the samples, in points.
        averaged: By the mean of all samples' probabilities.
        draws: How many samples there were.
    """

    one: Evaluation
    spread: float
    averaged: Evaluation
    draws: int


@dataclass(frozen=True)
class Elbo:
    """The evidence lower bound of the training data, in nats: ``data − kl``."""

    data: float
    kl: float

    @property
    def elbo(self) -> float:
        """The bound."""
        return self.data - self.kl


def evaluate_samples(
    model: nn.Module,
    noise: Noise,
    batches: Iterable[tuple[Tensor, Tensor]],
    draws: int,
    *,
    mode: Mode = Mode.SAMPLE,
    seed: int = 0,
    progress: Progress | None = None,
    task: str = "evaluate samples",
) -> SampledEvaluation:
    """Evaluates a model under noise, batch norms in evaluation mode; the caller's random numbers are left alone.

    Args:
        model: maps images to logits, its noise attached.
        noise: the branches.
        batches: pairs of images and labels, on the model's device.
        draws: how many samples to draw for each image.
        mode: ``Mode.ZERO`` samples around zero means.
        seed: of the noise.
        progress: who listens, one step a batch.
        task: what the listener calls this work.
    """
    progress = progress or Progress()
    progress.start(task, len(batches) if isinstance(batches, Sized) else 0)
    wrong, surprise = torch.zeros(draws, dtype=torch.float64), torch.zeros(draws, dtype=torch.float64)
    average = torch.zeros(2, dtype=torch.float64)
    images = 0
    with evaluating(model), noise.mode(mode), own_random_numbers(model, seed):
        for inputs, labels in batches:
            logits = torch.stack([model(inputs) for _ in range(draws)])  # (K, B, classes)
            check_outputs(logits[0], labels)
            log_p = logits.float().log_softmax(-1)
            mixed = log_p.logsumexp(0) - math.log(draws)
            truth = labels.expand(draws, -1).unsqueeze(-1)
            wrong += (log_p.argmax(-1) != labels).sum(1).cpu()
            surprise -= log_p.gather(-1, truth).sum((1, 2)).cpu().double()
            average += torch.stack([(mixed.argmax(-1) != labels).sum(), -mixed.gather(-1, truth[0]).sum()]).cpu()
            images += len(labels)
            progress.advance(1, error=100 * float(average[0]) / max(images, 1))
    progress.finish()
    if images == 0:
        raise DataError("there are no images to evaluate on; check the data set and its split")
    errors, nlls = 100 * wrong / images, surprise / images
    one = Evaluation(float(errors.mean()), float(nlls.mean()), images)
    averaged = Evaluation(100 * float(average[0]) / images, float(average[1]) / images, images)
    return SampledEvaluation(one, float(errors.std(correction=0)), averaged, draws)


def measure_elbo(
    model: nn.Module,
    noise: Noise,
    batches: Iterable[tuple[Tensor, Tensor]],
    *,
    seed: int = 0,
    progress: Progress | None = None,
) -> Elbo | None:
    """Σ log p(t | x, W) over the training data by one sample, and the KL; None for a method without a KL term."""
    with own_random_numbers(model, seed):  # Student's prior is sampled
        kl = noise.kl()
    if kl is None:
        return None
    one = evaluate_samples(model, noise, batches, 1, seed=seed, progress=progress, task="ELBO").one
    return Elbo(-one.nll * one.samples, kl)


@dataclass(frozen=True)
class StochasticEvaluation:
    """A stochastic run in all the ways it can be used."""

    mean: Evaluation  # by mean propagation
    sampled: SampledEvaluation
    elbo: Elbo | None  # of the training data, for methods that have one

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self.mean) | {
            "one_sample": asdict(self.sampled.one) | {"spread": self.sampled.spread},
            "averaged": asdict(self.sampled.averaged) | {"draws": self.sampled.draws},
            "elbo": None if self.elbo is None else asdict(self.elbo) | {"elbo": self.elbo.elbo},
        }


def evaluate_stochastic(
    run: Run,
    batches: Iterable[tuple[Tensor, Tensor]],
    training: Iterable[tuple[Tensor, Tensor]],
    draws: int,
    *,
    seed: int = 0,
    device: torch.device | None = None,
    progress: Progress | None = None,
) -> StochasticEvaluation:
    """Evaluates a run by mean propagation, by one sample and by averaging, and its ELBO.

    Args:
        run: trained with noise; it is left as it is.
        batches: what it is evaluated on.
        training: what it was trained on, without augmentation: the ELBO is about it.
        draws: samples an image.
        seed: of the noise.
        device: where the batches are.
        progress: who listens.
    """
    if draws < 1:
        raise UsageError(f"--samples {draws} is out of range; give 1 or more")
    model = copy.deepcopy(run.model).to(device or torch.device("cpu"))
    noise = run.attach_noise(model)
    if noise is None:
        raise UsageError(f"{run.name} was not trained with noise: there is nothing to sample; leave --samples out")
    noise.to(device or torch.device("cpu"))
    with noise.mode(Mode.MEAN):
        mean = evaluate(model, batches, progress, f"evaluate {run.name}")
    sampled = evaluate_samples(model, noise, batches, draws, seed=seed, progress=progress)
    return StochasticEvaluation(mean, sampled, measure_elbo(model, noise, training, seed=seed, progress=progress))


@contextmanager
def own_random_numbers(model: nn.Module, seed: int) -> Iterator[None]:
    """Seeds the default generators for a while, then sets them back."""
    device = next(model.parameters()).device
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield
