"""Identities: union-find against its definition, and what operations between two layers do to channels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from drawing import Channel, channels, coupled, reading, traced
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import Lambda
from torch import Tensor, nn

from snncompress.models.identities import FIXED, Identities, along, follow, spread, thin

PROPERTY = settings(derandomize=True, deadline=None, max_examples=50)
NUMBERS = st.integers(0, 9)  # FIXED and nine others


def united(pairs: list[tuple[int, int]], fixed: list[int]) -> Identities:
    identities = Identities()
    assert identities.new(9).tolist() == list(range(1, 10))
    for one, other in pairs:
        identities.unite(torch.tensor(one), torch.tensor(other))
    identities.fix(torch.tensor(fixed, dtype=torch.long))
    return identities


@PROPERTY
@given(st.lists(st.tuples(NUMBERS, NUMBERS), max_size=8), st.lists(NUMBERS, max_size=2), st.randoms())
def test_the_smallest_stands_for_all_that_are_connected(
    pairs: list[tuple[int, int]], fixed: list[int], random: Any
) -> None:
    connected = torch.eye(10, dtype=torch.bool)
    for one, other in [*pairs, *((FIXED, number) for number in fixed)]:
        connected[one, other] = connected[other, one] = True
    for _ in range(4):  # 2⁴ steps: further apart than any two of ten
        connected = (connected.double() @ connected.double()) > 0
    expected = connected.int().argmax(1)  # the first that is connected
    assert torch.equal(united(pairs, fixed).settle(torch.arange(10)), expected)
    shuffled = random.sample(pairs, len(pairs))
    assert torch.equal(united(shuffled, fixed).settle(torch.arange(10)), expected)  # the order does not matter


def test_uniting_broadcasts() -> None:
    identities = Identities()
    rows = identities.new(6).view(2, 3)
    identities.unite(rows[:, :1], rows)
    assert identities.settle(torch.arange(7)).tolist() == [0, 1, 1, 1, 4, 4, 4]


@PROPERTY
@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.data())
def test_thin_and_spread_again(shape: list[int], data: st.DataObject) -> None:
    varying = [size if data.draw(st.booleans()) else 1 for size in shape]
    ids = torch.randint(3, varying, generator=torch.Generator().manual_seed(data.draw(NUMBERS))).expand(shape)
    for copied in (ids, ids.clone()):  # whether strides tell it, or the values
        narrow = thin(copied)
        assert torch.equal(narrow.expand(shape), ids)
        assert all(size == 1 or bool((ids != ids.narrow(axis, 0, 1)).any()) for axis, size in enumerate(narrow.shape))


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_along_undoes_spread(axis: int) -> None:
    identities, shape = Identities(), (3, 4, 2)
    numbers = identities.new(shape[axis])
    ids = spread(numbers, axis, shape)
    assert ids.shape == shape
    assert torch.equal(along(identities, ids, axis), numbers)
    assert torch.equal(identities.settle(numbers), numbers)  # nothing was united


def test_along_another_axis_all_meet() -> None:
    identities = Identities()
    numbers = identities.new(4)
    assert along(identities, spread(numbers, 1, (2, 4, 3)), 2).tolist() == [1, 1, 1]
    assert identities.settle(numbers).tolist() == [1, 1, 1, 1]


def test_what_is_not_understood() -> None:
    identities = Identities()
    x = torch.randn(2, 3)
    known = {id(x): spread(identities.new(3), 1, x.shape)}
    assert follow(identities, torch.ops.aten.cumsum.default, (x, 1), {}, known, [x.cumsum(1)]) is None
    assert follow(identities, torch.ops.aten.mean.default, (x,), {}, known, [x.mean()]) is None  # over channels, too


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: F.relu(x).view(x.size(0), -1), channels("0", 0, 1, times=64)),
        (lambda x: x.permute(0, 2, 3, 1).reshape(len(x), -1), channels("0", 0, 1) * 64),
        (lambda x: x.mean((-1, -2)), channels("0", 0, 1)),
        (lambda x: x.amax((2, 3), keepdim=True).flatten(1), channels("0", 0, 1)),
        (lambda x: x.sum(3).amin(2), channels("0", 0, 1)),
        (lambda x: torch.cat([x.mean((2, 3)), x.amin((2, 3))], 1), channels("0", 0, 1) * 2),
        (lambda x: F.adaptive_avg_pool2d(x, 1).squeeze(), channels("0", 0, 1)),
        (lambda x: F.dropout(F.max_pool2d(x, 4), 0.5, False).flatten(1), channels("0", 0, 1, times=4)),
        (lambda x: F.relu_(x * 2 + 1).mean((2, 3)), channels("0", 0, 1)),
        (lambda x: F.pad(x, (1, 0, 0, 1)).mean((2, 3)), channels("0", 0, 1)),
        (lambda x: F.interpolate(x, scale_factor=2).mean((2, 3)), channels("0", 0, 1)),
        (lambda x: (x + torch.ones(8, 8)).mean((2, 3)), channels("0", 0, 1)),  # a number for each position
        (lambda x: x.view(len(x), 4, 32).mean(2), channels("0", 0, 1, times=2)),  # half a channel each
        (lambda x: (x * torch.ones(2, 1, 1)).mean((2, 3)), [None] * 2),  # a number for each channel
        (lambda x: x.clamp(max=torch.ones(2, 1, 1)).mean((2, 3)), [None] * 2),
        (lambda x: F.pad(x, (0, 0, 0, 0, 1, 0)).mean((2, 3)), [None] * 3),  # nobody could cut these zeros
        (lambda x: F.layer_norm(x, x.shape[1:]).mean((2, 3)), [None] * 2),
        (lambda x: x.softmax(1).mean((2, 3)), [None] * 2),
        (lambda x: x.mean((1, 2)), [None] * 8),  # over channels
        (lambda x: x.sum().expand(len(x), 1), [None]),
        (lambda x: (x.mean((2, 3)).unsqueeze(2) @ torch.ones(1, 2)).flatten(1), [None] * 4),
    ],
)  # fmt: skip
def test_between_two_layers(function: Callable[[Tensor], Tensor], expected: list[Channel | None]) -> None:
    graph = traced(nn.Conv2d(3, 2, 3, padding=1), Lambda(function), nn.Linear(len(expected), 4))
    assert reading(graph)["2"] == expected
    assert coupled(graph) == ([[("0", 0)], [("0", 1)]] if None not in expected else [])
