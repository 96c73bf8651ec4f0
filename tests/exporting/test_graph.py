"""The graph that pt2 and Python files are made of: what is folded, and what is not."""

from __future__ import annotations

import copy

import pytest
import torch
from tiny import SHAPE, tiny_run
from torch import Tensor, nn

from snncompress.exporting.graph import aten, to_graph


def targets(model: nn.Module, shape: tuple[int, ...]) -> tuple[list[object], float]:
    """The operators of a model's graph, and the largest difference of its outputs from the model's."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.track_running_stats:
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
    model.eval()
    graph = to_graph(model, shape)
    images = torch.randn(5, *shape)
    with torch.no_grad():
        difference = float((graph(images) - model(images)).abs().max())
    return [node.target for node in graph.graph.nodes if node.op == "call_function"], difference


def test_batch_norms_are_folded_and_dropout_is_gone() -> None:
    model = tiny_run().model
    before = copy.deepcopy(model.state_dict())
    found, difference = targets(copy.deepcopy(model), SHAPE)
    assert aten.batch_norm.default not in found
    assert aten.dropout.default not in found
    assert difference < 1e-5
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    graph = to_graph(model, SHAPE)
    names = {name for name, _ in [*graph.named_parameters(), *graph.named_buffers()]}
    assert names == {f"{layer}.{leaf}" for layer in ("conv", "inner", "hidden", "head") for leaf in ("weight", "bias")}


def test_a_norm_without_scale_and_grouped_convolutions() -> None:
    layers = [
        nn.Conv2d(4, 8, 3, groups=2),
        nn.BatchNorm2d(8, affine=False),
        nn.Conv2d(8, 8, 3, padding="same"),
        nn.BatchNorm2d(8),
    ]
    found, difference = targets(nn.Sequential(*layers, nn.Flatten(), nn.Linear(288, 3)), (4, 8, 8))
    assert aten.batch_norm.default not in found
    assert difference < 1e-5


class Twice(nn.Module):
    """A convolution that two batch norms follow in turn."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.first, self.second = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), nn.BatchNorm2d(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.conv(self.first(self.conv(x)))).mean((2, 3))


class Seen(nn.Module):
    """A convolution whose output somebody else reads, too."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        return (self.norm(x) + x).mean((2, 3))


class Tokens(nn.Module):
    """A batch norm over another dimension than the linear layer's."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(8, 6), nn.BatchNorm1d(24)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.linear(x.flatten(1, 2))).mean(2)


@pytest.mark.parametrize(
    ("model", "left"),
    [
        (Twice(), 2),
        (Seen(), 1),
        (Tokens(), 1),
        (nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 2, 1), nn.Flatten()), 1),
        (nn.Sequential(nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2, track_running_stats=False), nn.Flatten()), 1),
    ],
)
def test_what_is_not_exact_is_not_folded(model: nn.Module, left: int) -> None:
    found, difference = targets(model, (3, 8, 8))
    assert found.count(aten.batch_norm.default) == left
    assert difference < 1e-5
