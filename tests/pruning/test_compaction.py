"""A smaller network does what the large one does when the removed neurons are silenced: for random networks."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from networks import IMAGE, Small, Ways, close, masked, networks, randomize, some_of
from torch import Tensor, nn

from snncompress import registry
from snncompress.errors import UsageError
from snncompress.measure.cost import measure_cost
from snncompress.models.channels import trace_channels
from snncompress.models.padding import ChannelPad
from snncompress.noise.attach import Noise, attach
from snncompress.pruning.compaction import compact
from snncompress.pruning.costs import CostModel, Counts
from snncompress.pruning.coupling import Group, by_family, find_groups
from snncompress.pruning.rehearsal import rigid_families
from snncompress.training.learner import Learner
from snncompress.training.options import OptimizerName, TrainOptions
from snncompress.vision import torchvision

PROPERTY = settings(derandomize=True, deadline=None, max_examples=40, suppress_health_check=list(HealthCheck))
RANDOM = st.randoms(use_true_random=False)


def check_costs(model: nn.Module, shape: tuple[int, int, int], removed: list[Group], smaller: nn.Module) -> None:
    """What the smaller model was to cost is what it costs."""
    graph = trace_channels(model, shape)
    costs = CostModel(model, shape, graph, find_groups(graph))
    gone = Counter(group.family for group in removed)
    cost = measure_cost(smaller, shape)
    predicted = costs({name: full - gone[name] for name, full in costs.full.items()})
    assert predicted == Counts(cost.flops, cost.parameters, cost.memory)


@PROPERTY
@given(networks(), RANDOM)
def test_compact_equals_masked(model: nn.Module, random: Any) -> None:
    groups = find_groups(trace_channels(model, IMAGE))
    removed = some_of(groups, lambda: random.random() < random.choice([0.2, 0.9]))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    smaller, _ = compact(model, removed)
    x = torch.randn(3, *IMAGE, dtype=torch.float64)
    assert close(smaller(x), masked(model, removed, x))
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())  # on a copy
    check_costs(model, IMAGE, removed, smaller)


ZOO = [(name, registry.load("models", name)) for name in registry.entries("models") if name != "resnet110"]


@pytest.mark.parametrize(("name", "module"), ZOO, ids=[name for name, _ in ZOO])
def test_architectures_of_the_zoo(name: str, module: Any) -> None:
    check_architecture(getattr(module, name.replace("-", "_"))(), module.INPUT_SHAPE)


@pytest.mark.parametrize(
    "name",
    [
        "mobilenet_v3_small",
        "shufflenet_v2_x1_0",
        "regnet_y_400mf",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("densenet121", "resnet18", "mobilenet_v2", "squeezenet1_1")
        ),
    ],
)
def test_architectures_of_torchvision(name: str) -> None:
    check_architecture(getattr(torchvision.models, name)(weights=None), (3, 64, 64))


def check_architecture(model: nn.Module, shape: tuple[int, int, int]) -> None:
    """Without half of each family, drawn at random."""
    randomize(model)
    groups = find_groups(trace_channels(model, shape))
    assert rigid_families(model, shape, groups) == set()
    families, removed = by_family(groups), list[Group]()
    for members in families.values():
        removed += [members[i] for i in torch.randperm(len(members))[: len(members) // 2].tolist()]
    smaller, _ = compact(model, removed)
    x = torch.rand(2, *shape)
    with torch.no_grad():
        small, silenced, full = smaller(x), masked(model, removed, x), model(x)
    assert close(small, silenced, 1e-5)
    assert not close(small, full, 1e-2)  # they do count
    check_costs(model, shape, removed, smaller)
    # No layer is left out, not even where channels are summed; but shuffles again and again make all of them one.
    single = [members[0] for members in families.values() if len(members) == 1]
    stays = {name for group in single for name, _ in group.outputs + group.inputs}
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv2d | nn.Linear) and name not in stays:
            assert smaller.get_parameter(f"{name}.weight").numel() < module.weight.numel()


class Grouped(nn.Module):
    """Convolutions of four groups and of two."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Conv2d(3, 4, 1)
        self.depthwise = nn.Conv2d(4, 8, 3, groups=4, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.narrow = nn.Conv2d(8, 6, 1)
        self.grouped = nn.Conv2d(6, 4, 3, groups=2)
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.narrow(self.norm(self.depthwise(self.wide(x))).relu())
        return self.fc(self.grouped(x.relu()).mean((2, 3)))  # type: ignore[no-any-return]


def trained(model: nn.Module, optimizer: OptimizerName) -> tuple[Learner, Noise]:
    """A learner whose moments are not zero, its noise detached."""
    noise = attach(model, "se-snn", IMAGE)
    learner = Learner(model, noise, TrainOptions(optimizer=optimizer))
    for _ in range(2):
        learner.step(torch.randn(8, *IMAGE), torch.randint(4, (8,)), lr=0.01)
    noise.detach()
    return learner, noise


def made_by(groups: list[Group], gone: dict[str, list[int]]) -> list[Group]:
    """The groups that hold one of these output channels."""
    return [group for group in groups if any(channel in gone.get(name, []) for name, channel in group.outputs)]


Indices = dict[str, list[int]]
SMALL: tuple[Indices, Indices, Indices] = (
    {"conv1": [1], "conv2": [0, 3], "fc1": [2, 4, 5]},
    {"conv1": [0, 2, 3], "norm1": [0, 2, 3], "conv2": [1, 2, 4], "norm2": [1, 2, 4], "fc1": [0, 1, 3]},
    {"conv2": [0, 2, 3], "fc1": [16 * c + i for c in (1, 2, 4) for i in range(16)], "fc2": [0, 1, 3]},
)
GROUPED: tuple[Indices, Indices, Indices] = (
    {"wide": [0, 2], "grouped": [3]},
    {"wide": [1, 3], "depthwise": [2, 3, 6, 7], "norm": [2, 3, 6, 7], "narrow": [0, 1, 2], "grouped": [0, 1]},
    {"narrow": [2, 3, 6, 7], "fc": [0, 1]},  # those of a grouped convolution go with its rows
)


@pytest.mark.parametrize("optimizer", OptimizerName)
@pytest.mark.parametrize(("model", "cut"), [(Small, SMALL), (Grouped, GROUPED)])
def test_moments_and_branches_shrink_along(
    model: type[nn.Module], cut: tuple[Indices, Indices, Indices], optimizer: OptimizerName
) -> None:
    gone, rows, columns = cut
    learner, noise = trained(model(), optimizer)
    removed = made_by(find_groups(trace_channels(learner.model, IMAGE)), gone)
    layers = [name for name, _ in learner.model.named_children()]
    before = {name: value.clone() for name, value in learner.tensors().items()}
    learner.model, cuts = compact(learner.model, removed, noise)
    learner.shrink(cuts)
    after = learner.tensors()
    assert after.keys() == before.keys()
    for name, value in before.items():
        if not name.startswith(("model", "noise", "optimizer")):
            continue
        layer = next(part for part in name.split(".") if part in layers)
        if value.dim() > 0 and layer in rows:
            value = value[rows[layer]]
        if value.dim() > 1 and layer in columns:
            value = value[:, columns[layer]]
        assert torch.equal(after[name], value), name
    assert any(name.startswith("optimizer") and bool(value.any()) for name, value in after.items() if value.dim())


@pytest.mark.parametrize("optimizer", OptimizerName)
@pytest.mark.parametrize("model", [Small, Grouped])
def test_training_goes_on_after_compaction(model: type[nn.Module], optimizer: OptimizerName) -> None:
    learner, noise = trained(model(), optimizer)
    families = by_family(find_groups(trace_channels(learner.model, IMAGE)))
    learner.model, cuts = compact(learner.model, [members[0] for members in families.values()], noise)
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


def test_group_norms_and_paddings_shrink() -> None:
    padded = Ways("add", ChannelPad(2, 2, 2), nn.Conv2d(2, 6, 1, stride=2))
    model = nn.Sequential(nn.Conv2d(3, 2, 1), padded, nn.GroupNorm(3, 6), nn.Conv2d(6, 4, 4))
    groups = find_groups(trace_channels(randomize(model), IMAGE))
    assert [len(group.pads) for group in groups] == [0, 2, 2]  # what is padded, zeros before, zeros after
    smaller, _ = compact(model, groups[2:])
    pad, norm = smaller[1].branches[0], smaller[2]  # type: ignore[index]
    assert (pad.pad_before, pad.pad_after) == (2, 0)
    assert (norm.num_groups, norm.num_channels) == (2, 4)
    assert torch.equal(norm.weight, model[2].weight[:4])
    x = torch.randn(2, *IMAGE)
    assert close(smaller(x), masked(model, groups[2:], x), 1e-5)


def test_a_layer_is_never_left_with_nothing() -> None:
    model = Small()
    groups = [group for group in find_groups(trace_channels(model, IMAGE)) if group.family == "conv2"]
    with pytest.raises(UsageError, match="layer conv2 would be left with nothing; keep at least one of its 5"):
        compact(model, groups)
