"""Runs a model once, without data, and records what each of its modules did.

The run is on the ``meta`` device: shapes only, no weights, no compute. A model that cannot run there (it
looks at values, or holds tensors which are no buffers) is run on the CPU on one image of zeros instead.
Multiplications come from ``torch.utils.flop_counter``, which counts 2 a multiply-add and is halved here. What it does
not know, and what may multiply all the same, is named (``operators.py``).
"""

from __future__ import annotations

import copy
import itertools
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

from snncompress.errors import ModelError
from snncompress.measure.operators import UnknownOperators

CONVOLUTIONS = frozenset([F.conv1d, F.conv2d, F.conv3d, F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d])
Shape = tuple[int, ...]


@dataclass
class Record:
    """What one module did, all its calls together; shapes are the last call's, without the batch."""

    input_shape: Shape = ()
    output_shape: Shape = ()
    multiplications: int = 0  # its own, without its children's


@dataclass(frozen=True)
class FeatureMap:
    """The output of one convolution or linear layer, of one image, and what that layer read."""

    module: str
    floats: int
    floats_read: int
    linear: bool


@dataclass(frozen=True)
class Uncounted:
    """An operator whose multiplications nobody counted."""

    module: str
    operator: str
    calls: int


@dataclass(frozen=True)
class Trace:
    """One forward pass: a record per module that was called, and the feature maps in order of execution.

    What could not be counted is there by module and operator.
    """

    records: Mapping[str, Record]
    maps: tuple[FeatureMap, ...]
    uncounted: tuple[Uncounted, ...] = ()


def trace(model: nn.Module, input_shape: tuple[int, int, int]) -> Trace:
    """Records one forward pass of a copy of the model, in evaluation mode, on one image.

    Args:
        model: The model; it is not touched.
        input_shape: Channels, height and width of an image.

    Raises:
        ModelError: If the model cannot run on such an image; names the layer that failed.
    """
    try:
        with torch.no_grad():
            return _run(copy_to_meta(model), torch.zeros(1, *input_shape, device="meta", dtype=_dtype(model))).result()
    except Exception:  # whatever a user's forward may raise; the run on the CPU tells the reason
        return _trace_on_cpu(model, input_shape)


def _dtype(model: nn.Module) -> torch.dtype:
    return next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)


def _trace_on_cpu(model: nn.Module, input_shape: tuple[int, int, int]) -> Trace:
    # The counter does not know oneDNN's fused recurrences, nor the CPU's fused attention.
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # switching oneDNN off warns of devices that nobody asked for
        with torch.backends.mkldnn.flags(enabled=False), sdpa_kernel(SDPBackend.MATH):
            recorder = _run(copy.deepcopy(model).cpu(), torch.zeros(1, *input_shape, dtype=_dtype(model)))
    if recorder.failure is not None:
        raise _explain(recorder, input_shape, recorder.failure) from recorder.failure
    return recorder.result()


def copy_to_meta(model: nn.Module) -> nn.Module:
    """A copy that has shapes but no weights."""
    # deepcopy takes what the memo holds in place of a copy, so the weights are never copied.
    memo: dict[int, Any] = {}
    for tensor in itertools.chain(model.parameters(), model.buffers()):
        shell = torch.empty_like(tensor, device="meta")
        is_parameter = isinstance(tensor, nn.Parameter)
        memo[id(tensor)] = nn.Parameter(shell, requires_grad=False) if is_parameter else shell
    return copy.deepcopy(model, memo)


class _Frame:
    """A module whose forward is under way."""

    def __init__(self, name: str, module: nn.Module, input_shape: Shape, counted: int) -> None:
        self.name, self.module, self.input_shape = name, module, input_shape
        self.counted_before = counted
        self.counted_in_children = 0


class _Recorder(TorchFunctionMode):
    """Sees every convolution and linear layer, called as a module or as a function.

    While such a mode is active, nn.MultiheadAttention also leaves its fused path, which the flop counter
    cannot see.
    """

    def __init__(self, counter: FlopCounterMode) -> None:
        super().__init__()
        self.counter = counter
        self.records: dict[str, Record] = {}
        self.maps: list[FeatureMap] = []
        self.stack: list[_Frame] = []
        self.failure: Exception | None = None
        self.uncounted: Counter[tuple[str, str]] = Counter()  # (module, operator)

    def note(self, operator: str) -> None:
        """An operator ran whose multiplications nobody counts."""
        self.uncounted[self.stack[-1].name if self.stack else "", operator] += 1

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        module = self.stack[-1].name if self.stack else ""
        if func is F.linear or func in CONVOLUTIONS:
            read = args[0] if args else kwargs["input"]
            self.maps.append(FeatureMap(module, output.numel(), read.numel(), func is F.linear))
        elif func is F.multi_head_attention_forward:
            self.maps.extend(_attention_maps(module, args, output[0]))
        return output

    def watch(self, model: nn.Module) -> None:
        for name, module in model.named_modules():
            module.register_forward_pre_hook(self._before(name), with_kwargs=True)
            module.register_forward_hook(self._after)

    def _before(self, name: str) -> Any:
        def hook(module: nn.Module, args: Any, kwargs: Any) -> None:
            shape = _shape((args, kwargs))
            self.stack.append(_Frame(name, module, shape, self.counter.get_total_flops()))

        return hook

    def _after(self, module: nn.Module, args: Any, output: Any) -> None:
        frame = self.stack.pop()
        counted = self.counter.get_total_flops() - frame.counted_before
        if self.stack:
            self.stack[-1].counted_in_children += counted
        record = self.records.setdefault(frame.name, Record())
        record.input_shape, record.output_shape = frame.input_shape, _shape(output)
        record.multiplications += (counted - frame.counted_in_children) // 2

    def result(self) -> Trace:
        if self.failure is not None:
            raise self.failure
        uncounted = (Uncounted(module, operator, calls) for (module, operator), calls in self.uncounted.items())
        return Trace(self.records, tuple(self.maps), tuple(uncounted))


def _run(model: nn.Module, image: Tensor) -> _Recorder:
    counter = FlopCounterMode(display=False)
    recorder = _Recorder(counter)
    with UnknownOperators(recorder.note), counter:
        recorder.watch(model.eval())
        try:
            with recorder:
                model(image)
        except Exception as error:  # a user's forward may raise anything
            recorder.failure = error
    return recorder


def _attention_maps(module: str, args: Any, output: Tensor) -> Iterator[FeatureMap]:
    # torch calls this function with query, key and value first; each has a projection of the output's width.
    width = output.shape[-1]
    for read in args[:3]:
        yield FeatureMap(module, read.numel() // read.shape[-1] * width, read.numel(), linear=True)
    yield FeatureMap(module, output.numel(), output.numel(), linear=True)


def _shape(value: Any) -> Shape:
    """The shape of the first tensor in nested arguments, without the batch; () if there is none."""
    if isinstance(value, Tensor):
        return tuple(value.shape[1:])
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return next((shape for shape in map(_shape, value) if shape), ())
    return ()


def _explain(recorder: _Recorder, input_shape: Shape, error: Exception) -> ModelError:
    frame = recorder.stack[-1]  # hooks after a forward do not run when it raises: the innermost is on top
    kind = type(frame.module).__name__
    layer = f"layer '{frame.name}' ({kind})" if frame.name else f"the model's own forward ({kind})"
    got = _sizes(frame.input_shape)
    channels, features = (getattr(frame.module, key, None) for key in ("in_channels", "in_features"))
    if channels is not None and frame.input_shape[:1] != (channels,):
        problem = f"got {got}, wanted {channels} channel{'s' * (channels != 1)}"
    elif features is not None and frame.input_shape[-1:] != (features,):
        problem = f"got {got}, wanted {features} features"
    else:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        problem = f"got {got}: {reason[0]}"
    return ModelError(
        f"the model cannot run on {_sizes(input_shape)} images: {layer} {problem}; give it images of the "
        "size and the number of channels it was made for, or build it for these"
    )


def _sizes(shape: Shape) -> str:
    return "×".join(map(str, shape)) or "no tensor"
