"""How many neurons each layer keeps: allocations that meet the target compete on validation data.

An allocation shrinks layer l from n_l to n_l·exp(−t·s_l) neurons; t is found so that the target is met, and the
shrink rates s_l make the difference between allocations. The first candidate has s_l = 1 (all layers shrink
alike), the others draw log s_l from a normal distribution. A small network is cheap, so each candidate is cut in
one go, fine-tuned briefly and validated; the better half goes on with twice the steps (successive halving).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch

from snncompress.errors import TargetError
from snncompress.pruning.targets import FlopsModel

SPREAD = 0.6  # standard deviation of log s_l: rates between about 1/3 and 3
Widths = dict[str, int]


def shrink_to(flops: FlopsModel, target: int, rates: Mapping[str, float]) -> Widths:
    """The widest network on the line of these shrink rates that costs at most ``target``."""

    def widths(t: float) -> Widths:
        return {name: max(1, round(n * math.exp(-t * rates[name]))) for name, n in flops.widths.items()}

    if flops.least() > target:
        raise TargetError(f"a target of {target:,} FLOPs is below the {flops.least():,} of one neuron in each layer")
    low, high = 0.0, 1.0
    while flops(widths(high)) > target:
        high *= 2
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if flops(widths(middle)) > target else (low, middle)
    return fill(flops, target, widths(high))


def fill(flops: FlopsModel, target: int, widths: Widths) -> Widths:
    """Gives neurons back, to the layers that lost the largest share first, while the target still holds."""
    widths = dict(widths)
    open_layers = {name for name in widths if widths[name] < flops.widths[name]}
    while open_layers:
        name = min(open_layers, key=lambda layer: (widths[layer] / flops.widths[layer], layer))
        more = {**widths, name: widths[name] + 1}
        if flops(more) <= target:
            widths = more
        if widths != more or widths[name] == flops.widths[name]:
            open_layers.discard(name)
    return widths


def propose(flops: FlopsModel, target: int, count: int, seed: int) -> list[Widths]:
    """Up to ``count`` different allocations that meet the target; the uniform one first."""
    generator = torch.Generator().manual_seed(seed)
    found = [shrink_to(flops, target, dict.fromkeys(flops.widths, 1.0))]
    for _ in range(20 * count):
        if len(found) >= count:
            break
        draws = (SPREAD * torch.randn(len(flops.widths), generator=generator)).exp().tolist()
        widths = shrink_to(flops, target, dict(zip(flops.widths, draws, strict=True)))
        if widths not in found:
            found.append(widths)
    return found


def compete(candidates: list[Widths], steps: int, trial: Callable[[Widths, int], float]) -> Widths:
    """Successive halving; ``trial`` fine-tunes an allocation for some steps and returns its validation loss."""
    while len(candidates) > 1:
        losses = [trial(widths, steps) for widths in candidates]
        order = sorted(range(len(candidates)), key=losses.__getitem__)
        candidates = [candidates[i] for i in order[: math.ceil(len(candidates) / 2)]]
        steps *= 2
    return candidates[0]


def trials_of(candidates: int) -> int:
    """How many trials ``compete`` will take."""
    total = 0
    while candidates > 1:
        total += candidates
        candidates = math.ceil(candidates / 2)
    return total
