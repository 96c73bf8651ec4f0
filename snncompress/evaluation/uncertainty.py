"""How unsure a model is of single samples.

For probabilities p_k of K samples of the network (K = 1: of its mean) and p̄ = 1/K Σ_k p_k:

    entropy              H(p̄) = −Σ_c p̄_c·log p̄_c
    mutual information   H(p̄) − 1/K Σ_k H(p_k), between the prediction and the noise
    loss                 −log p̄_t for the given label t
    sigma                mean over layers of 1/n Σ_j log σ_j, over the n values of a stochastic layer (SE-SNN, Eq. 6)

σ is read off the noise branches while the mean is passed on; nothing is drawn for it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sized
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor, nn

from snncompress.errors import DataError, UsageError
from snncompress.evaluation.accuracy import check_outputs
from snncompress.evaluation.likelihood import average, log_likelihood
from snncompress.evaluation.predictions import watch_sigma
from snncompress.evaluation.sampling import own_random_numbers
from snncompress.models.modes import evaluating
from snncompress.noise.attach import Noise
from snncompress.noise.branch import Mode
from snncompress.progress import Progress
from snncompress.run import Run


class Score(StrEnum):
    """What says that a sample is odd; the larger, the odder."""

    SIGMA = "sigma"
    LOSS = "loss"
    ENTROPY = "entropy"
    INFORMATION = "information"

    @property
    def words(self) -> str:
        """What a table calls it."""
        return {
            Score.SIGMA: "mean log σ",
            Score.LOSS: "loss of the given label",
            Score.ENTROPY: "entropy of the prediction",
            Score.INFORMATION: "mutual information",
        }[self]


@dataclass(frozen=True)
class SampleScores:
    """Scores of every sample, (N,) each, with the class that is predicted for it and the label that it has."""

    scores: dict[Score, Tensor]
    predicted: Tensor
    labels: Tensor


def score_samples(
    run: Run,
    batches: Iterable[tuple[Tensor, Tensor]],
    *,
    draws: int = 0,
    labelled: bool = True,
    seed: int = 0,
    device: torch.device | None = None,
    progress: Progress | None = None,
    task: str = "score",
) -> SampleScores:
    """Scores samples by all that a run can say of them; it is left as it is.

    Args:
        run: a classifier.
        batches: pairs of inputs and labels, on the device.
        draws: samples of the noise for each input; 0 predicts by the mean network.
        labelled: whether the labels are of the run's classes; without them there is no loss.
        seed: of the noise.
        device: where the batches are.
        progress: who listens, one step a batch.
        task: what the listener calls this work.
    """
    device, progress = device or torch.device("cpu"), progress or Progress()
    model = copy.deepcopy(run.model).to(device)
    noise = run.attach_noise(model)
    if draws and noise is None:
        raise UsageError(f"{run.name} was not trained with noise: there is nothing to sample; leave --samples out")
    if noise is not None:
        noise.to(device)
    found: dict[Score, list[Tensor]] = {}
    predicted, labels = [], []
    progress.start(task, len(batches) if isinstance(batches, Sized) else 0)
    with evaluating(model), own_random_numbers(model, seed):
        for inputs, given in batches:
            logits, sigma = _by_mean(model, noise, inputs)
            check_outputs(logits, given if labelled else given.new_zeros(len(given), dtype=torch.int64))
            outputs = logits[None] if not draws else torch.stack([model(inputs) for _ in range(draws)])  # (K, B, C)
            merged = average(outputs, run.task)
            entropy = _entropy(merged)
            scores = {Score.SIGMA: sigma, Score.ENTROPY: entropy}
            if draws:
                scores[Score.INFORMATION] = entropy - _entropy(outputs).mean(0)
            if labelled:
                scores[Score.LOSS] = -log_likelihood(merged, given)
            for name, values in scores.items():
                if values is not None:
                    found.setdefault(name, []).append(values.float().cpu())
            predicted.append(merged.argmax(-1).cpu())
            labels.append(given.cpu())
            progress.advance()
    progress.finish()
    if not labels:
        raise DataError("there are no images to score; check the data set and its split")
    return SampleScores({name: torch.cat(parts) for name, parts in found.items()}, *map(torch.cat, (predicted, labels)))


def _entropy(logits: Tensor) -> Tensor:
    log_p = logits.float().log_softmax(-1)
    return -(log_p.exp() * log_p).sum(-1)


def _by_mean(model: nn.Module, noise: Noise | None, inputs: Tensor) -> tuple[Tensor, Tensor | None]:
    """Outputs of the mean network, and mean log σ of each sample where the branches know it."""
    if noise is None:
        return model(inputs), None
    count = len(inputs)  # positions are the sample's own
    pairs = [(layer, branch) for _, branch, layer in noise.pairs()]
    with (
        noise.mode(Mode.MEAN),
        watch_sigma(pairs, lambda sigma: sigma.log().reshape(count, sigma.numel() // count).mean(1)) as sigmas,
    ):
        outputs: Tensor = model(inputs)
    return outputs, torch.stack(sigmas).mean(0) if sigmas else None
