"""Targets as people write them, and the widths that are allowed under them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snncompress.errors import TargetError
from snncompress.models.channels import trace_channels
from snncompress.models.lenet import lenet5
from snncompress.pruning.costs import CostModel, Counts
from snncompress.pruning.coupling import find_groups
from snncompress.pruning.targets import Budget, Targets, make_budget, parse_latency, parse_target

MNIST = (1, 28, 28)


def lenet_costs() -> CostModel:
    model = lenet5()
    graph = trace_channels(model, MNIST)
    return CostModel(model, MNIST, graph, find_groups(graph))


LENET = lenet_costs()


def budget(
    targets: Targets | None = None, minimum: int = 1, round_to: int = 1, channels: dict[str, int] | None = None
) -> Budget:
    """Of LeNet-5; ``channels`` of a neuron, 1 where it is not said."""
    held = {**dict.fromkeys(LENET.full, 1), **(channels or {})}
    return make_budget(LENET, targets or Targets(), LENET.full, held, minimum, round_to)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("60k", 60_000), ("60K", 60_000), ("0.06M", 60_000), ("0.061M", 61_000), ("60000", 60_000),
        (" 1.5 G ", 15 * 10**8), (".5m", 500_000), ("6e4", 60_000), ("5%", 114_650), ("2.66%", 60_993),
        ("100 %", 2_293_000), ("150%", 3_439_500),
    ],
)  # fmt: skip
def test_ways_to_write_a_target(text: str, expected: int) -> None:
    assert parse_target(text, 2_293_000) == expected


@pytest.mark.parametrize("text", ["", "many", "5 %%", "-5%", "60kB", "1e400", "nan", "inf", "6,000", "k", "%"])
def test_what_is_no_number(text: str) -> None:
    with pytest.raises(TargetError, match=r"--target-flops '.*' is not a number; write 60k, 0.06M, 60000 or 5%"):
        parse_target(text, 1000)


@pytest.mark.parametrize("text", ["0", "0%", "0.0k"])
def test_nothing_is_no_target(text: str) -> None:
    with pytest.raises(TargetError, match=f"--target-size {text} leaves nothing"):
        parse_target(text, 1000, "--target-size")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("2ms", 2.0), ("800us", 0.8), ("800 µs", 0.8), ("0.01s", 10.0), ("50%", 1.5), (".5 MS", 0.5), ("150%", 4.5)],
)
def test_ways_to_write_a_latency(text: str, expected: float) -> None:
    assert parse_latency(text, original_ms=3.0) == pytest.approx(expected)


@pytest.mark.parametrize("text", ["", "2", "ms", "2 m", "-2ms", "2,5ms", "fast", "1e3ms", "%"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(TargetError, match=r"--target-latency '.*' is not a time; write 2ms, 800us or 50%"):
        parse_latency(text, 3.0)
    with pytest.raises(TargetError, match="--target-latency 0ms leaves nothing"):
        parse_latency("0ms", 3.0)


def test_which_targets_are_missed() -> None:
    targets = Targets(flops=100, memory=30)
    assert targets.given() == {"flops": 100, "memory": 30}
    assert targets.missed(Counts(flops=100, size=10**9, memory=30)) == []  # at the target is met
    assert targets.missed(Counts(flops=101, size=0, memory=31)) == ["flops", "memory"]
    assert targets.missed(Counts(flops=0, size=0, memory=31)) == ["memory"]
    assert Targets().missed(Counts(10**9, 10**9, 10**9)) == []


def test_the_way_is_that_of_the_slowest_and_even_in_logarithms() -> None:
    first = Counts(flops=1600, size=400, memory=50)
    targets = Targets(flops=100, size=100)
    assert targets.way(first, first) == 0
    assert targets.way(first, Counts(400, 100, 50)) == pytest.approx(0.5)  # size has arrived, flops are half way
    assert targets.way(first, Counts(100, 200, 50)) == pytest.approx(0.5)
    assert targets.way(first, Counts(100, 100, 50)) == pytest.approx(1)
    assert Targets(memory=50).way(first, first) == 1  # nothing to do


def test_what_a_budget_allows_by_hand() -> None:
    plain = budget(minimum=3)
    assert plain.units == {"conv1": 1, "conv2": 1, "fc1": 1}
    assert plain.least == {"conv1": 3, "conv2": 3, "fc1": 3}
    assert [plain.snap("conv1", value) for value in (0.2, 3.4, 3.6, 25)] == [3, 3, 4, 20]
    assert (plain.above("conv1", 19), plain.above("conv1", 20)) == (20, 20)
    assert (plain.below("conv1", 4), plain.below("conv1", 3)) == (3, None)

    rounded = budget(minimum=9, round_to=8)
    assert rounded.least == {"conv1": 16, "conv2": 16, "fc1": 16}
    assert [rounded.snap("conv2", value) for value in (1, 21, 47, 49.9)] == [16, 24, 48, 48]
    assert rounded.snap("conv1", 20) == 16  # of 20 neurons, 24 would be nearest
    assert [rounded.above("conv1", width) for width in (16, 17, 20)] == [20, 20, 20]
    assert [rounded.below("conv1", width) for width in (20, 17, 16)] == [16, 16, None]
    assert budget(minimum=64).least == {"conv1": 20, "conv2": 50, "fc1": 64}  # no more than there are


def test_rounding_is_of_channels_not_of_neurons() -> None:
    """Neurons that hold 4 channels each (a grouped convolution's) come in twos where 8 channels are wanted."""
    mixed = budget(round_to=8, channels={"conv1": 4, "conv2": 3, "fc1": 16})
    assert mixed.units == {"conv1": 2, "conv2": 8, "fc1": 1}


@settings(derandomize=True, deadline=None, max_examples=80)
@given(
    st.sampled_from(sorted(LENET.full)), st.integers(1, 40), st.sampled_from([1, 2, 3, 4, 8, 16, 600]),
    st.floats(0, 600), st.sampled_from([1, 2, 4, 6]),
)  # fmt: skip
def test_allowed_widths(family: str, minimum: int, round_to: int, value: float, channels: int) -> None:
    """Multiples of a unit between the least and all: ``snap`` finds the nearest, ``above`` and ``below`` the next."""
    given_budget = budget(minimum=minimum, round_to=round_to, channels={family: channels})
    full, least, unit = (mapping[family] for mapping in (given_budget.full, given_budget.least, given_budget.units))
    assert unit * channels % round_to == 0
    assert (unit - 1) * channels % round_to != 0 or unit == 1
    allowed = [width for width in range(1, full + 1) if width % unit == 0 and width >= minimum] or [full]
    if allowed[-1] != full:
        allowed.append(full)  # nothing is removed
    assert least == allowed[0]
    snapped = given_budget.snap(family, value)
    assert snapped in allowed
    assert abs(snapped - value) <= min(abs(width - value) for width in allowed) + unit / 2
    for width in allowed:
        assert given_budget.snap(family, width) in allowed
        later, sooner = given_budget.above(family, width), given_budget.below(family, width)
        index = allowed.index(width)
        assert later == (allowed[index + 1] if width != full else full)
        assert sooner == (allowed[index - 1] if index else None)


@pytest.mark.parametrize(
    ("limits", "options", "message"),
    [
        ({"flops": 16_025}, {}, r"a target of 16,025 FLOPs cannot be met: .* still cost 16,026; raise --target-flops"),
        ({"size": 88}, {}, r"88 weights cannot be met: .* still cost 89; raise --target-size"),
        ({"memory": 656}, {}, r"656 floats of memory cannot be met: .* still cost 657; raise --target-memory"),
        ({"flops": 10**6, "memory": 656}, {}, r"656 floats of memory"),
        ({"flops": 10**5, "size": 10**5}, {"minimum": 10}, r"100,000 FLOPs cannot be met.*305,700.*--min-neurons"),
        ({"flops": 10**5}, {"round_to": 8}, r"100,000 FLOPs cannot be met.*218,704.*--round-to"),
    ],
)
def test_an_impossible_target_names_the_constraint_and_the_closest(
    limits: dict[str, int], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(TargetError, match=message):
        budget(Targets(**limits), **options).check()


def test_the_least_that_is_possible_is_no_error() -> None:
    floor = LENET(budget().least)
    budget(Targets(floor.flops, floor.size, floor.memory)).check()
    for name in ("flops", "size", "memory"):
        with pytest.raises(TargetError, match=f"still cost {getattr(floor, name):,}; raise --target-{name}"):
            budget(Targets(**{name: getattr(floor, name) - 1})).check()
