"""Small networks to test with: random ones, and what is asked of them again and again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor, nn

from snncompress.data.batches import IterableBatches
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


def conv(inputs: int, width: int, norm: bool = False, groups: int = 1, bias: bool = True) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Conv2d(inputs, width, 3, padding=1, groups=groups, bias=bias)]
    return nn.Sequential(*layers, *([nn.BatchNorm2d(width)] if norm else []), nn.ReLU())


def randomize(model: nn.Module) -> nn.Module:
    """Batch norms as after training, in evaluation mode: fresh ones are too simple to test with."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            for tensor, low, high in (
                (module.weight, 0.5, 1.5), (module.bias, -0.5, 0.5),
                (module.running_mean, -0.3, 0.3), (module.running_var, 0.5, 1.5),
            ):  # fmt: skip
                if tensor is not None:
                    nn.init.uniform_(tensor, low, high)
    return model.eval()


@st.composite
def networks(draw: st.DrawFn) -> nn.Sequential:
    """Random chains of convolutions, residual blocks, concatenations, poolings, then of linear layers."""
    width = st.integers(2, 6)
    channels, side = IMAGE[:2]
    layers: list[nn.Module] = []
    for kind in draw(st.lists(st.sampled_from(["conv", "residual", "cat", "pool", "grouped", "dropout"]), max_size=5)):
        norm, new = draw(st.booleans()), draw(width)
        if kind == "conv":
            layers.append(conv(channels, new, norm, bias=draw(st.booleans())))
        elif kind == "residual":
            inner = nn.Sequential(conv(channels, new, norm), nn.Conv2d(new, channels, 3, padding=1))
            layers.append(Ways("add", nn.Identity(), inner))
            continue
        elif kind == "cat":
            other = draw(width)
            layers.append(Ways("cat", conv(channels, new, norm), conv(channels, other)))
            new += other
        elif kind == "grouped":
            layers.append(conv(channels, 2 * channels, norm, groups=channels))
            new = 2 * channels
        else:
            layers.append(nn.Dropout(0.3) if kind == "dropout" or side < 4 else nn.MaxPool2d(2))
            side = side if kind == "dropout" or side < 4 else side // 2
            continue
        channels = new
    if draw(st.booleans()):
        layers.append(nn.Flatten())
        channels *= side * side
    else:
        layers.append(Lambda(lambda x: x.mean((2, 3))))
    for new in draw(st.lists(width, max_size=3)):
        layers += [nn.Linear(channels, new), *([nn.BatchNorm1d(new)] if draw(st.booleans()) else []), nn.ReLU()]
        channels = new
    torch.manual_seed(draw(st.integers(0, 1000)))
    model = nn.Sequential(*layers, nn.Linear(channels, 4))
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            module.reset_parameters()
    return randomize(model.double())  # type: ignore[return-value]


def masked(model: nn.Module, groups: Sequence[Group], x: Tensor) -> Tensor:
    """The model's output when the layers that read these neurons get zero from them."""
    slots: dict[str, list[int]] = defaultdict(list)
    for group in groups:
        for name, slot in group.inputs:
            slots[name].append(slot)
    handles = []
    for name, zeroed in slots.items():
        module = model.get_submodule(name)
        dim = 1 if isinstance(module, nn.Conv2d) else -1

        def hook(module: nn.Module, args: Any, dim: int = dim, zeroed: list[int] = zeroed) -> Tensor:
            return args[0].index_fill(dim, torch.tensor(zeroed), 0.0)  # type: ignore[no-any-return]

        handles.append(module.register_forward_pre_hook(hook))
    with torch.no_grad():
        output: Tensor = model(x)
    for handle in handles:
        handle.remove()
    return output


def some_of(groups: Sequence[Group], choose: Callable[[], bool]) -> list[Group]:
    """A random choice that leaves every layer at least one neuron."""
    left: dict[str, int] = defaultdict(int)
    for group in groups:
        left[group.layer] += 1
    chosen = []
    for group in groups:
        if left[group.layer] > 1 and choose():
            left[group.layer] -= 1
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
