"""Products of one input with two sets of weights, as a branch needs them for mean and noise.

A branch multiplies one input with two sets of weights (``open_product``), and so goes around two weak spots that
convolutions have on a CPU; the numbers are those of the layer's own operation:

- Where the weights far outnumber the values that are read, as at the end of a VGG, torch takes as long to rearrange the
  weights, for every product and twice on the way back, as to multiply. There the patches that the kernel sees are
  gathered once, a row each, and the products are those of matrices.
- Where channels do not come in eights, as in LeNet, the way back is faster with the channels last in memory; where it
  has few weights, with the batch last (``models/batch_last.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from snncompress.models.batch_last import convolve, suits
from snncompress.noise.branch import Layer, apply

LANES = 8  # channels that a convolution treats at once
OUTNUMBERED = 4  # weights for each value that is read, from which gathering patches pays (measured with 3×3 kernels)

Multiply = Callable[[Tensor, Tensor, Tensor | None], Tensor]


def open_product(layer: Layer, x: Tensor, kept: Tensor | None = None) -> tuple[Tensor, Multiply]:
    """The input as it is multiplied, and the multiplication: ``multiply(arranged, weight, bias) → output``.

    Any function that acts on each value of ``x`` may act on the arranged input instead, if it maps 0 to 0 (padding).

    Args:
        layer: whose operation it is.
        x: its input.
        kept: where the weights may be other than zero; elsewhere they need no gradient.
    """
    if isinstance(layer, nn.Conv2d) and kept is not None and _is_thin(layer, x):
        return x, lambda arranged, weight, bias: convolve(arranged, weight, bias, layer.padding, kept)  # type: ignore[arg-type]
    if not (isinstance(layer, nn.Conv2d) and _gathering_pays(layer, x)):
        return x, lambda arranged, weight, bias: _multiply(layer, arranged, weight, bias)
    height, width = _output_size(layer, x)
    columns = F.unfold(x, layer.kernel_size, layer.dilation, layer.padding, layer.stride)  # type: ignore[arg-type]
    patches = columns.transpose(1, 2).reshape(-1, columns.shape[1])  # (images·positions, inputs·kernel)

    def multiply(arranged: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        rows = F.linear(arranged, weight.flatten(1), bias)  # (images·positions, outputs)
        # In the memory order of a convolution's output: networks rely on it with ``view``.
        return rows.view(-1, height, width, len(weight)).permute(0, 3, 1, 2).contiguous()

    return patches, multiply


def _multiply(layer: Layer, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``apply``, with a faster way back where there is one."""
    if not (isinstance(layer, nn.Conv2d) and _is_simple(layer, x)):
        return apply(layer, x, weight, bias)
    in_eights = layer.in_channels > 1 and layer.out_channels % LANES == 0
    if in_eights or suits(x) or x.dtype is not torch.float32 or torch.is_autocast_enabled("cpu"):
        return apply(layer, x, weight, bias)
    product: Tensor = _Convolution.apply(layer, x, weight, bias)
    return product


class _Convolution(torch.autograd.Function):
    """A convolution whose gradients are computed with the channels last in memory."""

    @staticmethod
    def forward(ctx: Any, conv: nn.Conv2d, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.conv = conv
        return apply(conv, x, weight, bias)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor | None, Tensor | None, Tensor | None]:
        x, weight = (tensor.to(memory_format=torch.channels_last) for tensor in ctx.saved_tensors)
        gradient = gradient.to(memory_format=torch.channels_last)
        sizes, geometry = [len(weight)], (ctx.conv.stride, ctx.conv.padding, ctx.conv.dilation)
        by_x, by_weight, by_bias = torch.ops.aten.convolution_backward(
            gradient, x, weight, sizes, *geometry, False, [0, 0], 1, ctx.needs_input_grad[1:]
        )
        return None, None if by_x is None else by_x.contiguous(), by_weight, by_bias


def _is_simple(conv: nn.Conv2d, x: Tensor) -> bool:
    simple = conv.groups == 1 and conv.padding_mode == "zeros" and not isinstance(conv.padding, str)
    return simple and x.dim() == 4 and x.device.type == "cpu"


def _is_thin(conv: nn.Conv2d, x: Tensor) -> bool:
    return suits(x) and _is_simple(conv, x) and conv.stride == conv.dilation == (1, 1)


def _gathering_pays(conv: nn.Conv2d, x: Tensor) -> bool:
    return _is_simple(conv, x) and OUTNUMBERED * x.numel() <= conv.weight.numel()


def _output_size(conv: nn.Conv2d, x: Tensor) -> list[int]:
    """Height and width of a convolution's output."""
    assert not isinstance(conv.padding, str)
    geometry = zip(x.shape[2:], conv.kernel_size, conv.stride, conv.padding, conv.dilation, strict=True)
    return [(size + 2 * p - d * (k - 1) - 1) // s + 1 for size, k, s, p, d in geometry]


def standard_normal(like: Tensor, scale: float = 1.0) -> Tensor:
    """Gaussian noise in the shape and the memory layout of a dense tensor.

    Torch draws five times as fast where memory is in the order of the axes: here the numbers are drawn in memory's.
    """
    noise = torch.empty_like(like)
    noise.as_strided((noise.numel(),), (1,)).normal_(0, scale)
    return noise
