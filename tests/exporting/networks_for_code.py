"""Networks whose Python comes down to unusual operators."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Slices(nn.Module):
    """Slices of all kinds, in place work on a view, a division by the batch's own size."""

    def forward(self, x: Tensor) -> Tensor:
        a = x[:, 1:3, ::2, -2:]
        b = x[..., :2].clone()
        b[:, 0] = 2.5
        b[:, 1].mul_(-1)
        return torch.cat([a.flatten(1), b.flatten(1), x.reshape(x.shape[0], -1)[:, :5] / 2], dim=1)


class Attention(nn.Module):
    """torch.nn's own attention, a layer norm, a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.norm = nn.LayerNorm(4)
        self.token = nn.Parameter(torch.randn(1, 1, 4))

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1)
        return self.norm(x + self.attention(x, x, x, need_weights=False)[0])[:, 0]


class Shared(nn.Module):
    """A layer that is called twice, a weight that two layers share, names that a module has already."""

    def __init__(self) -> None:
        super().__init__()
        self.twice = nn.Conv2d(4, 4, 3, padding=1)
        self.tied = nn.Conv2d(4, 4, 3, padding=1)
        self.tied.weight = self.twice.weight
        self.type_ = nn.Sequential(nn.Linear(144, 3), nn.Linear(3, 3))
        self.type__0 = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.elu(self.tied(self.twice(self.twice(x))))
        return self.type__0(self.type_(x.flatten(1)))


class Functional(nn.Module):
    """Functions with options: constants, infinities, shuffles, pooling with a remainder."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.tensor([True, False, True, False]))
        self.norm = nn.GroupNorm(2, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.channel_shuffle(F.gelu(self.norm(x), approximate="tanh"), 2)
        x = x.masked_fill(self.mask.view(1, -1, 1, 1), float("-inf")).clamp(min=-3.0)
        x = F.max_pool2d(F.leaky_relu(x, 0.2), 3, stride=2, padding=1, ceil_mode=True)
        x = F.interpolate(x, scale_factor=2.0, mode="nearest")
        left, right = x.chunk(2, dim=1)
        return (left * right.sigmoid() - right).var(dim=(2, 3))


ODD: dict[str, Callable[[], nn.Module]] = {
    "slices": Slices,
    "attention": Attention,
    "shared": Shared,
    "functional": Functional,
}
