"""Networks under the knife to score: with each kind of noise, with a posterior, with batches of random images."""

from __future__ import annotations

import torch
from networks import IMAGE, randomize
from torch import Tensor, nn

from snncompress.data.batches import IterableBatches
from snncompress.noise.attach import attach
from snncompress.pruning.coupling import Group
from snncompress.pruning.subject import Subject
from snncompress.training.learner import Learner
from snncompress.training.options import TrainOptions


def some_batches(*sizes: int, dtype: torch.dtype = torch.float32) -> IterableBatches:
    pairs = [(torch.randn(size, *IMAGE, dtype=dtype), torch.randint(4, (size,))) for size in sizes]
    return IterableBatches(pairs, device=torch.device("cpu"))


def sampled(model: nn.Module) -> dict[str, Tensor]:
    """A posterior as Langevin dynamics leaves it."""
    found = {}
    for name, parameter in model.named_parameters():
        found |= {f"{name}.mean": parameter.detach().clone(), f"{name}.variance": torch.rand_like(parameter) + 0.01}
    return found


def make_subject(
    model: nn.Module, method: str | None = "se-snn", *, posterior: bool = False, layers: list[str] | None = None
) -> Subject:
    randomize(model)
    noise = None if method is None else attach(model, method, IMAGE, layers=layers)
    if noise is not None:
        for _, parameter in noise.named_parameters():
            parameter.data.add_(torch.randn_like(parameter), alpha=0.3)
        noise.detach()
    return Subject(Learner(model, None, TrainOptions()), noise, IMAGE, posterior=sampled(model) if posterior else None)


def of_layer(ranked: dict[Group, float], layer: str) -> list[float]:
    return [value for group, value in ranked.items() if group.outputs[0][0] == layer]


class Normed(nn.Module):
    """Every neuron has a batch norm behind it; those of the sum have two makers, one of them a shortcut."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.conv2, self.norm2 = nn.Conv2d(4, 5, 3, padding=1, bias=False), nn.BatchNorm2d(5)
        self.short, self.norm3 = nn.Conv2d(4, 5, 1), nn.BatchNorm2d(5)
        self.fc = nn.Linear(5, 4)
        self.relu = nn.ReLU(inplace)
        self.inplace = inplace

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.norm1(self.conv1(x)))
        y, z = self.norm2(self.conv2(x)), self.norm3(self.short(x))
        if self.inplace:
            y += z
        else:
            y = y + z
        return self.fc(self.relu(y).mean((2, 3)))  # type: ignore[no-any-return]
