"""Allocations: each meets all targets, none could be wider, and the best of them wins."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from snncompress.errors import TargetError
from snncompress.models.channels import trace_channels
from snncompress.models.lenet import lenet5
from snncompress.models.resnet import resnet20
from snncompress.pruning.allocation import (
    compete,
    fill,
    propose,
    sensitivity_rates,
    shrink_to,
    trial_steps_of,
    trials_of,
)
from snncompress.pruning.costs import CostModel, Widths
from snncompress.pruning.coupling import find_groups
from snncompress.pruning.targets import Budget, Targets, make_budget


def costs_of(model: nn.Module, shape: tuple[int, int, int]) -> CostModel:
    graph = trace_channels(model, shape)
    return CostModel(model, shape, graph, find_groups(graph))


COSTS = {"lenet5": costs_of(lenet5(), (1, 28, 28)), "resnet20": costs_of(resnet20(), (3, 32, 32))}


def budget(name: str, targets: Targets | None = None, minimum: int = 1, round_to: int = 1) -> Budget:
    costs = COSTS[name]
    return make_budget(costs, targets or Targets(), costs.full, dict.fromkeys(costs.full, 1), minimum, round_to)


def check(given_budget: Budget, widths: Widths) -> None:
    """The targets are met, every width is allowed, and one removal less anywhere would miss a target."""
    assert given_budget.met(widths)
    assert widths.keys() == given_budget.full.keys()
    for name, width in widths.items():
        full = given_budget.full[name]
        assert given_budget.least[name] <= width <= full
        assert width % given_budget.units[name] == 0 or width == full
        assert width == full or not given_budget.met({**widths, name: given_budget.above(name, width)})


SHARES = st.one_of(st.none(), st.floats(0, 1))


@settings(derandomize=True, deadline=None, max_examples=80)
@given(
    st.sampled_from(sorted(COSTS)), st.tuples(SHARES, SHARES, SHARES),
    st.sampled_from([(1, 1), (3, 1), (1, 4), (5, 8)]), st.lists(st.floats(0.2, 5), min_size=12, max_size=12),
)  # fmt: skip
def test_all_targets_are_met_at_once_and_nothing_is_given_away(
    name: str, shares: tuple[float | None, ...], rules: tuple[int, int], rates: list[float]
) -> None:
    free = budget(name, None, *rules)
    least, full = free.costs(free.least), free.costs(free.full)
    limits = {}
    for kind, share in zip(("flops", "size", "memory"), shares, strict=True):
        low, high = getattr(least, kind), getattr(full, kind)
        limits[kind] = None if share is None else round(low + share * (high - low))
    given_budget = budget(name, Targets(**limits), *rules)
    assert len(rates) >= len(given_budget.full)
    check(given_budget, shrink_to(given_budget, dict(zip(given_budget.full, rates, strict=False))))


def alike(given_budget: Budget) -> dict[str, float]:
    return dict.fromkeys(given_budget.full, 1.0)


def test_the_ends() -> None:
    everything = budget("lenet5", Targets(flops=2_293_000, size=431_080, memory=16_020))
    assert shrink_to(everything, alike(everything)) == {"conv1": 20, "conv2": 50, "fc1": 500}
    least = budget("lenet5", Targets(flops=16_026))
    assert shrink_to(least, alike(least)) == {"conv1": 1, "conv2": 1, "fc1": 1}
    with pytest.raises(TargetError, match=r"16,025 FLOPs cannot be met: .* still cost 16,026"):
        shrink_to(budget("lenet5", Targets(flops=16_025)), alike(least))


def test_without_targets_nothing_goes() -> None:
    free = budget("resnet20", round_to=8)
    assert shrink_to(free, alike(free)) == free.full


def test_layers_shrink_alike_at_equal_rates() -> None:
    half = budget("resnet20", Targets(flops=COSTS["resnet20"](COSTS["resnet20"].full).flops // 2))
    widths = shrink_to(half, alike(half))
    shares = [widths[name] / half.full[name] for name in widths]
    assert max(shares) - min(shares) <= 1 / 16  # the narrowest layer has 16


def test_a_tight_target_is_paid_for_where_it_is_spent() -> None:
    """LeNet-5 has nine tenths of its weights in fc1, and most of its FLOPs elsewhere."""
    targets = [Targets(flops=500_000), Targets(size=8_622), Targets(flops=500_000, size=8_622)]
    budgets = [budget("lenet5", target) for target in targets]
    by_flops, by_size, by_both = (shrink_to(each, alike(each)) for each in budgets)
    assert by_both["conv1"] == by_flops["conv1"] > by_size["conv1"]  # it has hardly any weights
    flops = [COSTS["lenet5"](widths).flops for widths in (by_size, by_both)]
    assert flops[1] > 1.5 * flops[0]  # what shrinking alike to that size would give away


def test_a_target_that_is_missed_by_little_takes_little() -> None:
    targets = budget("lenet5", Targets(flops=61_000)), budget("lenet5", Targets(flops=61_000, memory=1775))
    alone, both = (shrink_to(each, alike(each)) for each in targets)
    assert COSTS["lenet5"](alone).memory == 1792
    assert alone["conv1"] == both["conv1"] == 2  # half of it would be far more than is asked for


def test_faster_rates_give_narrower_layers() -> None:
    tenth = budget("lenet5", Targets(flops=229_300))
    even, uneven = shrink_to(tenth, alike(tenth)), shrink_to(tenth, {"conv1": 1.0, "conv2": 3.0, "fc1": 1.0})
    assert uneven["conv2"] < even["conv2"]
    assert uneven["conv1"] > even["conv1"]


def test_what_is_left_over_goes_to_those_who_lost_most() -> None:
    target = COSTS["lenet5"]({"conv1": 10, "conv2": 30, "fc1": 51}).flops
    assert fill(budget("lenet5", Targets(flops=target)), {"conv1": 10, "conv2": 30, "fc1": 50}) == {
        "conv1": 10, "conv2": 30, "fc1": 51,
    }  # fmt: skip


def test_rates_from_sensitivity() -> None:
    """s = √(median rise / rise), between 1/3 and 3; what costs nothing, or less, shrinks fastest."""
    losses = {"a": 1.4, "b": 1.1, "c": 1.0 + 0.1 / 4, "d": 1.0, "e": 0.5, "f": 100.0, "g": 1.2}
    rates = sensitivity_rates(losses, base=1.0)
    middle = 0.1  # rises: 0, 0, 0.025, 0.1, 0.2, 0.4, 99
    assert rates["a"] == pytest.approx((middle / 0.4) ** 0.5)
    assert rates["b"] == pytest.approx(1)
    assert rates["c"] == pytest.approx(2)
    assert rates["d"] == rates["e"] == 3
    assert rates["f"] == pytest.approx(1 / 3)
    assert rates["g"] == pytest.approx(0.5**0.5)


def test_proposals_differ_and_are_reproducible() -> None:
    small = budget("lenet5", Targets(flops=61_000))
    other = {"conv1": 0.5, "conv2": 2.0, "fc1": 1.0}
    found = propose(small, [alike(small), other], 8, seed=3)
    assert found[:2] == [shrink_to(small, alike(small)), shrink_to(small, other)]
    assert len(found) == 8 == len({tuple(widths.values()) for widths in found})
    for widths in found:
        check(small, widths)
    assert found == propose(small, [alike(small), other], 8, seed=3)
    assert found[2:] != propose(small, [alike(small), other], 8, seed=4)[2:]
    assert propose(small, [alike(small), other], 1, seed=3) == found[:1]


def test_fewer_where_there_are_no_more() -> None:
    least = budget("lenet5", Targets(flops=16_026))
    assert propose(least, [alike(least)], 8, seed=0) == [{"conv1": 1, "conv2": 1, "fc1": 1}]


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 9])
def test_the_best_wins_with_doubled_steps_in_every_heat(count: int) -> None:
    candidates = [{"layer": width} for width in range(1, count + 1)]
    tried = []

    def trial(widths: Widths, steps: int) -> float:
        tried.append((widths["layer"], steps))
        return abs(widths["layer"] - 2.2)

    assert compete(candidates, 50, trial) == {"layer": min(2, count)}
    assert len(tried) == trials_of(count)
    assert sum(steps for _, steps in tried) == trial_steps_of(count, 50)
    heats: dict[int, list[int]] = {}
    for width, steps in tried:
        heats.setdefault(steps, []).append(width)
    sizes = [len(heat) for heat in heats.values()]
    assert list(heats) == [50 * 2**i for i in range(len(heats))]
    assert all(after == -(-before // 2) for before, after in pairwise(sizes))
