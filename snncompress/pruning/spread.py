"""How importance is spread over the neurons, or the weights, that pruning began with, and which of them it took.

Pruning writes down what it kept, not what it thought of each neuron, so the scores are taken again: from the run that
it began with, with the same criterion and on as many training images as a round looks at. Scores change as a network
shrinks, so these are the ones before the first neuron went.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from snncompress import registry
from snncompress.data.dataset import Dataset
from snncompress.models.layers import weight_layers
from snncompress.noise.se_snn import NoiseBranch as EntropyBranch
from snncompress.noise.weights import WeightBranch
from snncompress.pruning.moments import weight_moments
from snncompress.pruning.neurons import SCORED_BATCHES
from snncompress.pruning.scoring import pick_criterion
from snncompress.pruning.sparsifier import CRITERIA, pick_weight_criterion
from snncompress.pruning.sparsify import make_subject
from snncompress.pruning.subject import Subject
from snncompress.run import Run
from snncompress.training.feed import make_feed, pick_device
from snncompress.training.options import TrainOptions

BINS = 24
UNTOLD = ("oracle", "random")  # criteria: one takes too long, the other says nothing
MEASURES = {  # what the axis says
    "entropy": "Importance by entropy, normalized in its layer",
    "information": "Information of a neuron (nats)",
    "log-alpha": "log α of a weight",
    "noise": "Entropy of a neuron's noise: mean log σ",
}


@dataclass(frozen=True)
class Spread:
    """The scores of one layer, counted.

    Attributes:
        layer: its name.
        measure: what its neurons or weights are measured by, in words.
        edges: of the bins.
        kept: how many there are in each bin, of what stayed, or of all where nobody knows what went.
        removed: how many of what went; None where nobody knows.
        weights: whether weights are counted, not neurons.
    """

    layer: str
    measure: str
    edges: tuple[float, ...]
    kept: tuple[int, ...]
    removed: tuple[int, ...] | None
    weights: bool = False


def of_weights(run: Run) -> bool:
    """Whether what a run has learned beside its means is about weights, not about neurons."""
    if run.posterior is not None:
        return True
    method = run.noise_method
    return method is not None and issubclass(registry.load("methods", method).NoiseBranch, WeightBranch)


def neuron_spreads(before: Run, plan: Mapping[str, Any] | None, data: Dataset, device: str = "auto") -> list[Spread]:
    """What the neurons of a run are worth, layer by layer.

    Args:
        before: the run that pruning began with.
        plan: what it left, as a pruned run holds it; None where nothing was pruned.
        data: the data of the run; some training images are looked at.
        device: ``auto``, ``cpu``, ``cuda``, ...
    """
    chosen = pick_device(device)
    subject = make_subject(before, TrainOptions(), chosen)
    if not subject.groups:
        return []
    criterion = (plan or {}).get("criterion", "auto")
    criterion = pick_criterion(criterion, subject.noise, subject.posterior, subject.groups)
    if criterion in UNTOLD:
        return []
    torch.manual_seed(0)
    feed = make_feed(data, None, TrainOptions(), before.normalization, chosen)
    ranked = subject.rank(criterion, feed.plain, SCORED_BATCHES)
    scores: dict[str, dict[int, float]] = {}
    for group, value in ranked.items():
        layer, channel = group.outputs[0]
        scores.setdefault(layer, {})[channel] = value
    kept = None if plan is None else {name: set(channels) for name, channels in plan["kept"].items()}
    found = [_count_neurons(layer, criterion, values, kept) for layer, values in scores.items()]
    return _noise_spreads(subject, scores, kept) + ([] if criterion == "entropy" else found)


def _noise_spreads(
    subject: Subject, scores: Mapping[str, Mapping[int, float]], kept: Mapping[str, set[int]] | None
) -> list[Spread]:
    """The entropy of SE-SNN noise, which the branches have observed while they were asked for scores."""
    branches = {} if subject.noise is None else subject.noise.branches
    found = []
    for layer, values in scores.items():
        branch = branches.get(layer)
        if isinstance(branch, EntropyBranch) and branch.mean_log_sigma().dim():
            entropy = branch.mean_log_sigma().tolist()
            found.append(_count_neurons(layer, "noise", {channel: entropy[channel] for channel in values}, kept))
    return found


def _count_neurons(
    layer: str, criterion: str, values: Mapping[int, float], kept: Mapping[str, set[int]] | None
) -> Spread:
    scores = torch.tensor(list(values.values()), dtype=torch.float64)
    stays = None
    if kept is not None and layer in kept:
        stays = torch.tensor([channel in kept[layer] for channel in values])
    return _count(layer, _measure(criterion), scores, stays, weights=False)


def weight_spreads(before: Run, plan: Mapping[str, Any] | None) -> list[Spread]:
    """What the weights of a run are worth, layer by layer; no data is needed.

    Args:
        before: the run that pruning began with.
        plan: what ``prune --weights`` wrote down; None where nothing was pruned.
    """
    subject = make_subject(before, TrainOptions(), torch.device("cpu"))
    plan = plan or {"criterion": pick_weight_criterion("auto", subject.noise, subject.posterior), "points": [{}]}
    criterion = plan["criterion"]
    module = registry.load(CRITERIA, criterion)
    if criterion in UNTOLD:
        return []
    moments = weight_moments(subject.model, subject.noise, subject.posterior)
    sign, threshold = getattr(module, "SIGN", 1), plan.get("threshold")
    if plan["points"][-1].get("round", 0) > 1:
        threshold = None  # fine-tuning between rounds changes scores: those of the beginning do not tell which went
    found = []
    for layer, module_of_layer in weight_layers(subject.model).items():
        weight = module_of_layer.weight.detach()
        mean, deviation = moments.get(layer, (weight, torch.zeros_like(weight)))
        if layer not in moments and getattr(module, "NEEDS_DEVIATION", True):
            continue
        scores = module.score(mean, deviation).detach().double().flatten()
        alive = deviation.flatten() != 0 if before.hollow else mean.flatten() != 0
        stays = (scores >= sign * threshold) & alive if threshold is not None else None
        found.append(_count(layer, _measure(criterion), sign * scores, stays, weights=True))
    return found


def _measure(criterion: str) -> str:
    return MEASURES.get(criterion, f"Importance by {criterion}")


def _count(layer: str, measure: str, scores: Tensor, stays: Tensor | None, *, weights: bool) -> Spread:
    finite = scores.isfinite()
    scores, stays = scores[finite], None if stays is None else stays[finite]
    low, high = (float(scores.min()), float(scores.max())) if len(scores) else (0.0, 1.0)
    if not high > low:  # all alike
        low, high = low - 0.5, low + 0.5
    edges = tuple(low + (high - low) * index / BINS for index in range(BINS + 1))

    def histogram(values: Tensor) -> tuple[int, ...]:
        return tuple(int(count) for count in torch.histc(values, BINS, low, math.nextafter(high, math.inf)))

    if stays is None:
        return Spread(layer, measure, edges, histogram(scores), None, weights)
    return Spread(layer, measure, edges, histogram(scores[stays]), histogram(scores[~stays]), weights)
