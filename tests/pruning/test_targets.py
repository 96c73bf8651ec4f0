"""Targets as people write them, and the cost of widths that nobody has built."""

from __future__ import annotations

import pytest

from snncompress.errors import TargetError
from snncompress.measure.cost import measure_cost
from snncompress.models.channels import trace_channels
from snncompress.models.lenet import lenet5
from snncompress.pruning.coupling import find_groups
from snncompress.pruning.targets import FlopsModel, parse_target

MNIST = (1, 28, 28)


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


def test_flops_of_lenet5_by_hand() -> None:
    model = lenet5()
    graph = trace_channels(model, MNIST)
    flops = FlopsModel(measure_cost(model, MNIST), graph, find_groups(graph))
    assert flops.widths == {"conv1": 20, "conv2": 50, "fc1": 500}
    for conv1, conv2, fc1 in [(20, 50, 500), (2, 7, 79), (1, 1, 1), (20, 1, 500), (3, 12, 17)]:
        expected = 576 * 25 * conv1 + 64 * 25 * conv1 * conv2 + 16 * conv2 * fc1 + 10 * fc1
        assert flops({"conv1": conv1, "conv2": conv2, "fc1": fc1}) == expected
    assert flops(flops.widths) == 2_293_000
    assert flops({"conv1": 2, "conv2": 7, "fc1": 79}) == 60_838  # the SE-SNN paper's 0.061M
    assert flops.least() == 576 * 25 + 64 * 25 + 16 + 10
