"""Channel graphs against ones drawn by hand: who makes which channel, who reads it, who leaves with whom."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from functools import partial

import pytest
import torch
from drawing import channels, coupled, reading, traced
from networks import IMAGE, Gate, Halves, Lambda, Shuffle, Small, Twice, Ways, conv
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from snncompress.errors import ModelError
from snncompress.models.channels import ChannelGraph, trace_channels
from snncompress.models.identities import FIXED
from snncompress.models.padding import ChannelPad
from snncompress.models.resnet import resnet20, resnet110
from snncompress.models.wide_resnet import wrn16_2
from snncompress.vision import torchvision

one_by_one = partial(nn.Conv2d, kernel_size=1)


def removable(graph: ChannelGraph) -> set[str]:
    """The layers that have removable channels; all of a layer's are, or none."""
    free = {name for name, layer in graph.layers.items() if bool((layer.made != FIXED).any())}
    assert all(bool((graph.layers[name].made != FIXED).all()) for name in free)
    return free


def following(graph: ChannelGraph) -> dict[str, str]:
    return {name: layer.norm for name, layer in graph.layers.items() if layer.norm is not None}


def test_chain() -> None:
    graph = trace_channels(Small(), IMAGE)
    assert list(graph.layers) == ["conv1", "conv2", "fc1", "fc2"]
    assert reading(graph) == {
        "conv1": [None] * 3,
        "conv2": channels("conv1", 0, 1, 2, 3),
        "fc1": channels("conv2", 0, 1, 2, 3, 4, times=16),
        "fc2": channels("fc1", *range(6)),
    }
    assert all(len(makers) == 1 for makers in coupled(graph))
    assert removable(graph) == {"conv1", "conv2", "fc1"}
    assert following(graph) == {"conv1": "norm1"}  # norm2 comes after the ReLU: it does not follow conv2
    assert torch.equal(graph.norms["norm2"], graph.layers["conv2"].made)  # but the channels pass through it
    assert graph.classifiers == {"fc2"}


def test_terms_of_a_sum_leave_together() -> None:
    inner = nn.Sequential(conv(2, 3), one_by_one(3, 2), nn.BatchNorm2d(2))
    graph = traced(conv(3, 2), Ways("add", nn.Identity(), inner), nn.Conv2d(2, 4, 8))
    pairs = [[("0.0", channel), ("1.branches.1.1", channel)] for channel in range(2)]
    assert coupled(graph) == [*pairs, *([("1.branches.1.0.0", channel)] for channel in range(3))]
    assert reading(graph)["1.branches.1.1"] == channels("1.branches.1.0.0", *range(3))
    assert reading(graph)["1.branches.1.0.0"] == reading(graph)["2"] == channels("0.0", 0, 1)
    assert torch.equal(graph.norms["1.branches.1.2"], graph.layers["0.0"].made)
    assert following(graph) == {"1.branches.1.1": "1.branches.1.2"}


@pytest.mark.parametrize("before", [nn.Identity(), nn.ReLU(), nn.BatchNorm2d(3), ChannelPad(1, 0, 0)])
def test_a_sum_with_the_image_stays(before: nn.Module) -> None:
    graph = traced(Ways("add", before, one_by_one(3, 3)), nn.Conv2d(3, 4, 8))
    assert coupled(graph) == []


def test_padding_with_channels() -> None:
    inner = one_by_one(2, 5)
    graph = traced(one_by_one(3, 2), Ways("add", ChannelPad(1, 1, 2), inner), nn.Conv2d(5, 4, 8))
    assert coupled(graph) == [
        [("0", 0), ("1.branches.1", 1)], [("0", 1), ("1.branches.1", 2)],
        [("1.branches.1", 0)], [("1.branches.1", 3)], [("1.branches.1", 4)],
    ]  # fmt: skip
    assert torch.equal(graph.pads["1.branches.0"], graph.layers["1.branches.1"].made[[0, 3, 4]])


@pytest.mark.parametrize("linear", [True, False])
def test_a_gate_leaves_with_what_it_scales(linear: bool) -> None:
    graph = traced(one_by_one(3, 3), Gate(3, 2, linear), nn.Conv2d(3, 4, 8))
    assert coupled(graph) == [*([("0", i), ("1.up", i)] for i in range(3)), [("1.down", 0)], [("1.down", 1)]]
    assert reading(graph)["1.down"] == reading(graph)["2"] == channels("0", 0, 1, 2)


@pytest.mark.parametrize("operation", [torch.mul, torch.add, torch.maximum])
def test_a_spatial_gate_stays_alone(operation: Callable[[Tensor, Tensor], Tensor]) -> None:

    both = Ways("cat", one_by_one(3, 1), one_by_one(3, 3))
    graph = traced(both, Lambda(lambda x: operation(x[:, :1], x[:, 1:])), nn.Conv2d(3, 4, 8))
    assert coupled(graph) == [[("0.branches.1", channel)] for channel in range(3)]
    assert reading(graph)["2"] == channels("0.branches.1", 0, 1, 2)


def test_concatenation() -> None:
    graph = traced(Ways("cat", one_by_one(3, 2), nn.Identity(), one_by_one(3, 1)), nn.Conv2d(6, 4, 8))
    expected = [*channels("0.branches.0", 0, 1), None, None, None, *channels("0.branches.2", 0)]
    assert reading(graph)["1"] == expected
    assert graph.classifiers == {"1"}


def test_one_above_the_other() -> None:
    """Concatenated along the height, a channel of the one is in one channel with that of the other."""
    both = Ways("add", one_by_one(3, 2), one_by_one(3, 2))
    both.forward = lambda x: torch.cat([branch(x) for branch in both.branches], 2)  # type: ignore[method-assign]
    graph = traced(both, nn.Conv2d(2, 4, (16, 8)))
    assert coupled(graph) == [[("0.branches.0", i), ("0.branches.1", i)] for i in range(2)]


def test_rows_that_are_read_as_channels() -> None:
    graph = traced(one_by_one(3, 2), Lambda(lambda x: x.transpose(1, 2)), nn.Conv2d(8, 4, (2, 8)))
    assert coupled(graph) == [[("0", 0), ("0", 1)]]


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_whole_groups_leave_a_grouped_convolution(groups: int) -> None:
    graph = traced(conv(3, 4), conv(4, 8, groups=groups), nn.Conv2d(8, 4, 8))
    ins, outs = 4 // groups, 8 // groups
    expected = [
        [*(("0.0", ins * g + i) for i in range(ins)), *(("1.0", outs * g + i) for i in range(outs))]
        for g in range(groups)
    ]
    alone = [[(name, i)] for name, width in (("0.0", 4), ("1.0", 8)) for i in range(width)]
    assert coupled(graph) == (expected if groups > 1 else alone)
    assert len(graph.layers["1.0"].read) == 4
    assert torch.equal(graph.layers["1.0"].read, graph.layers["0.0"].made)


def test_a_residual_around_a_grouped_convolution() -> None:
    inner = nn.Conv2d(4, 4, 3, padding=1, groups=2)
    graph = traced(conv(3, 4), Ways("add", nn.Identity(), inner), nn.Conv2d(4, 4, 8))
    assert coupled(graph) == [
        [("0.0", 0), ("0.0", 1), ("1.branches.1", 0), ("1.branches.1", 1)],
        [("0.0", 2), ("0.0", 3), ("1.branches.1", 2), ("1.branches.1", 3)],
    ]


def test_groups_of_the_image_stay() -> None:
    assert coupled(traced(nn.Conv2d(3, 6, 1, groups=3), nn.Conv2d(6, 4, 8))) == []


def test_chunks_of_equal_size_lose_the_same_places() -> None:
    graph = traced(one_by_one(3, 4), Halves(one_by_one(2, 2)), nn.Conv2d(4, 4, 8))
    assert coupled(graph) == [[("0", 0), ("0", 2)], [("0", 1), ("0", 3)], [("1.inner", 0)], [("1.inner", 1)]]
    assert reading(graph)["2"] == [*channels("0", 0, 1), *channels("1.inner", 0, 1)]


def test_gated_linear_unit() -> None:
    def glu(x: Tensor) -> Tensor:
        a, b = x.chunk(2, 1)
        return a * b.sigmoid()

    graph = traced(one_by_one(3, 4), Lambda(glu), nn.Conv2d(2, 4, 8))
    assert coupled(graph) == [[("0", 0), ("0", 2)], [("0", 1), ("0", 3)]]
    assert reading(graph)["2"] == channels("0", 0, 1)


@pytest.mark.parametrize("groups", [2, 3])
def test_all_groups_of_a_shuffle_lose_the_same_places(groups: int) -> None:
    graph = traced(one_by_one(3, 6), Shuffle(groups), nn.Conv2d(6, 4, 8))
    places = 6 // groups
    assert coupled(graph) == [[("0", places * g + i) for g in range(groups)] for i in range(places)]
    order = torch.arange(6).view(groups, places).T.flatten()
    assert torch.equal(graph.layers["2"].read, graph.layers["0"].made[order])


def test_a_split_in_three_parts() -> None:
    twice = Lambda(lambda x: x.view(len(x), 2, 2, 3, 8, 8).permute(0, 2, 3, 1, 4, 5).flatten(1, 3))
    graph = traced(one_by_one(3, 12), twice, nn.Conv2d(12, 4, 8))
    assert coupled(graph) == [[("0", place + i) for place in (0, 3, 6, 9)] for i in range(3)]


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_group_norm_loses_whole_groups(groups: int) -> None:
    graph = traced(one_by_one(3, 4), nn.GroupNorm(groups, 4), nn.ReLU(), nn.Conv2d(4, 4, 8))
    places = 4 // groups
    assert coupled(graph) == [[("0", places * g + i) for i in range(places)] for g in range(groups)]
    assert torch.equal(graph.norms["1"], graph.layers["0"].made)
    assert following(graph) == {}  # noise after it would be another network's


def test_what_a_layer_norm_reads_stays() -> None:
    tokens = Lambda(lambda x: x.flatten(2).transpose(1, 2))  # (batch, 64, channels)
    mlp = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 5), nn.GELU(), nn.Linear(5, 4))
    graph = traced(one_by_one(3, 4), tokens, Ways("add", nn.Identity(), mlp), nn.Flatten(), nn.Linear(256, 4))
    assert coupled(graph) == [[("2.branches.1.1", channel)] for channel in range(5)]
    assert reading(graph)["2.branches.1.3"] == channels("2.branches.1.1", *range(5))


def test_channels_with_a_number_of_their_own_stay() -> None:
    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gamma = nn.Parameter(torch.ones(1, 4, 1, 1))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.gamma

    graph = traced(one_by_one(3, 4), one_by_one(4, 4), Scale(), nn.Conv2d(4, 4, 8))
    assert removable(graph) == {"0"}


def test_what_a_layer_reads_twice_leaves_both_times() -> None:
    graph = traced(one_by_one(3, 2), Twice(one_by_one(2, 2)), nn.Conv2d(2, 4, 8))
    assert coupled(graph) == [[("0", 0), ("1.inner", 0)], [("0", 1), ("1.inner", 1)]]
    shared = one_by_one(3, 3)  # what it reads the first time stays, and so does what it reads then
    assert coupled(traced(shared, nn.ReLU(), shared, nn.Conv2d(3, 4, 8))) == []


def test_a_shared_norm_couples_what_it_reads_and_follows_neither() -> None:
    norm = nn.BatchNorm2d(4)
    graph = traced(one_by_one(3, 4), norm, one_by_one(4, 4), norm, nn.Conv2d(4, 2, 8))
    assert coupled(graph) == [[("0", channel), ("2", channel)] for channel in range(4)]
    assert torch.equal(graph.norms["1"], graph.layers["0"].made)
    assert following(graph) == {}


def test_a_norm_after_one_of_two_calls_does_not_follow() -> None:
    shared = one_by_one(3, 3)
    assert following(traced(shared, nn.ReLU(), shared, nn.BatchNorm2d(3), nn.Conv2d(3, 2, 8))) == {}


def test_a_layer_that_is_read_elsewhere_too_has_no_following_norm() -> None:
    both = Ways("cat", nn.BatchNorm2d(4), nn.Identity())
    graph = traced(one_by_one(3, 4), both, nn.Conv2d(8, 2, 8))
    assert following(graph) == {}
    assert reading(graph)["2"] == channels("0", 0, 1, 2, 3) * 2


def test_tied_and_computed_weights_are_fixed() -> None:
    tied = nn.Sequential(one_by_one(3, 3), nn.ReLU(), one_by_one(3, 3), nn.ReLU(), nn.Conv2d(3, 2, 8))
    tied[2].weight = tied[0].weight
    assert removable(trace_channels(tied, IMAGE)) == set()
    normed = parametrizations.weight_norm(one_by_one(4, 4))
    assert removable(traced(one_by_one(3, 4), normed, nn.Conv2d(4, 2, 8))) == set()


@pytest.mark.parametrize("last", [nn.LogSoftmax(1), nn.Softmax(1), nn.Sigmoid(), nn.Identity()])
def test_what_comes_after_the_classifier(last: nn.Module) -> None:
    graph = traced(nn.Flatten(), nn.Linear(192, 5), nn.ReLU(), nn.Linear(5, 4), last)
    assert graph.classifiers == {"3"}
    assert removable(graph) == {"1"}


def test_pre_activation_network() -> None:
    graph = trace_channels(wrn16_2(), (3, 32, 32))
    blocks = [f"block{stage}.layer.{block}" for stage in (1, 2, 3) for block in (0, 1)]
    # Of the norms that come before a convolution only the first follows a layer; the others read sums.
    assert following(graph) == {f"{b}.conv1": f"{b}.bn2" for b in blocks} | {"conv1": "block1.layer.0.bn1"}
    assert removable(graph) == graph.layers.keys() - {"fc"}
    assert reading(graph)["block1.layer.0.convShortcut"] == channels("conv1", *range(16))
    stage = ["0.conv2", "0.convShortcut", "1.conv2"]
    assert [(f"block2.layer.{name}", 5) for name in stage] in [sorted(names) for names in coupled(graph)]


def test_residual_network_by_hand() -> None:
    graph = trace_channels(torchvision.models.resnet18(weights=None), (3, 64, 64))
    inner = [f"layer{stage}.{block}.conv1" for stage in (1, 2, 3, 4) for block in (0, 1)]
    sums = [["conv1", "layer1.0.conv2", "layer1.1.conv2"]]
    sums += [[f"layer{stage}.{name}" for name in ("0.conv2", "0.downsample.0", "1.conv2")] for stage in (2, 3, 4)]
    found = {frozenset(name for name, _ in names) for names in coupled(graph)}
    assert found == {frozenset(names) for names in [*sums, *([name] for name in inner)]}
    assert all(len({channel for _, channel in names}) == 1 for names in coupled(graph))
    assert following(graph)["layer2.0.downsample.0"] == "layer2.0.downsample.1"
    assert reading(graph)["fc"] == channels("layer4.0.conv2", *range(512))


@pytest.mark.parametrize("name", ["resnet18", "densenet121", "mobilenet_v3_small", "squeezenet1_1"])
def test_tracing_touches_nothing(name: str) -> None:
    model = getattr(torchvision.models, name)(weights=None).train()
    next(model.children()).eval()  # a mixed mode
    modes = {key: module.training for key, module in model.named_modules()}
    before, random = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    graph = trace_channels(model, (3, 64, 64))
    assert modes == {key: module.training for key, module in model.named_modules()}
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert torch.equal(random, torch.get_rng_state())
    layers = [key for key, module in model.named_modules() if isinstance(module, nn.Conv2d | nn.Linear)]
    assert set(graph.layers) == set(layers)
    assert len(graph.classifiers) == 1


def test_time_grows_with_the_depth_and_not_faster() -> None:
    def seconds(model: nn.Module) -> float:
        start = time.process_time()
        trace_channels(model, (3, 16, 16))
        return time.process_time() - start

    shallow, deep = resnet20(image_shape=(3, 16, 16)), resnet110(image_shape=(3, 16, 16))
    seconds(shallow)  # warms up
    assert seconds(deep) < 3 * 110 / 20 * max(seconds(shallow), seconds(shallow))


def test_wrong_images() -> None:
    with pytest.raises(ModelError, match=r"cannot run on images of 1×8×8: .*channels") as caught:
        trace_channels(Small(), (1, 8, 8))
    assert "\n" not in str(caught.value)
