"""How many neurons each family keeps: allocations that meet the targets compete on validation data.

An allocation shrinks family l from n_l to n_l·exp(−t·s_l) neurons; t is found so that the targets are met, and the
shrink rates s_l make the difference between allocations. The first candidate has s_l = 1 (all shrink alike), the
second shrinks those faster whose halves cost the least loss, the others draw log s_l around the one or the other.
A small network is cheap, so each candidate is cut in one go, fine-tuned briefly and validated; the better half goes
on with twice the steps (successive halving).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch

from snncompress.pruning.costs import Widths
from snncompress.pruning.targets import Budget, Targets

TRIM = 0.95  # of a family's neurons are left when it is narrowed for one target of several
SPREAD = 0.6  # standard deviation of log s_l: rates between about 1/3 and 3
LARGEST_RATE = 3.0  # a family that seems to cost nothing still does not shrink alone
Rates = Mapping[str, float]


def shrink_to(budget: Budget, rates: Rates) -> Widths:
    """The widest network on the line of these shrink rates that meets the targets.

    Of several targets the line goes down to the loosest: further on, it would give away what the others leave to
    families that hardly cost anything of the tightest one. Those that it is spent on pay for it alone (``trim``).
    """
    budget.check()
    parts = [replace(budget, targets=Targets(**{name: value})) for name, value in budget.targets.given().items()]
    ends = [_end_of_line(part, rates) for part in parts or [budget]]
    return fill(budget, trim(budget, _along(budget, rates, min(ends)), rates))


def _along(budget: Budget, rates: Rates, t: float) -> Widths:
    return {name: budget.snap(name, n * math.exp(-t * rates[name])) for name, n in budget.full.items()}


def _end_of_line(budget: Budget, rates: Rates) -> float:
    """How far along the line the targets are met."""
    low, high = 0.0, 1.0
    while not budget.met(_along(budget, rates, high)):
        high *= 2
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if budget.met(_along(budget, rates, middle)) else (middle, high)
    return high


def trim(budget: Budget, widths: Widths, rates: Rates) -> Widths:
    """Narrows the families that the missed targets are spent on until they are met.

    The next to go is always where the costs fall the most, no further than to their targets, for the share of neurons
    that is lost (in logarithms; a family of a higher shrink rate loses more easily). What others were worth is computed
    again when it is their turn.
    """
    widths, missed, queue = dict(widths), list[str](), list[tuple[float, str]]()
    limits = budget.targets.given()
    cost = budget.costs(widths)
    while over := budget.targets.missed(cost):
        if over != missed:
            missed, queue = over, [(-math.inf, name) for name in widths]
        _, name = heapq.heappop(queue)
        width, below = widths[name], budget.below(name, widths[name])
        if below is None:
            continue
        narrower = {**widths, name: min(below, budget.snap(name, TRIM * width))}
        lower = budget.costs(narrower)
        saved = sum(math.log(getattr(cost, kind) / max(getattr(lower, kind), limits[kind])) for kind in missed)
        worth = saved * rates[name] / math.log(width / narrower[name])
        if not queue or worth >= -queue[0][0]:
            widths, cost = narrower, lower
        heapq.heappush(queue, (-worth, name))
    return widths


def fill(budget: Budget, widths: Widths) -> Widths:
    """Gives neurons back, to the families that lost the largest share first, while the targets still hold."""
    widths = dict(widths)
    open_families = {name for name in widths if widths[name] < budget.full[name]}
    while open_families:
        name = min(open_families, key=lambda family: (widths[family] / budget.full[family], family))
        more = {**widths, name: budget.above(name, widths[name])}
        if budget.met(more):
            widths = more
        if widths != more or widths[name] == budget.full[name]:
            open_families.discard(name)
    return widths


def sensitivity_rates(losses: Mapping[str, float], base: float) -> dict[str, float]:
    """Shrink rates from the loss that the network has without half of each family, ``base`` with all.

    s_l = √(median rise / rise of l), between 1/3 and 3.
    """
    rises = {name: max(loss - base, 0.0) for name, loss in losses.items()}
    middle = sorted(rises.values())[len(rises) // 2]
    return {
        name: min(LARGEST_RATE, max(1 / LARGEST_RATE, math.sqrt(middle / rise))) if rise > 0 else LARGEST_RATE
        for name, rise in rises.items()
    }


def propose(budget: Budget, bases: Sequence[Rates], count: int, seed: int) -> list[Widths]:
    """Up to ``count`` different allocations that meet the targets: those of ``bases`` first, then around them."""
    generator = torch.Generator().manual_seed(seed)
    found: list[Widths] = []
    for index in range(20 * count):
        if len(found) >= count:
            break
        rates = bases[index % len(bases)]
        if index >= len(bases):
            draws = (SPREAD * torch.randn(len(rates), generator=generator)).exp().tolist()
            rates = {name: rate * draw for (name, rate), draw in zip(rates.items(), draws, strict=True)}
        widths = shrink_to(budget, rates)
        if widths not in found:
            found.append(widths)
    return found


def heats(candidates: int, steps: int) -> Iterator[tuple[int, int]]:
    """Successive halving: how many candidates each heat has, and for how many steps, until one is left."""
    while candidates > 1:
        yield candidates, steps
        candidates, steps = math.ceil(candidates / 2), 2 * steps


def compete(candidates: list[Widths], steps: int, trial: Callable[[Widths, int], float]) -> Widths:
    """The winner of all heats; ``trial`` fine-tunes an allocation for some steps and returns its validation loss."""
    for count, length in heats(len(candidates), steps):
        losses = [trial(widths, length) for widths in candidates[:count]]
        order = sorted(range(count), key=losses.__getitem__)
        candidates = [candidates[i] for i in order]
    return candidates[0]


def trials_of(candidates: int) -> int:
    """How many trials ``compete`` will take."""
    return sum(count for count, _ in heats(candidates, 1))


def trial_steps_of(candidates: int, steps: int) -> int:
    """How many steps these trials will take, ``steps`` each in the first heat."""
    return sum(count * length for count, length in heats(candidates, steps))
