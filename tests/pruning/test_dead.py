"""Dead neurons: all of them are found, none that lives, and their removal changes nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from networks import IMAGE, Lambda, batches_of, close, networks, some_of
from torch import Tensor, nn

from snncompress.models.channels import trace_channels
from snncompress.progress import Progress
from snncompress.pruning.compaction import compact
from snncompress.pruning.coupling import Group, find_groups
from snncompress.pruning.dead import InexactRemovalError, check_exact, find_dead, outputs


def kill(model: nn.Module, group: Group) -> None:
    """Makes a neuron so negative that its ReLU never opens."""
    layer = model.get_submodule(group.layer)
    norms = [model.get_submodule(name) for name, _ in group.norms]
    if norms:
        norms[0].bias.data[group.channel] = -1e4  # type: ignore[index,operator,union-attr]
    elif layer.bias is not None:
        layer.bias.data[group.channel] = -1e4  # type: ignore[index,operator,union-attr]


@settings(derandomize=True, deadline=None, max_examples=30, suppress_health_check=list(HealthCheck))
@given(networks(), st.randoms(use_true_random=False))
def test_removal_is_exact(model: nn.Module, random: Any) -> None:
    groups = find_groups(trace_channels(model, IMAGE))
    for group in some_of(groups, lambda: random.random() < 0.5):
        kill(model, group)
    batches = batches_of(torch.randn(5, *IMAGE).double(), torch.randn(3, *IMAGE).double())
    dead, logits = find_dead(model, groups, batches, Progress())
    smaller, _ = compact(model, dead)
    assert check_exact(logits, outputs(smaller, batches, Progress(), "check")) < 1e-12
    for layer in {group.layer for group in groups}:
        assert any(group.layer == layer for group in set(groups) - set(dead))  # one is left
    assert not any(module._forward_pre_hooks for module in model.modules())


class Chain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.fc1 = nn.Linear(4 * 16, 5)
        self.fc2 = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv(x)), 2).flatten(1)
        return self.fc2(F.relu(self.fc1(x)))  # type: ignore[no-any-return]


def dead_of(model: nn.Module, *inputs: Tensor) -> set[tuple[str, int]]:
    groups = find_groups(trace_channels(model, IMAGE))
    return {(group.layer, group.channel) for group in find_dead(model, groups, batches_of(*inputs), Progress())[0]}


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


@pytest.mark.parametrize("between", [nn.Sigmoid(), nn.Identity(), Lambda(lambda x: F.relu(x) + 1), nn.BatchNorm2d(4)])
def test_a_zero_that_means_something_is_not_dead(between: nn.Module) -> None:
    between.train(False)
    if isinstance(between, nn.BatchNorm2d):
        between = nn.Sequential(nn.ReLU(), between)  # a norm after the ReLU shifts its zero
        nn.init.constant_(between[1].bias, 0.5)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), between, nn.Flatten(), nn.Linear(4 * 36, 3))
    model[0].bias.data.fill_(-50.0)
    assert dead_of(model, torch.randn(4, *IMAGE)) == set()


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
