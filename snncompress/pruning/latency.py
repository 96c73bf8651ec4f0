"""``--target-latency`` as a number of multiplications: the time is measured, so it is searched for.

All families shrink alike until one image takes no longer than asked for; the multiplications of that network are the
target that pruning then aims at. Other allocations of as many multiplications take about as long.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from snncompress.errors import TargetError
from snncompress.exporting.latency import measure_latency
from snncompress.progress import Progress
from snncompress.pruning.compaction import compact
from snncompress.pruning.costs import Widths
from snncompress.pruning.coupling import by_family
from snncompress.pruning.subject import Subject
from snncompress.pruning.targets import Budget, Targets, parse_latency

STEPS = 6  # halvings of the interval: widths to about 2%


@dataclass(frozen=True)
class LatencyAim:
    """What was asked for, what the model took before, and how many multiplications take that long."""

    target_ms: float
    before_ms: float
    flops: int

    def merge(self, targets: Targets) -> Targets:
        """Targets with these multiplications among them, or fewer."""
        return replace(targets, flops=self.flops if targets.flops is None else min(self.flops, targets.flops))


def aim_at_latency(subject: Subject, budget: Budget, text: str, progress: Progress) -> LatencyAim:
    """Finds the multiplications of the widest network that is fast enough, all families shrunk alike."""
    progress.start("measure latency", STEPS + 2)

    def measure(widths: Widths) -> float:
        families = by_family(subject.groups).items()
        surplus = [group for name, members in families for group in members[widths[name] :]]
        milliseconds = measure_latency(compact(subject.model, surplus)[0], subject.input_shape)
        progress.advance(latency_ms=milliseconds)
        return milliseconds

    def widths(t: float) -> Widths:
        return {name: budget.snap(name, n * math.exp(-t)) for name, n in budget.full.items()}

    before = measure(budget.full)
    target = parse_latency(text, before)
    best = budget.full
    if before > target:
        best = dict(budget.least)
        fastest = measure(best)
        if fastest > target:
            raise TargetError(
                f"a latency of {target:.3g} ms cannot be met: the fewest neurons that may stay still take "
                f"{fastest:.3g} ms, all of them {before:.3g} ms; raise --target-latency"
            )
        low, high = 0.0, math.log(max(budget.full[name] / budget.least[name] for name in budget.full))
        for _ in range(STEPS):
            middle = (low + high) / 2
            if measure(widths(middle)) <= target:
                high, best = middle, widths(middle)
            else:
                low = middle
    progress.finish()
    return LatencyAim(target, before, budget.costs(best).flops)
