"""Neurons and their families, what is left of them, and the families that a model's own code holds together."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from networks import IMAGE, Gate, Lambda, Small, Ways, conv, networks, some_of
from torch import Tensor, nn

from snncompress.models.channels import trace_channels
from snncompress.models.padding import ChannelPad
from snncompress.pruning import rehearsal
from snncompress.pruning.compaction import compact
from snncompress.pruning.coupling import Group, by_family, find_groups, touching, without
from snncompress.pruning.rehearsal import rigid_families

PROPERTY = settings(derandomize=True, deadline=None, max_examples=40, suppress_health_check=list(HealthCheck))
RANDOM = st.randoms(use_true_random=False)


def groups_of(model: nn.Module) -> list[Group]:
    return find_groups(trace_channels(model, IMAGE))


def everything(groups: list[Group]) -> list[tuple[Any, ...]]:
    """Groups with all that equality leaves out."""
    return [(group.number, group.family, *group.places) for group in groups]


def test_groups_by_hand() -> None:
    found = everything(groups_of(Small()))
    assert found[1] == (1, "conv1", (("conv1", 1),), (("norm1", 1),), (("conv2", 1),), ())
    slots = tuple(("fc1", 32 + slot) for slot in range(16))
    assert found[6] == (6, "conv2", (("conv2", 2),), (("norm2", 2),), slots, ())
    assert found[-1] == (14, "fc1", (("fc1", 5),), (), (("fc2", 5),), ())
    assert len(found) == 4 + 5 + 6


def residual() -> nn.Sequential:
    """A shortcut that pads around a convolution of two groups, and a gate."""
    inner = nn.Sequential(nn.Conv2d(4, 8, 3, padding=1, groups=2), nn.GroupNorm(4, 8))
    return nn.Sequential(conv(3, 4), Ways("add", ChannelPad(1, 2, 2), inner), Gate(8, 2, True), nn.Conv2d(8, 4, 8))


def test_groups_of_all_that_couples() -> None:
    first, second, *squeezed = groups_of(residual())
    sizes = {"0.0": 2, "1.branches.1.0": 4, "2.up": 4}  # a group of the convolution, and what it is added to
    places = [(name, channel) for name, size in sizes.items() for channel in range(size)]
    assert first.family == second.family == "0.0"
    assert sorted(first.outputs) == places
    assert sorted(second.outputs) == [(name, sizes[name] + channel) for name, channel in places]
    assert second.norms == tuple(("1.branches.1.1", channel) for channel in (4, 5, 6, 7))
    assert second.pads == (("1.branches.0", 2), ("1.branches.0", 3))
    reads = {"1.branches.1.0": (2, 3), "2.down": (4, 5, 6, 7), "3": (4, 5, 6, 7)}
    assert sorted(second.inputs) == [(name, slot) for name, slots in reads.items() for slot in slots]
    assert [group.places for group in squeezed] == [((("2.down", i),), (), (("2.up", i),), ()) for i in (0, 1)]


def test_groups_that_cost_the_same_are_a_family() -> None:
    padded = Ways("add", ChannelPad(1, 1, 2), nn.Conv2d(4, 7, 1))
    groups = groups_of(nn.Sequential(conv(3, 4), padded, nn.Conv2d(7, 4, 8)))
    families = by_family(groups)
    assert {name: len(members) for name, members in families.items()} == {"0.0": 4, "1.branches.1": 3}
    assert [group.number for group in groups] == list(range(7))
    assert [group.pads for group in families["1.branches.1"]] == [(("1.branches.0", pad),) for pad in range(3)]


def test_families_of_one_layer_have_names_of_their_own() -> None:
    """Some of its channels are read once, some twice."""
    twice = Lambda(lambda x: torch.cat([x, x[:, :2], x[:, :1]], 1))
    families = by_family(groups_of(nn.Sequential(nn.Conv2d(3, 4, 1), twice, nn.Conv2d(7, 4, 8))))
    assert {name: [group.outputs[0][1] for group in members] for name, members in families.items()} == {
        "0": [0],
        "0#2": [1],
        "0#3": [2, 3],
    }


def test_a_group_is_known_by_its_number() -> None:
    groups = groups_of(Small())
    left = without(groups, groups[:1])
    assert left == groups[1:]
    assert set(left) <= set(groups)
    assert left[0].outputs == (("conv1", 0),)


def test_touching() -> None:
    groups = groups_of(residual())
    assert touching(groups, ["1.branches.1.0"]) == {"0.0"}  # by any of its layers
    assert touching(groups, ["2.*"]) == {"0.0", "2.down"}
    assert touching(groups, ["2.down", "elsewhere"]) == {"2.down"}
    assert touching(groups, ["3", "1.branches.1.1"]) == touching(groups, []) == set()  # the classifier; a norm


@PROPERTY
@given(networks())
def test_every_place_belongs_to_one_group(model: nn.Module) -> None:
    groups = groups_of(model)
    for kind in range(4):
        places = [place for group in groups for place in group.places[kind]]
        assert len(places) == len(set(places))
    for members in by_family(groups).values():
        footprints = {tuple(tuple(sorted(name for name, _ in kind)) for kind in group.places) for group in members}
        assert len(footprints) == 1


@PROPERTY
@given(networks(), RANDOM)
def test_what_is_left_is_what_the_smaller_model_has(model: nn.Module, random: Any) -> None:
    groups = groups_of(model)
    # Of two: the last group of a grouped convolution would be a plain one, whose channels are free.
    removed = some_of(groups, lambda: random.random() < 0.6, least=2)
    found = groups_of(compact(model, removed)[0])
    left = without(groups, removed)
    assert [group.places for group in left] == [group.places for group in found]
    assert [[g.places for g in members] for members in by_family(left).values()] == [
        [g.places for g in members] for members in by_family(found).values()
    ]


@PROPERTY
@given(networks(), RANDOM)
def test_two_removals_are_one(model: nn.Module, random: Any) -> None:
    groups = groups_of(model)
    removed = some_of(groups, lambda: random.random() < 0.7)
    first = [group for group in removed if random.random() < 0.5]
    between = without(groups, first)
    second = [group for group in between if group in set(removed)]
    assert everything(without(between, second)) == everything(without(groups, removed))
    at_once, _ = compact(model, removed)
    stepwise, _ = compact(compact(model, first)[0], second)
    states = at_once.state_dict(), stepwise.state_dict()
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[1][name], value) for name, value in states[0].items())


class Auxiliary(nn.Module):
    """A head that runs in training only."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 6, 1), nn.Conv2d(6, 6, 1)
        self.head, self.fc = nn.Linear(6, 4), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        middle = self.first(x)
        x = self.fc(self.second(middle).mean((2, 3)))
        return x + self.head(middle.mean((2, 3))) if self.training else x


class Fixed(nn.Module):
    """Three layers, of which the forward may count on the width of one."""

    def __init__(self, function: Any, width: int) -> None:
        super().__init__()
        self.before, self.counted = conv(3, 4), nn.Conv2d(4, width, 1)
        self.function = function
        inputs = function(torch.zeros(1, width, 8, 8)).shape[1]
        self.after, self.fc = nn.Linear(inputs, 5), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.after(self.function(self.counted(self.before(x)))).tanh())  # type: ignore[no-any-return]


def double_the_first(x: Tensor) -> Tensor:
    x = x.clone()
    x[:, :3].mul_(2)
    return x.flatten(1)


@pytest.mark.parametrize(
    ("function", "width", "rigid"),
    [
        (lambda x: x.flatten(1), 6, set()),
        (lambda x: x.view(-1, 6 * 64), 6, {"counted"}),  # a number that the forward holds
        (lambda x: x.view(len(x), 12, -1).mean(2), 6, {"counted"}),  # two features a channel
        (lambda x: x[:, :3].flatten(1), 6, {"counted"}),  # "counted#2", which nobody reads, may go
        (lambda x: x[:, : x.shape[1] // 2].flatten(1), 24, {"counted", "counted#2"}),
        (lambda x: x[:, ::2].flatten(1), 12, {"counted", "counted#2"}),
        (lambda x: torch.cat([x[:, 3:], x[:, :3]], 1).flatten(1), 6, {"counted"}),
        (lambda x: torch.split(x, [2, 4], 1)[1].flatten(1), 6, {"counted", "counted#2"}),
        (lambda x: torch.cat(x.split(4, 1)[::-1], 1).flatten(1), 12, {"counted"}),
        (lambda x: x.chunk(2, 1)[0].flatten(1), 6, set()),
        (lambda x: x.view(len(x), 2, 3, 8, 8).transpose(1, 2).flatten(1), 6, {"counted"}),
        (lambda x: x.view(len(x), 2, -1, 8, 8).transpose(1, 2).flatten(1), 6, set()),
        (lambda x: x.view(len(x), -1, 2, 8, 8).transpose(1, 2).flatten(1), 6, {"counted"}),
        (double_the_first, 6, {"counted"}),  # all is read where it was, but not what it was
        (lambda x: F.dropout(x.mean((2, 3))), 6, set()),  # never twice the same
    ],
)
def test_families_whose_width_the_forward_counts_on(function: Any, width: int, rigid: set[str]) -> None:
    check_rigid(Fixed(function, width), rigid)


def test_what_an_auxiliary_head_reads_is_rigid() -> None:
    check_rigid(Auxiliary(), {"first"})


def check_rigid(model: nn.Module, rigid: set[str]) -> None:
    before = {name: value.clone() for name, value in model.state_dict().items()}
    groups, random = groups_of(model.train()), torch.get_rng_state()
    assert rigid_families(model, IMAGE, groups) == rigid
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert model.training
    assert torch.equal(random, torch.get_rng_state())


@pytest.mark.parametrize(("boundary", "width"), [(boundary, width) for width in (3, 7) for boundary in range(1, width)])
def test_every_boundary_is_noticed(boundary: int, width: int) -> None:
    model = Fixed(lambda x: torch.cat([x[:, boundary:], x[:, :boundary]], 1).flatten(1), width)
    assert rigid_families(model, IMAGE, groups_of(model)) == {"counted"}


def test_what_cannot_be_trained_is_not_rigid_for_that() -> None:
    """A forward that wants labels in training, say, or larger images."""
    model = Auxiliary()
    model.head = nn.Linear(5, 4)
    with pytest.raises(RuntimeError):
        model.train()(torch.zeros(2, *IMAGE))
    assert rigid_families(model, IMAGE, groups_of(model)) == set()


@PROPERTY
@given(networks())
def test_random_networks_have_no_rigid_families(model: nn.Module) -> None:
    assert rigid_families(model, IMAGE, groups_of(model)) == set()


def chain(*held: int) -> nn.Sequential:
    """Eight convolutions; the widths of some are numbers in the forward."""
    layers: list[nn.Module] = []
    for i in range(8):
        layers += [nn.Conv2d(3 if i == 0 else 4, 4, 1)]
        layers += [Lambda(lambda x: x.view(len(x), 4, 8, 8))] if i in held else [nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(256, 2))


@pytest.mark.parametrize("held", [(), (0,), (7,), (3, 4), (0, 2, 5, 7), tuple(range(8))])
def test_bisection_finds_exactly_the_rigid_ones(held: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    model, traces = chain(*held), []

    def counted(*args: Any) -> Any:
        traces.append(1)
        return trace_channels(*args)

    monkeypatch.setattr(rehearsal, "trace_channels", counted)
    assert rigid_families(model, IMAGE, groups_of(model)) == {str(2 * i) for i in held}
    assert len(traces) <= max(1, len(held) * 2 * 3 + 1)  # log₂ 8 halvings for each
