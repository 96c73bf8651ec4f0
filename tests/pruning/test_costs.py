"""What widths that nobody has built will cost, against counts by hand."""

from __future__ import annotations

import pytest
import torch.nn.functional as F
from networks import IMAGE, Small
from torch import Tensor, nn

from snncompress.measure.cost import measure_cost
from snncompress.models.channels import trace_channels
from snncompress.models.lenet import lenet5
from snncompress.pruning.costs import CostModel, Counts
from snncompress.pruning.coupling import find_groups

MNIST = (1, 28, 28)


def costs_of(model: nn.Module, shape: tuple[int, int, int] = IMAGE) -> CostModel:
    graph = trace_channels(model, shape)
    return CostModel(model, shape, graph, find_groups(graph))


def check_full(model: nn.Module, costs: CostModel, shape: tuple[int, int, int] = IMAGE) -> None:
    """All neurons cost what the model does."""
    cost = measure_cost(model, shape)
    assert costs(costs.full) == Counts(cost.flops, cost.parameters, cost.memory)


@pytest.mark.parametrize(("a", "b", "c"), [(20, 50, 500), (2, 7, 79), (1, 1, 1), (20, 1, 500), (3, 12, 17)])
def test_lenet5(a: int, b: int, c: int) -> None:
    costs = costs_of(lenet5(), MNIST)
    assert costs.full == {"conv1": 20, "conv2": 50, "fc1": 500}
    flops = 576 * 25 * a + 64 * 25 * a * b + 16 * b * c + 10 * c
    size = (25 + 1) * a + 25 * a * b + b + 16 * b * c + c + 10 * c + 10
    memory = 576 * a + 64 * b + 16 * b + c  # the outputs, and the map that fc1 reads
    assert costs({"conv1": a, "conv2": b, "fc1": c}) == Counts(flops, size, memory)


def test_published_counts_of_lenet5() -> None:
    costs = costs_of(lenet5(), MNIST)
    assert costs(costs.full) == Counts(2_293_000, 431_080, 16_020)
    assert costs({"conv1": 2, "conv2": 7, "fc1": 79}).flops == 60_838  # the SE-SNN paper's 0.061M


@pytest.mark.parametrize(("a", "b", "c"), [(4, 5, 6), (1, 1, 1), (3, 5, 2), (4, 1, 6)])
def test_batch_norms_and_layers_without_bias(a: int, b: int, c: int) -> None:
    model = Small()
    costs = costs_of(model)
    check_full(model, costs)
    flops = 64 * 27 * a + 16 * 9 * a * b + 16 * b * c + 4 * c
    size = (27 + 1 + 2) * a + 9 * a * b + 2 * b + 16 * b * c + c + 4 * c + 4
    assert costs({"conv1": a, "conv2": b, "fc1": c}) == Counts(flops, size, 64 * a + 16 * b + 16 * b + c)


class Mobile(nn.Module):
    """A depthwise convolution with two outputs a channel, and one of two groups."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Conv2d(3, 6, 1, bias=False)
        self.depthwise = nn.Conv2d(6, 12, 3, padding=1, groups=6)
        self.narrow = nn.Conv2d(12, 8, 1)
        self.grouped = nn.Conv2d(8, 4, 3, groups=2, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.fc = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.narrow(F.relu(self.depthwise(F.relu(self.wide(x)))))
        return self.fc(self.norm(self.grouped(F.relu(x))).mean((2, 3)))  # type: ignore[no-any-return]


@pytest.mark.parametrize("e", [6, 5, 1])
@pytest.mark.parametrize("g", [2, 1])
def test_grouped_convolutions(e: int, g: int) -> None:
    model = Mobile()
    costs = costs_of(model)
    check_full(model, costs)
    assert costs.full == {"wide": 6, "narrow": 2}  # a neuron of the latter is a whole group
    flops = 64 * 3 * e + 64 * 9 * 2 * e + 64 * 2 * e * 4 * g + 36 * 9 * 4 * 2 * g + 2 * g * 3
    size = 3 * e + (9 + 1) * 2 * e + (2 * e + 1) * 4 * g + 9 * 4 * 2 * g + 2 * 2 * g + 2 * g * 3 + 3
    memory = 64 * e + 64 * 2 * e + 64 * 4 * g + 36 * 2 * g + 2 * g
    assert costs({"wide": e, "narrow": g}) == Counts(flops, size, memory)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.one = nn.Conv2d(6, 4, 3, padding=1)
        self.two = nn.Conv2d(4, 6, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(6)
        self.fc = nn.Linear(6 * 64, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        x = x + self.norm(self.two(F.relu(self.one(x))))
        return self.fc(x.flatten(1))  # type: ignore[no-any-return]


@pytest.mark.parametrize(("r", "m"), [(6, 4), (5, 4), (6, 1), (2, 3), (1, 1)])
def test_a_residual_block(r: int, m: int) -> None:
    model = Residual()
    costs = costs_of(model)
    check_full(model, costs)
    flops = 64 * 27 * r + 64 * 9 * r * m * 2 + 64 * r * 3
    size = (27 + 1) * r + 9 * r * m + m + 9 * m * r + 2 * r + 64 * r * 3 + 3
    memory = 64 * r + 64 * m + 64 * r + 64 * r
    assert costs({"stem": r, "one": m}) == Counts(flops, size, memory)


def test_weights_that_are_zero_count_since_fine_tuning_fills_them() -> None:
    model = Small()
    costs = costs_of(model)
    for parameter in model.parameters():
        parameter.data.zero_()
    assert costs_of(model)({"conv1": 2, "conv2": 3, "fc1": 1}) == costs({"conv1": 2, "conv2": 3, "fc1": 1})


def test_what_cannot_be_removed_is_constant() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 3))
    costs = costs_of(model)
    assert costs.full == {}
    assert costs({}) == Counts(576, 579, 192)
