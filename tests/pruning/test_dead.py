"""Dead neurons: all of them are found, none that lives, and their removal changes nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from networks import IMAGE, Lambda, batches_of, close, networks, randomize, some_of
from torch import Tensor, nn

from snncompress.models.channels import trace_channels
from snncompress.models.resnet import resnet20
from snncompress.progress import Progress
from snncompress.pruning.compaction import compact
from snncompress.pruning.costs import CostModel
from snncompress.pruning.coupling import Group, by_family, find_groups
from snncompress.pruning.dead import InexactRemovalError, check_exact, find_dead, outputs
from snncompress.pruning.folding import fold
from snncompress.pruning.rehearsal import rigid_families
from snncompress.pruning.targets import Targets, make_budget


def kill(model: nn.Module, group: Group, value: float) -> None:
    """Makes every member of a neuron a constant: dead if its ReLU never opens, foldable perhaps if it does."""
    for name, channel in group.outputs:
        layer: Any = model.get_submodule(name)
        layer.weight.data[channel] = 0
        if layer.bias is not None:
            layer.bias.data[channel] = value
    for name, channel in group.norms:
        norm: Any = model.get_submodule(name)
        norm.bias.data[channel] = value


def norms_of(model: nn.Module, shape: tuple[int, int, int] = IMAGE) -> dict[str, str | None]:
    return {name: layer.norm for name, layer in trace_channels(model, shape).layers.items()}


@settings(derandomize=True, deadline=None, max_examples=40, suppress_health_check=list(HealthCheck))
@given(networks(), st.randoms(use_true_random=False))
def test_removal_is_exact(model: nn.Module, random: Any) -> None:
    groups = find_groups(trace_channels(model, IMAGE))
    rigid = rigid_families(model, IMAGE, groups)
    groups = [group for group in groups if group.family not in rigid]
    for group in some_of(groups, lambda: random.random() < 0.5):
        kill(model, group, random.choice([-3.0, 0.0, 2.0]))
    batches = batches_of(torch.randn(5, *IMAGE).double(), torch.randn(3, *IMAGE).double())
    norms = norms_of(model)
    dead = find_dead(model, groups, norms, batches, Progress())
    assert all(by_family(set(groups) - set(dead.groups)).get(family) for family in by_family(groups))  # one is left
    assert not any(module._forward_pre_hooks for module in model.modules())
    fold(model, dead.constants, norms)
    smaller, _ = compact(model, dead.groups)
    if dead.groups:
        assert check_exact(dead.logits, outputs(smaller, batches, Progress(), "check")) < 1e-12


def test_nobody_looks_on_once_every_neuron_has_fired() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 6), nn.ReLU(), nn.Linear(6, 2))
    groups = find_groups(trace_channels(model, IMAGE))
    found = find_dead(model, groups, {}, batches_of(*torch.randn(9, 50, *IMAGE)), Progress())
    assert (found.groups, len(found.logits)) == ([], 1)
    with torch.no_grad():
        model[1].bias[2] = -100.0
    found = find_dead(model, groups, {}, batches_of(*torch.randn(9, 50, *IMAGE)), Progress())
    assert [group.outputs for group in found.groups] == [(("1", 2),)]
    assert len(found.logits) == 9


def test_nobody_looks_on_where_the_dead_must_stay() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 8), nn.ReLU(), nn.Linear(8, 2))
    with torch.no_grad():
        model[1].bias[:3] = -100.0
    graph = trace_channels(model, IMAGE)
    groups = find_groups(graph)
    costs = CostModel(model, IMAGE, graph, groups)
    for round_to, gone, seen in ((4, 0, 1), (2, 2, 9)):
        budget = make_budget(costs, Targets(), costs.full, {"1": 1}, 1, round_to)
        found = find_dead(model, groups, {}, batches_of(*torch.randn(9, 50, *IMAGE)), Progress(), budget)
        assert (len(found.groups), len(found.logits)) == (gone, seen)


class Chain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.fc1 = nn.Linear(4 * 16, 5)
        self.fc2 = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv(x)), 2).flatten(1)
        return self.fc2(F.relu(self.fc1(x)))  # type: ignore[no-any-return]


def dead_of(model: nn.Module, *inputs: Tensor, shape: tuple[int, int, int] = IMAGE) -> set[tuple[str, int]]:
    groups = find_groups(trace_channels(model, shape))
    dead = find_dead(model, groups, norms_of(model, shape), batches_of(*inputs), Progress())
    return {group.outputs[0] for group in dead.groups}


def test_who_is_dead_by_hand() -> None:
    model = Chain()
    model.conv.bias.data[:] = torch.tensor([0.0, -1e3, 0.0, -1e3])
    model.fc1.bias.data[:] = torch.tensor([-1e3, 1.0, 1.0, -1e3, 1.0])
    images = torch.randn(4, *IMAGE)
    assert dead_of(model, images) == {("conv", 1), ("conv", 3), ("fc1", 0), ("fc1", 3)}
    # One image of all on which one pixel fires: alive.
    loud = torch.zeros(1, *IMAGE)
    loud[0, :, 3, 3] = 1e5 * model.conv.weight.data[1, :, 1, 1].sign()
    assert ("conv", 1) not in dead_of(model, images, loud)


def test_where_all_are_dead_one_stays() -> None:
    model = Chain()
    model.fc1.bias.data.fill_(-1e3)
    dead = dead_of(model, torch.randn(4, *IMAGE))
    assert {layer for layer, _ in dead} == {"fc1"}
    assert len(dead) == 4


@pytest.mark.parametrize(
    ("minimum", "round_to", "killed", "left"),
    [(1, 1, 7, 3), (5, 1, 7, 5), (1, 4, 1, 10), (1, 4, 3, 8), (1, 4, 7, 4), (1, 4, 10, 4), (1, 4, 9, 4), (6, 4, 9, 8)],
)
def test_as_many_stay_as_the_allowed_widths_ask_for(minimum: int, round_to: int, killed: int, left: int) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 10), nn.ReLU(), nn.Linear(10, 3))
    model[1].bias.data[:] = 1e3 * torch.tensor([-1.0] * killed + [1.0] * (10 - killed))  # type: ignore[union-attr, index, operator]
    graph = trace_channels(model, IMAGE)
    groups = find_groups(graph)
    costs = CostModel(model, IMAGE, graph, groups)
    budget = make_budget(costs, Targets(), costs.full, {"1": 1}, minimum, round_to)
    batches = batches_of(torch.randn(4, *IMAGE))
    dead = find_dead(model, groups, norms_of(model), batches, Progress(), budget)
    assert len(groups) - len(dead.groups) == left
    assert all(group.outputs[0][1] < killed for group in dead.groups)
    smaller, _ = compact(model, dead.groups)
    assert check_exact(dead.logits, outputs(smaller, batches, Progress(), "check")) < 1e-6


@pytest.mark.parametrize("between", [nn.Sigmoid(), nn.Identity(), Lambda(lambda x: F.relu(x) + 1), nn.BatchNorm2d(4)])
def test_a_zero_that_means_something_is_not_dead(between: nn.Module) -> None:
    """What is padded with zeros reads another number at the border than in the middle."""
    between.train(False)
    if isinstance(between, nn.BatchNorm2d):
        between = nn.Sequential(nn.ReLU(), between)  # a norm after the ReLU shifts its zero
        nn.init.constant_(between[1].bias, 0.5)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), between, nn.Conv2d(4, 2, 3, padding=1), nn.Flatten(), nn.Linear(72, 3))
    model[0].bias.data.fill_(-50.0)
    assert not any(layer == "0" for layer, _ in dead_of(model, torch.randn(4, *IMAGE)))


class Residual(nn.Module):
    """A sum of two layers' outputs, read by one, with a ReLU before or not."""

    def __init__(self, activation: Any) -> None:
        super().__init__()
        self.activation = activation
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.block = nn.Conv2d(4, 4, 3, padding=1)
        self.fc = nn.Linear(4 * 64, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        return self.fc(self.activation(x + self.block(x)).flatten(1))  # type: ignore[no-any-return]


def test_a_neuron_of_a_residual_sum_is_dead_if_no_member_fires() -> None:
    model = Residual(F.relu)
    images = torch.randn(4, *IMAGE)
    model.stem.bias.data[1] = -1e3  # block still writes into it
    model.block.bias.data[1] = 1.0
    assert dead_of(model, images) == set()
    model.block.bias.data[1] = -1e3
    assert dead_of(model, images) == {("stem", 1)}
    model.stem.bias.data[1] = 1.0  # now the stem's own reader, block, hears it
    assert dead_of(model, images) == set()


def test_what_is_constant_in_all_its_readers_can_be_folded_or_stays() -> None:
    model = Residual(nn.Identity())
    model.stem.bias.data[1] = -1e3
    model.block.weight.data[1] = 0
    model.block.bias.data[1] = 0.7  # block reads zero from it, fc 0.7
    groups = find_groups(trace_channels(model, IMAGE))
    batches = batches_of(torch.randn(4, *IMAGE))
    dead = find_dead(model, groups, norms_of(model), batches, Progress())
    assert [group.outputs for group in dead.groups] == [(("stem", 1), ("block", 1))]
    assert dead.constants == {("fc", 64 + position): pytest.approx(0.7) for position in range(64)}


def test_resnet20_loses_its_dead_neurons_exactly() -> None:
    shape = (3, 32, 32)
    model = randomize(resnet20())
    families = by_family(find_groups(trace_channels(model, shape)))
    killed = [group for members in families.values() for group in members[:2]]
    for group in killed:
        for name, channel in group.norms:
            norm: Any = model.get_submodule(name)
            norm.weight.data[channel], norm.bias.data[channel] = 0, -1.0
    images = torch.randn(6, *shape)
    groups = find_groups(trace_channels(model, shape))
    dead = find_dead(model, groups, norms_of(model, shape), batches_of(images), Progress())
    assert set(killed) <= set(dead.groups)
    assert any(len(group.outputs) > 1 for group in killed)
    fold(model, dead.constants, norms_of(model, shape))
    smaller, _ = compact(model, dead.groups)
    assert check_exact(dead.logits, outputs(smaller, batches_of(images), Progress(), "check")) < 1e-5


def test_a_change_is_an_error() -> None:
    before = [torch.tensor([[1.0, -100.0]]), torch.tensor([[3.0, 2.0]])]
    assert check_exact(before, [logits + 5e-4 for logits in before]) == pytest.approx(5e-6, rel=1e-2)
    assert check_exact([torch.zeros(1, 2)], [torch.zeros(1, 2)]) == 0
    for wrong in (2e-3, float("nan")):
        with pytest.raises(InexactRemovalError, match="changed the logits by"):
            check_exact(before, [before[0], before[1] + wrong])


def test_outputs_are_those_of_the_evaluation_mode() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(192, 3)).train()
    x = torch.randn(4, *IMAGE)
    found = outputs(model, batches_of(x[:3], x[3:]), Progress(), "look")
    assert close(torch.cat(found), model.eval()(x), 1e-6)
    assert not found[0].requires_grad
