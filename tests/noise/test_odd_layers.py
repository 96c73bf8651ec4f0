"""Layers that do more than their type says are refused: a branch would leave that out."""

from __future__ import annotations

import pytest
import torch.nn.functional as F
from networks import IMAGE
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from snncompress.errors import UsageError
from snncompress.noise.attach import attach


class Standardized(nn.Conv2d):
    """Weight standardization."""

    def forward(self, x: Tensor) -> Tensor:
        return self._conv_forward(x, F.layer_norm(self.weight, self.weight.shape[1:]), self.bias)


def build(first: nn.Module) -> nn.Sequential:
    return nn.Sequential(first, nn.ReLU(), nn.Flatten(), nn.Linear(4 * 64, 5), nn.ReLU(), nn.Linear(5, 4))


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (weight_norm(nn.Conv2d(3, 4, 3, padding=1)), "layer 0 computes its weight"),
        (Standardized(3, 4, 3, padding=1), "layer 0 has a forward of its own"),
    ],
)
def test_an_odd_layer_is_refused_and_can_be_left_out(layer: nn.Module, message: str) -> None:
    model = build(layer)
    with pytest.raises(UsageError, match=message):
        attach(model, "sparse-vd", IMAGE)
    assert "forward" not in model[3].__dict__
    assert list(attach(model, "sparse-vd", IMAGE, layers=["3"]).branches) == ["3"]
