"""All predictions of a run for some images: by mean propagation, by averaged samples, and Σσ of its last noise."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from snncompress.errors import DataError
from snncompress.evaluation.accuracy import check_outputs
from snncompress.evaluation.sampling import own_random_numbers
from snncompress.models.modes import evaluating
from snncompress.noise.attach import Noise
from snncompress.noise.branch import Branch, Mode
from snncompress.progress import Progress


@dataclass(frozen=True)
class Predictions:
    """What a model says of N images, on the CPU.

    Attributes:
        labels: The truth, (N,).
        logits: By mean propagation, (N, C).
        averaged: By the mean of so many samples' probabilities, as logarithms, (N, C) each.
        spread: Σ_j σ_ij of the last stochastic layer that predicts its σ, (N,); None if there is none.
    """

    labels: Tensor
    logits: Tensor
    averaged: dict[int, Tensor]
    spread: Tensor | None


def find_sigma_layer(noise: Noise | None) -> str | None:
    """The last layer whose noise predicts a σ for each input, which is nearest to the classifier."""
    branches = {} if noise is None else noise.branches
    return next((name for name in reversed(branches) if type(branches[name]).sigma is not Branch.sigma), None)


@contextmanager
def watch_sigma(
    pairs: Iterable[tuple[nn.Module, Branch]], reduce: Callable[[Tensor], Tensor]
) -> Iterator[list[Tensor]]:
    """Gathers ``reduce(σ)`` of every call of some layers whose branches predict a σ; others give nothing."""
    found: list[Tensor] = []
    handles = []
    for layer, branch in pairs:

        def note(module: nn.Module, inputs: tuple[Tensor, ...], branch: Branch = branch) -> None:
            sigma = branch.sigma(module, inputs[0])  # type: ignore[arg-type]
            if sigma is not None:
                found.append(reduce(sigma))

        handles.append(layer.register_forward_pre_hook(note))
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def watch_spread(layer: nn.Module, branch: Branch) -> AbstractContextManager[list[Tensor]]:
    """Gathers Σσ (B,) of every call of a layer."""
    return watch_sigma([(layer, branch)], lambda sigma: sigma.flatten(1).sum(1))


def predict(
    model: nn.Module,
    noise: Noise | None,
    batches: Iterable[tuple[Tensor, Tensor]],
    counts: Sequence[int] = (),
    *,
    seed: int = 0,
    progress: Progress | None = None,
    task: str = "predict",
) -> Predictions:
    """Predicts, in evaluation mode and without gradients; the caller's random numbers are left alone.

    Args:
        model: Maps images to logits, its noise attached.
        noise: The branches, if any.
        batches: Pairs of images and labels, on the model's device.
        counts: Of samples to average over, in rising order; none without noise.
        seed: Of the noise.
        progress: Who listens, one step a batch.
        task: What the listener calls this work.
    """
    progress = progress or Progress()
    progress.start(task, len(batches) if isinstance(batches, Sized) else 0)
    labels: list[Tensor] = []
    logits: list[Tensor] = []
    spreads: list[Tensor] = []
    averaged: dict[int, list[Tensor]] = {count: [] for count in counts}
    layer = find_sigma_layer(noise)
    with evaluating(model), own_random_numbers(model, seed):
        for inputs, truth in batches:
            mean, spread = _by_mean(model, noise, layer, inputs)
            check_outputs(mean, truth)
            labels.append(truth.cpu())
            logits.append(mean.cpu())
            spreads += [] if spread is None else [spread.cpu()]
            if noise is not None and counts:
                for count, log_p in _by_samples(model, noise, inputs, counts):
                    averaged[count].append(log_p)
            progress.advance(1)
    progress.finish()
    if not labels:
        raise DataError("there are no images to predict; check the data set and its split")
    return Predictions(
        torch.cat(labels), torch.cat(logits), {count: torch.cat(parts) for count, parts in averaged.items()},
        torch.cat(spreads) if spreads else None,
    )  # fmt: skip


def _by_mean(model: nn.Module, noise: Noise | None, layer: str | None, inputs: Tensor) -> tuple[Tensor, Tensor | None]:
    if noise is None or layer is None:
        with noise.mode(Mode.MEAN) if noise is not None else nullcontext():
            return model(inputs), None
    with noise.mode(Mode.MEAN), watch_spread(model.get_submodule(layer), noise.branches[layer]) as found:
        logits: Tensor = model(inputs)
    return logits, torch.stack(found).sum(0)


def _by_samples(model: nn.Module, noise: Noise, inputs: Tensor, counts: Sequence[int]) -> Iterator[tuple[int, Tensor]]:
    """The logarithm of the mean probability after each of some counts of samples."""
    draw = _sampler(model, noise, inputs)
    total: Tensor | None = None
    with noise.mode(Mode.SAMPLE):
        for drawn in range(1, max(counts) + 1):
            log_p = draw().float().log_softmax(-1)
            total = log_p if total is None else torch.logaddexp(total, log_p)
            if drawn in counts:
                yield drawn, (total - math.log(drawn)).cpu()


def _sampler(model: nn.Module, noise: Noise, inputs: Tensor) -> Callable[[], Tensor]:
    """Draws a sample of the outputs; all that comes before a classifier which alone is stochastic is computed once."""
    if len(noise.branches) > 1:
        return lambda: model(inputs)
    layer = model.get_submodule(next(iter(noise.branches)))
    calls: list[tuple[Tensor, Tensor]] = []
    handle = layer.register_forward_hook(lambda _, given, made: calls.append((given[0], made)))
    try:
        with noise.mode(Mode.MEAN):
            outputs = model(inputs)
    finally:
        handle.remove()
    if len(calls) == 1 and calls[0][1] is outputs:
        return lambda: layer(calls[0][0])
    return lambda: model(inputs)
