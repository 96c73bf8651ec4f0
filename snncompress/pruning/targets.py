"""Targets as people write them, and which widths meet them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields

from snncompress.errors import TargetError
from snncompress.pruning.costs import CostModel, Counts, Widths
from snncompress.pruning.options import Goals
from snncompress.run import Run

UNITS = {"": 1, "k": 1e3, "m": 1e6, "g": 1e9}
TARGET = re.compile(r"^\s*([0-9]*\.?[0-9]+(?:e[0-9]{1,2})?)\s*([kmg]?|%)\s*$", re.IGNORECASE)
LATENCY = re.compile(r"^\s*([0-9]*\.?[0-9]+)\s*(us|µs|ms|s|%)\s*$", re.IGNORECASE)
MILLISECONDS = {"us": 1e-3, "µs": 1e-3, "ms": 1.0, "s": 1e3}
WORDS = {"flops": "FLOPs", "size": "weights", "memory": "floats of memory"}


def parse_target(text: str, original: int, option: str = "--target-flops") -> int:
    """``60k``, ``0.06M``, ``60000``, or ``5%`` of the original model's count."""
    match = TARGET.match(text)
    if match is None:
        raise TargetError(f"{option} '{text}' is not a number; write 60k, 0.06M, 60000 or 5%")
    number, unit = float(match[1]), match[2].lower()
    value = number / 100 * original if unit == "%" else number * UNITS[unit]
    if value <= 0:
        raise TargetError(f"{option} {text} leaves nothing; give a number above 0")
    return int(value + 1e-6)  # 0.061M is 60,999.999… in binary


def parse_latency(text: str, original_ms: float) -> float:
    """``2ms``, ``800us``, ``0.01s``, or ``50%`` of the unpruned model's, in milliseconds."""
    match = LATENCY.match(text)
    if match is None:
        raise TargetError(f"--target-latency '{text}' is not a time; write 2ms, 800us or 50%")
    number, unit = float(match[1]), match[2].lower()
    value = number / 100 * original_ms if unit == "%" else number * MILLISECONDS[unit]
    if value <= 0:
        raise TargetError(f"--target-latency {text} leaves nothing; give a time above 0")
    return value


@dataclass(frozen=True)
class Targets:
    """What the model may cost at most; None where that is not limited."""

    flops: int | None = None
    size: int | None = None
    memory: int | None = None

    def missed(self, counts: Counts) -> list[str]:
        """The counts that are over their targets."""
        return [name for name, target in self.given().items() if getattr(counts, name) > target]

    def given(self) -> dict[str, int]:
        """The targets that there are."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return {name: value for name, value in values.items() if value is not None}

    def way(self, first: Counts, now: Counts) -> float:
        """How much of the way is behind, 0 to 1, where it is the least: logarithms of costs fall steadily."""
        ways = [1.0]
        for name, target in self.given().items():
            start, present = getattr(first, name), getattr(now, name)
            if start > target:
                ways.append(math.log(start / max(present, 1)) / math.log(start / target))
        return min(ways)


def targets_of(run: Run, goals: Goals) -> Targets:
    """The counts to come down to; percentages are of the original model."""
    original = {"flops": run.original["flops"], "size": run.original["weights"], "memory": run.original["memory"]}
    texts = {name: getattr(goals, f"target_{name}") for name in original}
    return Targets(
        **{
            name: None if text is None else parse_target(text, original[name], f"--target-{name}")
            for name, text in texts.items()
        }
    )


@dataclass(frozen=True)
class Budget:
    """Which widths are allowed, and which of them meet the targets.

    Attributes:
        costs: what widths cost.
        targets: what they may cost.
        full: the widths to begin with; no family can have more.
        least: how many neurons a family keeps in any case.
        units: widths are multiples of these, unless nothing is removed.
    """

    costs: CostModel
    targets: Targets
    full: Widths
    least: Widths
    units: Widths

    def met(self, widths: Mapping[str, int]) -> bool:
        """Whether widths cost no more than the targets."""
        return not self.targets.missed(self.costs(widths))

    def snap(self, family: str, value: float) -> int:
        """The allowed width that is nearest to a value."""
        unit = self.units[family]
        return min(self.full[family], max(self.least[family], unit * round(value / unit)))

    def at_least(self, family: str, width: int) -> int:
        """The smallest allowed width that is no smaller."""
        unit = self.units[family]
        return min(self.full[family], max(self.least[family], -(-width // unit) * unit))

    def above(self, family: str, width: int) -> int:
        """The next larger allowed width."""
        unit = self.units[family]
        return min(self.full[family], (width // unit + 1) * unit)

    def below(self, family: str, width: int) -> int | None:
        """The next smaller allowed width, if there is one."""
        unit = self.units[family]
        smaller = (width - 1) // unit * unit
        return smaller if smaller >= self.least[family] else None

    def check(self) -> None:
        """Refuses targets that cannot be met."""
        counts = self.costs(self.least)
        if missed := self.targets.missed(counts):
            name = missed[0]
            target, floor = self.targets.given()[name], getattr(counts, name)
            raise TargetError(
                f"a target of {target:,} {WORDS[name]} cannot be met: the fewest neurons that may stay still cost "
                f"{floor:,}; raise --target-{name}, or lower --min-neurons, --round-to or --keep if they were given"
            )


def make_budget(
    costs: CostModel, targets: Targets, present: Widths, channels: Mapping[str, int], minimum: int, round_to: int
) -> Budget:
    """The budget of a network with ``present`` neurons.

    Args:
        costs: what widths cost.
        targets: what they may cost.
        present: how many neurons each family has.
        channels: how many channels a neuron of each family has in its layer.
        minimum: how many neurons a layer keeps at least.
        round_to: channels of a layer are to be a multiple of this.
    """
    units = {family: round_to // math.gcd(round_to, channels[family]) for family in present}
    least = {
        family: min(width, max(units[family], math.ceil(minimum / units[family]) * units[family]))
        for family, width in present.items()
    }
    return Budget(costs, targets, dict(present), least, units)
