"""A smaller network does what the large one does when the removed neurons are silenced: for random networks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from networks import IMAGE, Lambda, Small, close, masked, networks, randomize, some_of
from torch import nn

from snncompress import registry
from snncompress.errors import UsageError
from snncompress.measure.cost import measure_cost
from snncompress.models.channels import trace_channels
from snncompress.noise.attach import Noise, attach
from snncompress.pruning.compaction import compact
from snncompress.pruning.coupling import Group, find_groups
from snncompress.pruning.rehearsal import rigid_layers
from snncompress.pruning.targets import FlopsModel
from snncompress.training.learner import Learner
from snncompress.training.options import OptimizerName, TrainOptions
from snncompress.vision import torchvision

PROPERTY = settings(derandomize=True, deadline=None, max_examples=40, suppress_health_check=list(HealthCheck))
RANDOM = st.randoms(use_true_random=False)


@PROPERTY
@given(networks(), RANDOM)
def test_compact_equals_masked(model: nn.Module, random: Any) -> None:
    graph = trace_channels(model, IMAGE)
    groups = find_groups(graph)
    removed = some_of(groups, lambda: random.random() < random.choice([0.2, 0.9]))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    smaller, _ = compact(model, removed)
    x = torch.randn(3, *IMAGE, dtype=torch.float64)
    assert close(smaller(x), masked(model, removed, x))
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())  # on a copy
    widths = dict.fromkeys((group.layer for group in groups), 0)
    for group in set(groups) - set(removed):
        widths[group.layer] += 1
    cost = measure_cost(model.float(), IMAGE)
    flops = FlopsModel(cost, graph, groups)
    assert flops(widths) == measure_cost(smaller.float(), IMAGE).flops
    assert flops(flops.widths) == cost.flops
    assert not rigid_layers(model, IMAGE, graph, groups)


@PROPERTY
@given(networks(), RANDOM)
def test_one_after_the_other_equals_all_at_once(model: nn.Module, random: Any) -> None:
    removed = some_of(find_groups(trace_channels(model, IMAGE)), lambda: random.random() < 0.3)
    at_once, _ = compact(model, removed)
    stepwise = model
    for group in reversed(removed):  # from the last channel down: the others keep their numbers
        now = {(g.layer, g.channel): g for g in find_groups(trace_channels(stepwise, IMAGE))}
        stepwise, _ = compact(stepwise, [now[group.layer, group.channel]])
    states = at_once.state_dict(), stepwise.state_dict()
    assert all(torch.equal(states[1][name], value) for name, value in states[0].items())


ZOO = [(name, registry.load("models", name)) for name in registry.entries("models") if name != "resnet110"]


@pytest.mark.parametrize(("name", "module"), ZOO, ids=[name for name, _ in ZOO])
def test_architectures_of_the_zoo(name: str, module: Any) -> None:
    check_architecture(getattr(module, name.replace("-", "_"))(), module.INPUT_SHAPE)


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v3_small", "densenet121", "shufflenet_v2_x0_5"])
def test_architectures_of_torchvision(name: str) -> None:
    check_architecture(getattr(torchvision.models, name)(weights=None), (3, 64, 64))


def check_architecture(model: nn.Module, shape: tuple[int, int, int]) -> None:
    randomize(model)
    graph = trace_channels(model, shape)
    groups = find_groups(graph)
    rigid = rigid_layers(model, shape, graph, groups)
    groups = [group for group in groups if group.layer not in rigid]
    generator = torch.Generator().manual_seed(0)
    removed = some_of(groups, lambda: float(torch.rand((), generator=generator)) < 0.3)
    assert removed
    smaller, _ = compact(model, removed)
    x = torch.rand(2, *shape)
    with torch.no_grad():
        assert close(smaller(x), masked(model, removed, x), 1e-5)
    flops = FlopsModel(measure_cost(model, shape), graph, groups)
    widths = dict(flops.widths)
    for group in removed:
        widths[group.layer] -= 1
    assert flops(widths) == measure_cost(smaller, shape).flops


@pytest.mark.parametrize(
    ("function", "inputs", "rigid"),
    [
        (lambda x: x.flatten(1), 6 * 64, set()),
        (lambda x: x.view(-1, 6 * 64), 6 * 64, {"0"}),  # a number that the forward holds
        (lambda x: x[:, :3].flatten(1), 3 * 64, {"0"}),
        (lambda x: x.chunk(2, 1)[0].flatten(1), 3 * 64, {"0"}),
        (lambda x: x.view(len(x), 2, 3, 8, 8).transpose(1, 2).flatten(1), 6 * 64, {"0"}),
    ],
)
def test_layers_whose_width_the_forward_counts_on(function: Any, inputs: int, rigid: set[str]) -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), Lambda(function), nn.Linear(inputs, 5), nn.ReLU(), nn.Linear(5, 2)
    )
    graph = trace_channels(model, IMAGE)
    assert rigid_layers(model, IMAGE, graph, find_groups(graph)) == rigid


def trained(optimizer: OptimizerName) -> tuple[Learner, Noise]:
    """A learner whose moments are not zero, its noise detached."""
    model = Small()
    noise = attach(model, "se-snn", IMAGE)
    learner = Learner(model, noise, TrainOptions(optimizer=optimizer))
    for _ in range(2):
        learner.step(torch.randn(8, *IMAGE), torch.randint(4, (8,)), lr=0.01)
    noise.detach()
    return learner, noise


@pytest.mark.parametrize("optimizer", OptimizerName)
def test_moments_and_branches_shrink_along(optimizer: OptimizerName) -> None:
    learner, noise = trained(optimizer)
    groups = find_groups(trace_channels(learner.model, IMAGE))
    gone = {"conv1": [1], "conv2": [0, 3], "fc1": [2, 4, 5]}
    removed = [group for group in groups if group.channel in gone[group.layer]]
    before = {name: value.clone() for name, value in learner.tensors().items()}
    learner.model, cuts = compact(learner.model, removed, noise)
    learner.shrink(cuts)
    after = learner.tensors()
    rows = {
        **dict.fromkeys(["conv1", "norm1"], torch.tensor([0, 2, 3])),
        **dict.fromkeys(["conv2", "norm2"], torch.tensor([1, 2, 4])),
        "fc1": torch.tensor([0, 1, 3]),
        "fc2": torch.arange(4),
    }
    maps = torch.cat([torch.arange(16 * channel, 16 * channel + 16) for channel in (1, 2, 4)])
    columns = {"conv1": torch.arange(3), "conv2": rows["conv1"], "fc1": maps, "fc2": rows["fc1"]}
    assert after.keys() == before.keys()
    for name, value in before.items():
        if not name.startswith(("model", "noise", "optimizer")):
            continue
        layer = next(part for part in name.split(".") if part in rows)
        if value.dim() > 0:
            value = value.index_select(0, rows[layer])
        if value.dim() > 1:
            value = value.index_select(1, columns[layer])
        assert torch.equal(after[name], value), name
    assert any(name.startswith("optimizer") and bool(value.any()) for name, value in after.items() if value.dim())


@pytest.mark.parametrize("optimizer", OptimizerName)
def test_training_goes_on_after_compaction(optimizer: OptimizerName) -> None:
    learner, noise = trained(optimizer)
    groups = find_groups(trace_channels(learner.model, IMAGE))
    learner.model, cuts = compact(learner.model, [group for group in groups if group.channel == 0], noise)
    noise.attach(learner.model)
    learner.shrink(cuts)
    # A bias before a norm has no gradient: weights are looked at.
    before = {name: p.detach().clone() for name, p in learner.parameters.items() if name.endswith("weight")}
    learner.step(torch.randn(8, *IMAGE), torch.randint(4, (8,)), lr=0.01)
    assert all(not torch.equal(learner.parameters[name], old) for name, old in before.items())
    assert {id(p) for p in learner.model.parameters()} <= {id(p) for p in learner.parameters.values()}


def test_frozen_parameters_stay_frozen() -> None:
    model = Small()
    model.conv2.weight.requires_grad_(False)
    smaller, _ = compact(model, find_groups(trace_channels(model, IMAGE))[:1])
    assert not smaller.get_parameter("conv2.weight").requires_grad
    assert smaller.get_parameter("conv1.weight").requires_grad


def test_groups_by_hand() -> None:
    groups = find_groups(trace_channels(Small(), IMAGE))
    assert groups[1] == Group("conv1", 1, (("norm1", 1),), (("conv2", 1),))
    assert groups[4] == Group("conv2", 0, (("norm2", 0),), tuple(("fc1", slot) for slot in range(16)))
    assert groups[-1] == Group("fc1", 5, (), (("fc2", 5),))
    assert len(groups) == 4 + 5 + 6


def test_a_layer_is_never_left_with_nothing() -> None:
    model = Small()
    groups = [group for group in find_groups(trace_channels(model, IMAGE)) if group.layer == "conv2"]
    with pytest.raises(UsageError, match="layer conv2 would be left with nothing; keep at least one of its 5"):
        compact(model, groups)
