"""Channel graphs against ones drawn by hand: who makes which channel, who reads it, which norm follows."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from networks import IMAGE, Lambda, Small, Ways, conv
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from snncompress.errors import ModelError
from snncompress.models.channels import FIXED, ChannelGraph, trace_channels
from snncompress.models.resnet import resnet20, resnet110
from snncompress.models.wide_resnet import wrn16_2
from snncompress.vision import torchvision


def reading(graph: ChannelGraph) -> dict[str, list[tuple[str, int] | None]]:
    """What every input of every layer reads, as (layer, channel); None where that is fixed."""
    source = {
        identity: (name, channel)
        for name, layer in graph.layers.items()
        for channel, identity in enumerate(layer.made.tolist())
        if identity != FIXED
    }
    return {name: [source.get(i) for i in layer.read.tolist()] for name, layer in graph.layers.items()}


def removable(graph: ChannelGraph) -> set[str]:
    """The layers that have removable channels; all of a layer's are, or none."""
    free = {name for name, layer in graph.layers.items() if bool((layer.made != FIXED).any())}
    assert all(bool((graph.layers[name].made != FIXED).all()) for name in free)
    return free


def following(graph: ChannelGraph) -> dict[str, str]:
    return {name: layer.norm for name, layer in graph.layers.items() if layer.norm is not None}


def channels(layer: str, *numbers: int, times: int = 1) -> list[tuple[str, int] | None]:
    return [(layer, number) for number in numbers for _ in range(times)]


def test_chain() -> None:
    graph = trace_channels(Small(), IMAGE)
    assert list(graph.layers) == ["conv1", "conv2", "fc1", "fc2"]
    assert reading(graph) == {
        "conv1": [None] * 3,
        "conv2": channels("conv1", 0, 1, 2, 3),
        "fc1": channels("conv2", 0, 1, 2, 3, 4, times=16),
        "fc2": channels("fc1", *range(6)),
    }
    assert removable(graph) == {"conv1", "conv2", "fc1"}
    assert following(graph) == {"conv1": "norm1"}  # norm2 comes after the ReLU: it does not follow conv2
    assert torch.equal(graph.norms["norm2"], graph.layers["conv2"].made)  # but the channels pass through it
    assert graph.classifiers == {"fc2"}


def flat(function: Callable[[Tensor], Tensor], width: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 2, 3, padding=1), Lambda(function), nn.Linear(width, 4))


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: F.relu(x).view(x.size(0), -1), channels("0", 0, 1, times=64)),
        (lambda x: x.permute(0, 2, 3, 1).reshape(len(x), -1), channels("0", 0, 1) * 64),
        (lambda x: x.mean((-1, -2)), channels("0", 0, 1)),
        (lambda x: F.adaptive_avg_pool2d(x, 1).squeeze(), channels("0", 0, 1)),
        (lambda x: F.dropout(F.max_pool2d(x, 4), 0.5, False).flatten(1), channels("0", 0, 1, times=4)),
        (lambda x: torch.cat([x.mean((2, 3)), x.amin((2, 3))], 1), [None] * 4),  # amin is not known
        (lambda x: F.relu_(x * 2 + 1).mean((2, 3)), channels("0", 0, 1)),
        (lambda x: (x * torch.ones(2, 1, 1)).mean((2, 3)), [None] * 2),  # a number for each channel
        (lambda x: x.clamp(max=torch.ones(2, 1, 1)).mean((2, 3)), [None] * 2),
        (lambda x: F.layer_norm(x, x.shape[1:]).mean((2, 3)), [None] * 2),
        (lambda x: x.mean((1, 2)), [None] * 8),  # over channels
        (lambda x: x.view(len(x), 4, 32).mean(2), [None] * 4),  # no channel of its own any more
    ],
)  # fmt: skip
def test_between_two_layers(function: Callable[[Tensor], Tensor], expected: list[tuple[str, int] | None]) -> None:
    graph = trace_channels(flat(function, len(expected)), IMAGE)
    assert reading(graph)["2"] == expected
    assert removable(graph) == ({"0"} if None not in expected else set())


def test_a_sum_fixes_its_terms() -> None:
    inner = nn.Sequential(conv(4, 6), nn.Conv2d(6, 4, 3, padding=1), nn.BatchNorm2d(4))
    model = nn.Sequential(conv(3, 4), Ways("add", nn.Identity(), inner), nn.Flatten(), nn.Linear(256, 4))
    graph = trace_channels(model, IMAGE)
    assert removable(graph) == {"1.branches.1.0.0"}
    assert reading(graph)["1.branches.1.1"] == channels("1.branches.1.0.0", *range(6))
    assert following(graph) == {"1.branches.1.1": "1.branches.1.2"}


def test_concatenation() -> None:
    model = nn.Sequential(Ways("cat", nn.Conv2d(3, 2, 1), nn.Identity(), nn.Conv2d(3, 1, 1)), nn.Conv2d(6, 4, 8))
    graph = trace_channels(model, IMAGE)
    expected = [*channels("0.branches.0", 0, 1), None, None, None, *channels("0.branches.2", 0)]
    assert reading(graph)["1"] == expected
    assert graph.classifiers == {"1"}


@pytest.mark.parametrize("groups", [2, 4])
def test_groups_are_fixed(groups: int) -> None:
    graph = trace_channels(nn.Sequential(conv(3, 4), conv(4, 8, groups=groups), nn.Conv2d(8, 4, 8)), IMAGE)
    assert removable(graph) == set()
    assert len(graph.layers["1.0"].read) == 4


def test_a_shared_layer_is_fixed_with_all_it_reads() -> None:
    first, shared = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1)
    model = nn.Sequential(first, shared, nn.ReLU(), shared, nn.Conv2d(4, 2, 8))
    assert removable(trace_channels(model, IMAGE)) == set()


def test_a_shared_norm_fixes_both_its_inputs() -> None:
    norm = nn.BatchNorm2d(4)
    model = nn.Sequential(nn.Conv2d(3, 4, 1), norm, nn.Conv2d(4, 4, 1), norm, nn.Conv2d(4, 2, 8))
    graph = trace_channels(model, IMAGE)
    assert removable(graph) == set()
    assert following(graph) == {}


def test_a_norm_after_one_of_two_calls_does_not_follow() -> None:
    shared = nn.Conv2d(3, 3, 1)
    model = nn.Sequential(shared, nn.ReLU(), shared, nn.BatchNorm2d(3), nn.Conv2d(3, 2, 8))
    assert following(trace_channels(model, IMAGE)) == {}


def test_a_layer_that_is_read_elsewhere_too_has_no_following_norm() -> None:
    both = Ways("cat", nn.BatchNorm2d(4), nn.Identity())
    graph = trace_channels(nn.Sequential(nn.Conv2d(3, 4, 1), both, nn.Conv2d(8, 2, 8)), IMAGE)
    assert following(graph) == {}
    assert reading(graph)["2"] == channels("0", 0, 1, 2, 3) * 2


def test_tied_and_computed_weights_are_fixed() -> None:
    tied = nn.Sequential(nn.Conv2d(3, 3, 1), nn.ReLU(), nn.Conv2d(3, 3, 1), nn.ReLU(), nn.Conv2d(3, 2, 8))
    tied[2].weight = tied[0].weight
    assert removable(trace_channels(tied, IMAGE)) == set()
    normed = nn.Sequential(nn.Conv2d(3, 4, 1), parametrizations.weight_norm(nn.Conv2d(4, 4, 1)), nn.Conv2d(4, 2, 8))
    assert removable(trace_channels(normed, IMAGE)) == set()


@pytest.mark.parametrize("last", [nn.LogSoftmax(1), nn.Softmax(1), nn.Sigmoid(), nn.Identity()])
def test_what_comes_after_the_classifier(last: nn.Module) -> None:
    graph = trace_channels(nn.Sequential(nn.Flatten(), nn.Linear(192, 5), nn.ReLU(), nn.Linear(5, 4), last), IMAGE)
    assert graph.classifiers == {"3"}
    assert removable(graph) == {"1"}


def test_pre_activation_network() -> None:
    graph = trace_channels(wrn16_2(), (3, 32, 32))
    blocks = [f"block{stage}.layer.{block}" for stage in (1, 2, 3) for block in (0, 1)]
    # Of the norms that come before a convolution only the first follows a layer; the others read sums.
    norms = {f"{block}.conv1": f"{block}.bn2" for block in blocks} | {"conv1": "block1.layer.0.bn1"}
    assert following(graph) == norms
    assert removable(graph) == set(norms)
    assert reading(graph)["block1.layer.0.convShortcut"] == channels("conv1", *range(16))


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


def test_residual_network_by_hand() -> None:
    graph = trace_channels(torchvision.models.resnet18(weights=None), (3, 64, 64))
    blocks = [f"layer{stage}.{block}" for stage in (1, 2, 3, 4) for block in (0, 1)]
    assert removable(graph) == {f"{block}.conv1" for block in blocks}
    assert all(reading(graph)[f"{block}.conv2"][0] == (f"{block}.conv1", 0) for block in blocks)
    assert following(graph)["layer2.0.downsample.0"] == "layer2.0.downsample.1"


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
