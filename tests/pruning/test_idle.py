"""Idle neurons: those that zeros have made useless are found, with what follows from that; nothing else changes."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from networks import IMAGE, Gate, Lambda, Ways, close, conv, networks, randomize
from torch import Tensor, nn

from snncompress.models.channels import trace_channels
from snncompress.models.layers import weight_layers
from snncompress.models.resnet import resnet20
from snncompress.pruning.coupling import Group, by_family, find_groups
from snncompress.pruning.idle import find_idle, strip
from snncompress.pruning.rehearsal import rigid_families

POOL = Lambda(lambda x: x.mean((2, 3)))
Widths = dict[str, int]


def neurons(model: nn.Module, shape: tuple[int, int, int] = IMAGE) -> tuple[list[Group], dict[str, str | None]]:
    """What can be removed, and the norms that follow layers, as a subject knows them."""
    graph = trace_channels(model, shape)
    groups = find_groups(graph)
    rigid = rigid_families(model, shape, groups)
    norms = {name: layer.norm for name, layer in graph.layers.items()}
    return [group for group in groups if group.family not in rigid], norms


@torch.no_grad()
def stripped(model: nn.Module, shape: tuple[int, int, int] = IMAGE, tolerance: float = 1e-10) -> tuple[nn.Module, int]:
    """The model without its idle neurons, compared on random inputs; and how many went."""
    groups, norms = neurons(model, shape)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    small, left = strip(model, groups, norms, shape)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())  # not touched
    assert not find_idle(small, left, norms, shape).groups  # nothing more to do
    assert set(by_family(left)) == set(by_family(groups))  # a layer is never pruned to nothing
    inputs = torch.randn(7, *shape, dtype=next(model.parameters()).dtype)
    assert close(small(inputs), model(inputs), tolerance)
    assert close(small(100 * inputs), model(100 * inputs), tolerance)  # for any input, not for likely ones
    return small, len(groups) - len(left)


def widths(model: nn.Module) -> Widths:
    return {name: len(layer.weight) for name, layer in weight_layers(model).items()}


@torch.no_grad()
def zero_some(model: nn.Module, random: Any, share: float) -> None:
    """Zeroes rows, columns and single weights of all layers."""
    for layer in weight_layers(model).values():
        weight = layer.weight
        for axis in (0, 1):
            for channel in range(weight.shape[axis]):
                if random.random() < share:
                    weight.select(axis, channel).zero_()
        weight[torch.rand_like(weight) < random.choice([0.0, 0.5, 0.9])] = 0
        if layer.bias is not None and random.random() < 0.3:
            layer.bias.zero_()


@settings(derandomize=True, deadline=None, max_examples=25, suppress_health_check=list(HealthCheck))
@given(networks(), st.sampled_from([0.1, 0.4, 0.7]), st.randoms(use_true_random=False))
def test_outputs_stay_what_they_were(model: nn.Module, share: float, random: Any) -> None:
    zero_some(model, random, share)
    stripped(model)


@settings(derandomize=True, deadline=None, max_examples=15, suppress_health_check=list(HealthCheck))
@given(networks(), st.randoms(use_true_random=False))
def test_in_single_precision(model: nn.Module, random: Any) -> None:
    zero_some(model.float(), random, 0.4)
    stripped(model, tolerance=1e-5)


def linear_chain(*sizes: int, bias: bool = True) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in itertools.pairwise(sizes):
        layers += [nn.Linear(inputs, outputs, bias=bias), nn.ReLU()]
    return nn.Sequential(*layers[:-1]).double()


def test_neurons_that_read_nothing_or_that_nobody_reads() -> None:
    model = linear_chain(192, 6, 5, 4)
    with torch.no_grad():
        model[1].weight[1] = 0  # reads nothing
        model[3].weight[:, 4] = 0  # is not read
        model[3].weight[2] = 0
    groups, norms = neurons(model)
    idle = find_idle(model, groups, norms, IMAGE)
    assert {group.outputs[0] for group in idle.groups} == {("1", 1), ("1", 4), ("3", 2)}
    assert all(name in ("3", "5") for name, _ in idle.constants)
    small, gone = stripped(model)
    assert (gone, widths(small)) == (3, {"1": 4, "3": 4, "5": 4})


def test_a_constant_is_folded_and_a_negative_one_is_nothing() -> None:
    model = linear_chain(192, 3, 4)
    with torch.no_grad():
        model[1].weight[:2] = 0
        model[1].bias[:2] = torch.tensor([0.75, -0.75])
    groups, norms = neurons(model)
    idle = find_idle(model, groups, norms, IMAGE)
    assert idle.constants == {("3", 0): pytest.approx(0.75)}
    small, gone = stripped(model)
    assert gone == 2
    assert close(small.get_parameter("3.bias"), model[3].bias + 0.75 * model[3].weight[:, 0], 1e-12)


def test_cascades() -> None:
    """A neuron that only an idle one reads goes, too, and one that reads only idle ones; to the ends of the network."""
    model = linear_chain(192, 5, 5, 5, 4)
    with torch.no_grad():
        for layer in (model[3], model[5]):
            layer.weight.copy_(torch.eye(5))
        model[7].weight[:, 2] = 0  # then neuron 2 of every layer is not read
        model[1].weight[4] = 0  # and neuron 4 of every layer reads nothing
    small, gone = stripped(model)
    assert (gone, widths(small)) == (6, {"1": 3, "3": 3, "5": 3, "7": 4})


@pytest.mark.parametrize("bias", [True, False])
def test_a_whole_silent_layer_keeps_one_neuron(bias: bool) -> None:
    model = linear_chain(192, 5, 6, 4, bias=bias)
    with torch.no_grad():
        model[3].weight.zero_()
    small, gone = stripped(model)
    assert widths(small) == {"1": 1, "3": 1, "5": 4}
    assert gone == 9
    with torch.no_grad():
        model[5].weight.zero_()  # nothing is read at all
    assert widths(stripped(model)[0]) == {"1": 1, "3": 1, "5": 4}


def test_where_nothing_is_zero_nothing_goes() -> None:
    model = randomize(resnet20())
    assert stripped(model, (3, 32, 32), 1e-6)[1] == 0


@torch.no_grad()
def silence(model: nn.Module, name: str, channel: int) -> None:
    model.get_parameter(f"{name}.weight")[channel] = 0


class Residual(nn.Module):
    """A block beside its input, without padding, so that constants can be folded."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 1)
        self.inner, self.outer = nn.Conv2d(4, 5, 1), nn.Conv2d(5, 4, 1)
        self.fc = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        x = F.relu(x + self.outer(F.relu(self.inner(x))))
        return self.fc(x.mean((2, 3)))  # type: ignore[no-any-return]


def test_residuals() -> None:
    model = Residual().double()
    silence(model, "stem", 1)  # the block still writes into it
    silence(model, "inner", 2)
    small, gone = stripped(model)
    assert (gone, widths(small)) == (1, {"stem": 4, "inner": 4, "outer": 4, "fc": 3})
    silence(model, "outer", 1)  # now nobody does
    small, gone = stripped(model)
    assert (gone, widths(small)) == (2, {"stem": 3, "inner": 4, "outer": 3, "fc": 3})
    with torch.no_grad():  # what nobody reads: neither the block nor the end
        model.fc.weight[:, 0] = 0
    assert stripped(model)[1] == 2
    with torch.no_grad():
        model.inner.weight[:, 0] = 0
    assert stripped(model)[1] == 3


def test_concatenation() -> None:
    model = nn.Sequential(Ways("cat", conv(3, 4), conv(3, 5)), nn.Conv2d(9, 6, 1), nn.ReLU(), POOL, nn.Linear(6, 3))
    model.double()
    silence(model, "0.branches.0.0", 2)
    silence(model, "0.branches.1.0", 4)
    with torch.no_grad():
        model[1].weight[:, 4] = 0  # the other's first
    small, gone = stripped(model)
    assert gone == 3
    assert widths(small) == {"0.branches.0.0": 3, "0.branches.1.0": 3, "1": 6, "4": 3}
    assert small.get_submodule("1").in_channels == 6


@pytest.mark.parametrize("silent", [("0.0",), ("1.0",), ("0.0", "1.0")])
def test_depthwise(silent: tuple[str, ...]) -> None:
    """A depthwise convolution leaves with what it reads: both must be silent."""
    model = nn.Sequential(conv(3, 4), conv(4, 4, groups=4), nn.Conv2d(4, 5, 1), POOL, nn.Linear(5, 3)).double()
    for name in silent:
        silence(model, name, 1)
    small, gone = stripped(model)
    assert gone == (len(silent) == 2)
    with torch.no_grad():
        model[2].weight[:, 3] = 0  # nobody reads the fourth
    small, more = stripped(model)
    assert more == gone + 1
    assert len(small.get_parameter("1.0.weight")) == small.get_submodule("1.0").groups == 4 - more


@pytest.mark.parametrize("padding", [0, 1])
@pytest.mark.parametrize("constant", [-0.5, 0.5])
def test_a_constant_in_front_of_padding_stays(padding: int, constant: float) -> None:
    layers = [nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 5, 3, padding=padding), nn.ReLU(), POOL]
    model = nn.Sequential(*layers, nn.Linear(5, 3)).double()
    silence(model, "0", 1)
    with torch.no_grad():
        model.get_parameter("0.bias")[1] = constant
    _, gone = stripped(model)
    assert gone == (padding == 0 or constant < 0)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("padding", [0, 1])
def test_batch_norms(bias: bool, padding: int) -> None:
    """A silent neuron's batch norm makes a constant of it, which the next one's running mean may take."""
    model = nn.Sequential(
        conv(3, 4, norm=True, bias=bias), nn.Conv2d(4, 5, 3, padding=padding, bias=False), nn.BatchNorm2d(5), nn.ReLU(),
        POOL, nn.Linear(5, 3),
    )  # fmt: skip
    randomize(model.double())
    norm: Any = model.get_submodule("0.1")
    silence(model, "0.0", 1)
    with torch.no_grad():
        norm.bias[1], norm.running_mean[1] = 1.0, 0.0
    assert stripped(model)[1] == (padding == 0)
    with torch.no_grad():
        norm.bias[1] = -9.0
    assert stripped(model)[1] == 1


def test_a_gate_that_depends_on_the_input_keeps_its_channels() -> None:
    model = nn.Sequential(conv(3, 4), Gate(4, 3, linear=True), POOL, nn.Linear(4, 3)).double()
    silence(model, "0.0", 1)
    with torch.no_grad():
        model.get_parameter("0.0.bias")[1] = 0.5  # times a number between 0 and 1
    assert stripped(model)[1] == 0
    silence(model, "1.up", 1)
    assert stripped(model)[1] == 1


def test_resnet20_loses_neurons_of_blocks_and_of_streams() -> None:
    model = randomize(resnet20())
    shape = (3, 32, 32)
    groups, _ = neurons(model, shape)
    for members in by_family(groups).values():
        for name, channel in members[0].outputs:
            silence(model, name, channel)
        for name, slot in members[1].inputs:
            with torch.no_grad():
                model.get_parameter(f"{name}.weight")[:, slot] = 0
    small, gone = stripped(model, shape, 1e-5)
    assert gone >= len(by_family(groups))  # those that nobody reads, at least
    assert small.get_submodule("fc" if hasattr(model, "fc") else "linear").in_features < 64


def test_the_double_is_left_alone_and_copies_are_own() -> None:
    model = linear_chain(192, 4, 3)
    groups, norms = neurons(model)
    same, left = strip(model, groups, norms, IMAGE)
    assert same is model
    assert left == groups
    twin = copy.deepcopy(model)
    silence(twin, "1", 0)
    small, left = strip(twin, groups, norms, IMAGE)
    assert small is not twin
    assert [group.number for group in left] == [1, 2, 3]
    assert [group.outputs for group in left] == [(("1", 0),), (("1", 1),), (("1", 2),)]
