"""Small networks to test with: random ones, and what is asked of them again and again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor, nn

from snncompress.data.batches import IterableBatches
from snncompress.models.padding import ChannelPad
from snncompress.pruning import masking
from snncompress.pruning.coupling import Group

IMAGE = (3, 8, 8)


class Ways(nn.Module):
    """Runs branches on the same input and joins them by addition or concatenation."""

    def __init__(self, join: str, *branches: nn.Module) -> None:
        super().__init__()
        self.join = join
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        outputs = [branch(x) for branch in self.branches]
        return torch.cat(outputs, 1) if self.join == "cat" else sum(outputs[1:], outputs[0])


class Lambda(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Tensor) -> Any:
        return self.function(*args)


class Gate(nn.Module):
    """Squeeze and excitation: scales channels by numbers between 0 and 1, made of their means."""

    def __init__(self, channels: int, squeezed: int, linear: bool) -> None:
        super().__init__()
        self.linear = linear
        self.down = nn.Linear(channels, squeezed) if linear else nn.Conv2d(channels, squeezed, 1)
        self.up = nn.Linear(squeezed, channels) if linear else nn.Conv2d(squeezed, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        squeezed = x.mean((2, 3)) if self.linear else F.adaptive_avg_pool2d(x, 1)
        scale = self.up(F.relu(self.down(squeezed))).sigmoid()
        return x * (scale[:, :, None, None] if self.linear else scale)


class Shuffle(nn.Module):
    """Channels (groups, channels a group), transposed."""

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.groups = groups

    def forward(self, x: Tensor) -> Tensor:
        batch, channels, height, width = x.shape
        x = x.view(batch, self.groups, channels // self.groups, height, width)
        return x.transpose(1, 2).reshape(batch, channels, height, width)


class Halves(nn.Module):
    """A module for the one half of the channels; the other goes past it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        one, other = x.chunk(2, 1)
        return torch.cat([other, self.inner(one)], 1)


class Twice(nn.Module):
    """A layer that is called twice."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(F.relu(self.inner(x)))  # type: ignore[no-any-return]


def conv(inputs: int, width: int, norm: bool = False, groups: int = 1, bias: bool = True) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Conv2d(inputs, width, 3, padding=1, groups=groups, bias=bias)]
    return nn.Sequential(*layers, *([nn.BatchNorm2d(width)] if norm else []), nn.ReLU())


def randomize(model: nn.Module) -> nn.Module:
    """Norms as after training, in evaluation mode: fresh ones are too simple to test with."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d | nn.GroupNorm):
            for leaf, low, high in (
                ("weight", 0.5, 1.5), ("bias", -0.5, 0.5), ("running_mean", -0.3, 0.3), ("running_var", 0.5, 1.5),
            ):  # fmt: skip
                if (tensor := getattr(module, leaf, None)) is not None:
                    nn.init.uniform_(tensor, low, high)
    return model.eval()


WIDTHS = st.integers(2, 6)
BLOCKS = (
    "conv", "grouped", "residual", "shortcut", "padded", "cat", "gate", "group norm", "shuffle", "halves", "twice",
    "pool", "dropout",
)  # fmt: skip


def divisors(number: int) -> list[int]:
    """All but 1."""
    return [d for d in range(2, number + 1) if number % d == 0]


def _convolution(draw: st.DrawFn, channels: int, width: int) -> nn.Sequential:
    """With a batch norm before the ReLU, after it, or without one."""
    norm = draw(st.sampled_from(["none", "before", "after"]))
    layers = conv(channels, width, norm == "before", bias=draw(st.booleans()))
    return layers.append(nn.BatchNorm2d(width)) if norm == "after" else layers


def _grouped(draw: st.DrawFn, channels: int) -> nn.Module:
    """A grouped convolution, often a depthwise one, or a residual block of one."""
    groups = draw(st.sampled_from([*divisors(channels), channels]))
    residual = draw(st.booleans())
    layers = conv(channels, channels if residual else draw(st.integers(1, 2)) * channels, draw(st.booleans()), groups)
    return Ways("add", nn.Identity(), layers[:-1]) if residual else layers


def _block(draw: st.DrawFn, kind: str, channels: int, side: int) -> nn.Module:
    """One of ``BLOCKS``; what does not fit the number of channels or pixels is a ReLU."""
    if kind == "conv":
        return _convolution(draw, channels, draw(WIDTHS))
    if kind == "grouped":
        return _grouped(draw, channels)
    if kind == "residual":
        inner = _convolution(draw, channels, width := draw(WIDTHS)).append(nn.Conv2d(width, channels, 3, padding=1))
        return Ways("add", nn.Identity(), inner)
    if kind == "shortcut":
        inner = _convolution(draw, channels, width := draw(WIDTHS))
        return Ways("add", nn.Conv2d(channels, width, 1, bias=draw(st.booleans())), inner)
    if kind == "padded":
        before, after, stride = draw(st.integers(0, 2)), draw(st.integers(0, 2)), 2 if side >= 4 else 1
        inner = nn.Conv2d(channels, before + channels + after, 3, stride=stride, padding=1)
        return Ways("add", ChannelPad(stride, before, after), inner)
    if kind == "cat":
        return Ways("cat", *(_convolution(draw, channels, draw(WIDTHS)) for _ in range(2)))
    if kind == "gate":
        return Gate(channels, draw(WIDTHS), draw(st.booleans()))
    if kind == "group norm":
        return nn.GroupNorm(draw(st.sampled_from([1, *divisors(channels)])), channels)
    if kind == "shuffle" and len(divisors(channels)) > 1:  # of single channels it could lose none
        return Shuffle(draw(st.sampled_from(divisors(channels)[:-1])))
    if kind == "halves" and channels % 2 == 0:
        return Halves(_convolution(draw, channels // 2, channels // 2))
    if kind == "twice":
        return Twice(nn.Conv2d(channels, channels, 3, padding=1))
    if kind == "pool" and side >= 4:
        return draw(st.sampled_from([nn.MaxPool2d(2), nn.AvgPool2d(2)]))
    return nn.Dropout(0.3) if kind == "dropout" else nn.ReLU()


@st.composite
def networks(draw: st.DrawFn) -> nn.Sequential:
    """Random chains of ``BLOCKS``, then of linear layers, in evaluation mode and double precision."""
    layers: list[nn.Module] = []
    channels, side = IMAGE[:2]
    for kind in draw(st.lists(st.sampled_from(BLOCKS), max_size=6)):
        layers.append(_block(draw, kind, channels, side))
        with torch.no_grad():
            _, channels, side, _ = layers[-1].eval()(torch.zeros(1, channels, side, side)).shape
    if draw(st.booleans()):
        layers.append(nn.Flatten())
        channels *= side * side
    else:
        layers.append(Lambda(lambda x: x.mean((2, 3))))
    for width in draw(st.lists(WIDTHS, max_size=2)):
        layers += [nn.Linear(channels, width), *([nn.BatchNorm1d(width)] if draw(st.booleans()) else []), nn.ReLU()]
        channels = width
    torch.manual_seed(draw(st.integers(0, 1000)))
    model = nn.Sequential(*layers, nn.Linear(channels, 4))
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            module.reset_parameters()
    return randomize(model.double())  # type: ignore[return-value]


def masked(model: nn.Module, groups: Sequence[Group], x: Tensor) -> Tensor:
    """The model's output when the layers that read these neurons get zero from them."""
    with torch.no_grad(), masking.masked(model, groups):
        output: Tensor = model(x)
    return output


def some_of(groups: Sequence[Group], choose: Callable[[], bool], least: int = 1) -> list[Group]:
    """A random choice that leaves every family at least one neuron, or more."""
    left = Counter(group.family for group in groups)
    chosen = []
    for group in groups:
        if left[group.family] > least and choose():
            left[group.family] -= 1
            chosen.append(group)
    return chosen


def close(a: Tensor, b: Tensor, tolerance: float = 1e-10) -> bool:
    """Whether tensors are equal, relative to the largest element."""
    a, b = a.detach(), b.detach()
    return a.shape == b.shape and float((a - b).abs().max()) <= tolerance * max(float(b.abs().max()), 1e-3)


def batches_of(*inputs: Tensor) -> IterableBatches:
    """Batches with labels that nobody looks at."""
    labels = [torch.zeros(len(x), dtype=torch.long) for x in inputs]
    return IterableBatches(list(zip(inputs, labels, strict=True)), device=torch.device("cpu"))


class Small(nn.Module):
    """One of everything that noise cares about: a norm that follows, one before, a chain, a functional end."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 4, 3, padding=1)
        self.norm1 = nn.BatchNorm2d(4)
        self.conv2 = nn.Conv2d(4, 5, 3, stride=2, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(5)
        self.fc1 = nn.Linear(5 * 16, 6)
        self.fc2 = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm1(self.conv1(x)))
        x = self.norm2(F.relu(self.conv2(x))).flatten(1)
        return self.fc2(F.relu(self.fc1(x)))  # type: ignore[no-any-return]
