"""Padding with channels of zeros, as a module that compaction can shrink."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class ChannelPad(nn.Module):
    """Every ``stride``-th pixel, between ``pad_before`` and ``pad_after`` channels of zeros."""

    shape_attributes = ("pad_before", "pad_after")

    def __init__(self, stride: int, pad_before: int, pad_after: int) -> None:
        super().__init__()
        self.stride = stride
        self.pad_before = pad_before
        self.pad_after = pad_after

    def forward(self, x: Tensor) -> Tensor:
        """(batch, C, H, W) → (batch, pad_before + C + pad_after, ⌈H / stride⌉, ⌈W / stride⌉)."""
        x = x[:, :, :: self.stride, :: self.stride]
        return F.pad(x, (0, 0, 0, 0, self.pad_before, self.pad_after))

    def extra_repr(self) -> str:
        """The attributes, for ``print(model)``."""
        return f"stride={self.stride}, pad_before={self.pad_before}, pad_after={self.pad_after}"
