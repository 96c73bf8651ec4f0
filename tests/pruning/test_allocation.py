"""Allocations: each meets its target, none could be wider, and the best of them wins."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snncompress.errors import TargetError
from snncompress.measure.cost import measure_cost
from snncompress.models.channels import trace_channels
from snncompress.models.lenet import lenet5
from snncompress.models.resnet import resnet20
from snncompress.pruning.allocation import Widths, compete, fill, propose, shrink_to, trials_of
from snncompress.pruning.coupling import find_groups
from snncompress.pruning.targets import FlopsModel


def flops_of(name: str) -> FlopsModel:
    model, shape = (lenet5(), (1, 28, 28)) if name == "lenet5" else (resnet20(), (3, 32, 32))
    graph = trace_channels(model, shape)
    return FlopsModel(measure_cost(model, shape), graph, find_groups(graph))


FLOPS = {name: flops_of(name) for name in ("lenet5", "resnet20")}


def check(flops: FlopsModel, target: int, widths: Widths) -> None:
    """The target is met, every layer has at least a neuron, and one more anywhere would miss it."""
    assert flops(widths) <= target
    assert widths.keys() == flops.widths.keys()
    for name, width in widths.items():
        assert 1 <= width <= flops.widths[name]
        assert width == flops.widths[name] or flops({**widths, name: width + 1}) > target


@settings(derandomize=True, deadline=None, max_examples=60)
@given(st.sampled_from(sorted(FLOPS)), st.floats(0, 1), st.lists(st.floats(0.2, 5), min_size=9, max_size=9))
def test_the_target_is_met_and_nothing_given_away(name: str, share: float, rates: list[float]) -> None:
    flops = FLOPS[name]
    target = round(flops.least() + share * (flops(flops.widths) - flops.least()))
    check(flops, target, shrink_to(flops, target, dict(zip(flops.widths, rates, strict=False))))


def test_the_ends() -> None:
    flops = FLOPS["lenet5"]
    alike = dict.fromkeys(flops.widths, 1.0)
    assert shrink_to(flops, 2_293_000, alike) == {"conv1": 20, "conv2": 50, "fc1": 500}
    assert shrink_to(flops, flops.least(), alike) == {"conv1": 1, "conv2": 1, "fc1": 1}
    with pytest.raises(TargetError, match="below the 16,026 of one neuron in each layer"):
        shrink_to(flops, flops.least() - 1, alike)


def test_layers_shrink_alike_at_equal_rates() -> None:
    flops = FLOPS["resnet20"]
    widths = shrink_to(flops, flops(flops.widths) // 2, dict.fromkeys(flops.widths, 1.0))
    shares = [widths[name] / flops.widths[name] for name in widths]
    assert max(shares) - min(shares) < 1 / 16  # the narrowest layer has 16


def test_what_is_left_over_goes_to_those_who_lost_most() -> None:
    flops = FLOPS["lenet5"]
    widths = fill(flops, flops({"conv1": 10, "conv2": 30, "fc1": 51}), {"conv1": 10, "conv2": 30, "fc1": 50})
    assert widths == {"conv1": 10, "conv2": 30, "fc1": 51}


def test_proposals_differ_and_are_reproducible() -> None:
    flops = FLOPS["lenet5"]
    found = propose(flops, 61_000, 8, seed=3)
    assert found[0] == shrink_to(flops, 61_000, dict.fromkeys(flops.widths, 1.0))
    assert len(found) == 8 == len({tuple(widths.values()) for widths in found})
    for widths in found:
        check(flops, 61_000, widths)
    assert found == propose(flops, 61_000, 8, seed=3)
    assert found[1:] != propose(flops, 61_000, 8, seed=4)[1:]


def test_fewer_where_there_are_no_more() -> None:
    flops = FLOPS["lenet5"]
    assert propose(flops, flops.least(), 8, seed=0) == [{"conv1": 1, "conv2": 1, "fc1": 1}]


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 9])
def test_the_best_wins_with_doubled_steps_in_every_heat(count: int) -> None:
    candidates = [{"layer": width} for width in range(1, count + 1)]
    tried = []

    def trial(widths: Widths, steps: int) -> float:
        tried.append((widths["layer"], steps))
        return abs(widths["layer"] - 2.2)

    assert compete(candidates, 50, trial) == {"layer": min(2, count)}
    assert len(tried) == trials_of(count)
    heats: dict[int, list[int]] = {}
    for width, steps in tried:
        heats.setdefault(steps, []).append(width)
    sizes = [len(heat) for heat in heats.values()]
    assert list(heats) == [50 * 2**i for i in range(len(heats))]
    assert all(after == -(-before // 2) for before, after in pairwise(sizes))
