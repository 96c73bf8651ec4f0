"""Thin convolutions, twice as fast on a CPU and more: images lie with the batch last, zero weights cost nothing.

Libraries compute convolutions channel by channel in blocks of 8 or 16; what pruning leaves has fewer. Inside
``BatchLast`` convolutions and the pooling behind them are computed by ``batch_last_kernels``, whatever
code calls them. Tensors keep their shapes; only their strides tell that the images lie next to each other.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.overrides import TorchFunctionMode

MOST_WEIGHTS = 8  # for each place that a kernel reads, on average over the layers: with more, blocks are faster
FEWEST_IMAGES = 64  # of a batch: rows must be long enough for the vector units
Pair = int | Sequence[int]


def faster(model: nn.Module, zeros: Mapping[str, Tensor]) -> AbstractContextManager[Any]:
    """``BatchLast`` for a network that is faster so; what does nothing for any other.

    Thin layers beside thick ones gain nothing, for tensors would have to be laid out anew between them; nor would they
    beside norms, which know other layouts only.

    Args:
        model: the network.
        zeros: by the names of weights, where they stay zero.
    """
    weights = {f"{name}.weight": layer.weight for name, layer in model.named_modules() if isinstance(layer, nn.Conv2d)}
    normed = any(isinstance(module, nn.modules.batchnorm._NormBase) for module in model.modules())
    elsewhere = any(weight.device.type != "cpu" for weight in weights.values())
    if not weights or normed or elsewhere or not _compiles():
        return nullcontext()
    held = {name: weight for name, weight in weights.items() if name in zeros}
    left = {name: weight.numel() - (int(zeros[name].sum()) if name in held else 0) for name, weight in weights.items()}
    if sum(left[name] / weight[0].numel() for name, weight in weights.items()) > MOST_WEIGHTS * len(weights):
        return nullcontext()
    return BatchLast(held.values())


@cache
def _compiles() -> bool:
    """Whether numba is installed (``pip install "snncompress[fast]"``)."""
    return importlib.util.find_spec("numba") is not None


class BatchLast(TorchFunctionMode):
    """While it is entered, convolutions of float32 batches on a CPU are computed with the batch last.

    Args:
        held: weights whose zeros stay zero: these are left out, and their gradient is zero.
    """

    entered: ClassVar[int] = 0  # how many are

    def __init__(self, held: Iterable[Tensor] = ()) -> None:
        super().__init__()
        self._held = {id(weight) for weight in held}

    def __enter__(self) -> BatchLast:
        BatchLast.entered += 1
        super().__enter__()
        return self

    def __exit__(self, *reason: object) -> None:
        BatchLast.entered -= 1
        super().__exit__(*reason)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Calls what is faster."""
        kwargs = kwargs or {}
        if func in (torch.conv2d, F.conv2d):
            return self._conv2d(*args, **kwargs)
        if func in (torch.max_pool2d, F.max_pool2d) and _is_batch_last(args[0]) and _halves(*args[1:], **kwargs):
            return _Pool.apply(args[0])
        return func(*args, **kwargs)

    def _conv2d(
        self,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Pair = 1,
        padding: Pair | str = 0,
        dilation: Pair = 1,
        groups: int = 1,
    ) -> Tensor:
        simple = not isinstance(padding, str) and groups == 1 and _pair(stride) == _pair(dilation) == (1, 1)
        if not (simple and suits(input)):
            return F.conv2d(input, weight, bias, stride, padding, dilation, groups)
        kept = weight.detach() != 0 if id(weight) in self._held else torch.ones_like(weight, dtype=torch.bool)
        return convolve(input, weight, bias, padding, kept)  # type: ignore[arg-type]


def suits(images: Tensor) -> bool:
    """Whether a convolution of such images is to be computed with the batch last: there, and inside ``BatchLast``."""
    ours = images.device.type == "cpu" and images.dtype is torch.float32 and not torch.is_autocast_enabled("cpu")
    return ours and images.dim() == 4 and len(images) >= FEWEST_IMAGES and BatchLast.entered > 0


def convolve(images: Tensor, weight: Tensor, bias: Tensor | None, padding: Pair, kept: Tensor) -> Tensor:
    """A convolution of stride 1 with the batch last; weights that are not kept are zero, and so is their gradient."""
    output: Tensor = _Convolve.apply(images, weight, bias, _pair(padding), kept)
    return output


def _is_batch_last(images: Tensor) -> bool:
    return suits(images) and images.permute(1, 2, 3, 0).is_contiguous()


def _halves(
    kernel_size: Pair,
    stride: Pair | None = None,
    padding: Pair = 0,
    dilation: Pair = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> bool:
    """Whether pooling takes the largest of two by two pixels, and nothing else is asked for."""
    twos = _pair(kernel_size) == (2, 2) and (not stride or _pair(stride) == (2, 2))
    return twos and _pair(padding) == (0, 0) and _pair(dilation) == (1, 1) and not (ceil_mode or return_indices)


def _pair(value: Any) -> tuple[int, int]:
    values = (value, value) if isinstance(value, int) else tuple(value)
    return values if len(values) == 2 else (values[0], values[0])


def _inside(images: Tensor) -> np.ndarray[Any, Any]:
    """(B, C, H, W) as a contiguous array (C, H, W, B)."""
    return images.detach().permute(1, 2, 3, 0).contiguous().numpy()


def _outside(array: np.ndarray[Any, Any]) -> Tensor:
    """(C, H, W, B) as a tensor (B, C, H, W) of the same memory."""
    return torch.from_numpy(array).permute(3, 0, 1, 2)


@cache
def _workers(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="batch-last")


def _share(images: int, work: Callable[[int, int], Any]) -> list[Any]:
    """Calls ``work(begin, end)`` on parts of a batch, a thread each; the results in order."""
    threads = max(1, min(torch.get_num_threads(), images // FEWEST_IMAGES))
    length = math.ceil(images / threads)
    parts = [(begin, min(begin + length, images)) for begin in range(0, images, length)]
    if len(parts) == 1:
        return [work(*parts[0])]
    return list(_workers(threads).map(lambda part: work(*part), parts))


class _Taps:
    """The weights that are kept, by output: those of ``correlate``."""

    def __init__(self, weight: Tensor, kept: Tensor, padding: Sequence[int]) -> None:
        places = kept.nonzero()  # (T, 4): o, c, y, x, sorted by o
        counts = torch.bincount(places[:, 0], minlength=len(weight))
        self.first = np.concatenate(([0], counts.cumsum(0).numpy()))
        self.taps = (places[:, 1:] - torch.tensor([0, *padding])).numpy()
        self.weights = F.pad(weight.detach()[kept], (0, 1)).numpy()


class _Convolve(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, images: Tensor, weight: Tensor, bias: Tensor | None, padding: tuple[int, int], kept: Tensor
    ) -> Tensor:
        inside, taps = _inside(images), _Taps(weight, kept, padding)
        height, width = (
            side + 2 * pad - kernel + 1
            for side, pad, kernel in zip(images.shape[2:], padding, weight.shape[2:], strict=True)
        )
        added = np.zeros(len(weight), np.float32) if bias is None else bias.detach().contiguous().numpy()
        ctx.inside, ctx.taps, ctx.padding = inside, taps, padding
        ctx.save_for_backward(weight, kept)
        return _correlate(inside, taps, added, height, width)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, above: Tensor) -> tuple[Tensor | None, ...]:
        from snncompress.models.batch_last_kernels import weigh

        weight, kept = ctx.saved_tensors
        inside, taps, gradient = ctx.inside, ctx.taps, _inside(above)
        images_grad = weight_grad = bias_grad = None
        if ctx.needs_input_grad[0]:
            # Where an output looked at an input, the input looks back: kernels mirrored, outputs and inputs swapped.
            back = [side - 1 - pad for side, pad in zip(weight.shape[2:], ctx.padding, strict=True)]
            turned, kept_turned = (tensor.flip(2, 3).transpose(0, 1) for tensor in (weight, kept))
            none = np.zeros(len(inside), np.float32)
            images_grad = _correlate(gradient, _Taps(turned, kept_turned, back), none, *inside.shape[1:3])
        if ctx.needs_input_grad[1]:

            def part(begin: int, end: int) -> np.ndarray[Any, Any]:
                sums = np.zeros(len(taps.taps) + 1)
                weigh(inside, gradient, taps.first, taps.taps, sums, begin, end)
                return sums[:-1]

            found = sum(_share(inside.shape[3], part))
            weight_grad = torch.zeros_like(weight)
            weight_grad[kept] = torch.from_numpy(found).to(weight.dtype)
        if ctx.needs_input_grad[2]:
            bias_grad = torch.from_numpy(gradient).sum((1, 2, 3))
        return images_grad, weight_grad, bias_grad, None, None


def _correlate(
    inside: np.ndarray[Any, Any], taps: _Taps, bias: np.ndarray[Any, Any], height: int, width: int
) -> Tensor:
    from snncompress.models.batch_last_kernels import correlate

    images = inside.shape[3]
    out = torch.empty(len(bias), height, width, images).numpy()  # torch aligns what vector units read
    _share(images, lambda *part: correlate(inside, out, bias, taps.first, taps.taps, taps.weights, *part))
    return _outside(out)


class _Pool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, images: Tensor) -> Tensor:
        from snncompress.models.batch_last_kernels import pool

        inside = _inside(images)
        channels, height, width, count = inside.shape
        out = torch.empty(channels, height // 2, width // 2, count).numpy()
        _share(count, lambda *part: pool(inside, out, *part))
        ctx.inside, ctx.pooled = inside, out
        return _outside(out)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, above: Tensor) -> Tensor:
        from snncompress.models.batch_last_kernels import unpool

        odd = any(side % 2 for side in ctx.inside.shape[1:3])  # then some pixels are in no window
        gradient, out = _inside(above), (torch.zeros if odd else torch.empty)(ctx.inside.shape).numpy()
        _share(gradient.shape[3], lambda *part: unpool(ctx.inside, ctx.pooled, gradient, out, *part))
        return _outside(out)
