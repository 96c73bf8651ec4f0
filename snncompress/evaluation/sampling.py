"""How good a stochastic model is: by one sample, by averaging samples, and its evidence lower bound.

Averaging is in probability space (Eq. 2 of Neklyudov et al.): p(t | x) ≈ 1/K Σ_k p(t | x, W_k). Where the target is a
number, the prediction is the mean of the samples' outputs, and p a mixture of Gaussians of unit variance.
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

from snncompress.data.task import Task
from snncompress.errors import DataError, UsageError
from snncompress.evaluation.accuracy import Evaluation, check_outputs, evaluate
from snncompress.evaluation.likelihood import average, faults, log_likelihood
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
        spread: The standard deviation of that error over the samples, in its unit.
        nll_spread: The same of its negative log-likelihood, in nats.
        averaged: By the mean of all samples' probabilities, or of their outputs where these are numbers.
        draws: How many samples there were.
    """

    one: Evaluation
    spread: float
    nll_spread: float
    averaged: Evaluation
    draws: int


@dataclass(frozen=True)
class Elbo:
    """The evidence lower bound of the training data, in nats: ``data − kl``.

    Attributes:
        data: Σ log p(t | x, W), the mean over samples of W.
        kl: To the prior.
        deviation: The standard error of that mean; zero for a single sample, of which it is not known.
    """

    data: float
    kl: float
    deviation: float

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
        model: maps images to logits or numbers, its noise attached.
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
    fault, surprise = torch.zeros(draws, dtype=torch.float64), torch.zeros(draws, dtype=torch.float64)
    averaged_fault, averaged_surprise = 0.0, 0.0
    images, learned = 0, Task.CLASSIFICATION
    with evaluating(model), noise.mode(mode), own_random_numbers(model, seed):
        for inputs, labels in batches:
            outputs = torch.stack([model(inputs) for _ in range(draws)])  # (K, B, classes)
            check_outputs(outputs[0], labels)
            learned = Task.of(labels)
            log_p = log_likelihood(outputs, labels)  # (K, B)
            fault += faults(outputs, labels).cpu().double().sum(1)
            surprise -= log_p.cpu().double().sum(1)
            averaged_fault += float(faults(average(outputs, learned), labels).cpu().double().sum())
            averaged_surprise -= float((log_p.logsumexp(0) - math.log(draws)).cpu().double().sum())
            images += len(labels)
            progress.advance(1, **{learned.measure: learned.error(averaged_fault / max(images, 1))})
    progress.finish()
    if images == 0:
        raise DataError("there are no images to evaluate on; check the data set and its split")
    errors = torch.tensor([learned.error(share) for share in (fault / images).tolist()], dtype=torch.float64)
    one = Evaluation(float(errors.mean()), float(surprise.mean()) / images, images)
    averaged = Evaluation(learned.error(averaged_fault / images), averaged_surprise / images, images)
    spreads = float(errors.std(correction=0)), float(surprise.std(correction=0)) / images
    return SampledEvaluation(one, *spreads, averaged, draws)


def measure_elbo(
    model: nn.Module,
    noise: Noise,
    batches: Iterable[tuple[Tensor, Tensor]],
    draws: int = 1,
    *,
    seed: int = 0,
    progress: Progress | None = None,
) -> Elbo | None:
    """Σ log p(t | x, W) over the training data, and the KL; None for a method without a KL term."""
    with own_random_numbers(model, seed):  # Student's prior is sampled
        kl = noise.kl()
    if kl is None:
        return None
    found = evaluate_samples(model, noise, batches, draws, seed=seed, progress=progress, task="ELBO")
    images = found.one.samples
    return Elbo(-found.one.nll * images, kl, found.nll_spread * images / math.sqrt(max(draws - 1, 1)))


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
    check_draws(draws)
    model = copy.deepcopy(run.model).to(device or torch.device("cpu"))
    noise = run.attach_noise(model)
    if noise is None:
        raise UsageError(f"{run.name} was not trained with noise: there is nothing to sample; leave --samples out")
    noise.to(device or torch.device("cpu"))
    with noise.mode(Mode.MEAN):
        mean = evaluate(model, batches, progress, f"evaluate {run.name}")
    sampled = evaluate_samples(model, noise, batches, draws, seed=seed, progress=progress)
    bound = measure_elbo(model, noise, training, draws, seed=seed, progress=progress)
    return StochasticEvaluation(mean, sampled, bound)


def check_draws(draws: int) -> None:
    """Raises unless there is a sample to draw."""
    if draws < 1:
        raise UsageError(f"--samples {draws} is out of range; give 1 or more")


@contextmanager
def own_random_numbers(model: nn.Module, seed: int) -> Iterator[None]:
    """Seeds the default generators for a while, then sets them back."""
    device = next(model.parameters()).device
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield
