"""Which channel of which layer goes where: channel identities carried through one recorded forward pass.

Every output channel of a convolution or linear layer gets a number, its identity. During one forward pass
each tensor is accompanied by a tensor of the same shape that holds the identity of every element: views,
transposes and concatenations act on it as on the values, element-wise functions and pooling leave it alone.
So what a layer reads in each of its inputs is known exactly, whatever Python control flow the model has.
Where an operation is not understood, or mixes channels (an addition, a normalization over channels), the
identities that enter it are *fixed*: those channels must stay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from snncompress.errors import ModelError
from snncompress.models.modes import evaluating

FIXED = -1  # the identity of an element whose channel cannot be removed or is not a neuron's
LAYERS = (nn.Conv2d, nn.Linear)
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)

aten = torch.ops.aten
ELEMENTWISE = {  # where nothing else but numbers takes part
    aten.relu, aten.relu_, aten.leaky_relu, aten.leaky_relu_, aten.elu, aten.elu_, aten.gelu, aten.silu,
    aten.silu_, aten.hardswish, aten.hardswish_, aten.hardsigmoid, aten.hardsigmoid_, aten.hardtanh,
    aten.hardtanh_, aten.sigmoid, aten.sigmoid_, aten.tanh, aten.tanh_, aten.clamp, aten.clamp_min, aten.neg,
    aten.abs, aten.clone, aten.detach, aten.alias, aten._to_copy, aten.native_dropout, aten.add, aten.mul,
    aten.div, aten.sub, aten.pow,
}  # fmt: skip
POOLS = {
    aten.max_pool2d_with_indices, aten.avg_pool2d, aten._adaptive_avg_pool2d, aten.adaptive_max_pool2d,
    aten.upsample_nearest2d, aten.upsample_bilinear2d,
}  # fmt: skip
VIEWS = {
    aten.view, aten._unsafe_view, aten.reshape, aten.t, aten.transpose, aten.permute, aten.unsqueeze,
    aten.squeeze, aten.slice, aten.select, aten.expand, aten.split, aten.split_with_sizes, aten.chunk,
    aten.unbind, aten.flatten,
}  # fmt: skip


@dataclass(frozen=True)
class LayerChannels:
    """One layer's channels: the identities that it makes and the one that each of its inputs reads."""

    name: str
    made: Tensor  # (out,) identities of its output channels, FIXED where they must stay
    read: Tensor  # (in,) identity read by each input channel or feature
    norm: str | None  # the batch norm that is the only reader of its output


@dataclass(frozen=True)
class ChannelGraph:
    """All layers in the order of their first call, the batch norms, and the layers that make the output."""

    layers: dict[str, LayerChannels]
    norms: dict[str, Tensor]  # (channels,) identities that pass through each batch norm
    classifiers: frozenset[str]


@dataclass
class _Recorder(TorchDispatchMode):
    """Follows identities through a forward pass: hooks handle layers and batch norms, dispatch the rest."""

    names: dict[nn.Module, str]
    rigid: set[nn.Module]  # modules whose weights cannot be cut
    identities: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)  # the tensor is kept alive
    made: dict[str, Tensor] = field(default_factory=dict)
    read: dict[str, Tensor] = field(default_factory=dict)
    norms: dict[str, Tensor] = field(default_factory=dict)
    makers: dict[int, str] = field(default_factory=dict)  # id of a raw layer output: its layer
    readers: dict[str, list[str]] = field(default_factory=dict)  # layer: who reads its raw output
    fixed: set[int] = field(default_factory=set)
    inside: int = 0  # how many hooked modules we are in: their own operations are not looked at
    count: int = 0

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if self.inside:
            return out
        read = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor) and id(t) in self.identities]
        if not read:
            return out
        for tensor in read:
            self._note_reader(tensor, str(func))
        self._follow(func, args, kwargs or {}, read, out)
        return out

    def _follow(self, func: Any, args: Any, kwargs: Any, read: list[Tensor], out: Any) -> None:
        """Gives the outputs of one operation their identities, or fixes what it cannot follow."""
        operation = func.overloadpacket
        ids = self.of(read[0])
        outputs = [t for t in tree_leaves(out) if isinstance(t, Tensor)]
        scalar_other = all(t.dim() == 0 for t in tree_leaves(args) if isinstance(t, Tensor) and t is not read[0])
        if operation in ELEMENTWISE and len(read) == 1 and scalar_other:
            self.identities[id(outputs[0])] = (outputs[0], ids)
        elif operation in VIEWS and len(read) == 1:
            moved = func(ids.contiguous(), *args[1:], **kwargs)  # an expanded tensor has no views
            for tensor, part in zip(outputs, [moved] if isinstance(moved, Tensor) else moved, strict=True):
                self.identities[id(tensor)] = (tensor, part)
        elif operation is aten.cat:
            parts = [self.of(t) for t in args[0]]
            self.identities[id(out)] = (out, torch.cat(parts, *args[1:], **kwargs))
        elif (operation in POOLS or self._spatial_mean(operation, args)) and (
            channels := self._channels(read[0], 1)
        ) is not None:
            shape = [1, -1] + [1] * (outputs[0].dim() - 2)
            self.identities[id(outputs[0])] = (outputs[0], channels.view(shape).expand(outputs[0].shape))
        else:
            for tensor in read:
                self.fix(self.of(tensor))
            for tensor in outputs:
                self.identities[id(tensor)] = (tensor, torch.full(tensor.shape, FIXED))

    def _spatial_mean(self, operation: Any, args: Any) -> bool:
        return (
            operation is aten.mean
            and len(args) > 1
            and args[0].dim() == 4
            and all(dim % 4 in (2, 3) for dim in args[1] or [0])
        )

    def _note_reader(self, tensor: Tensor, reader: str) -> None:
        if (maker := self.makers.get(id(tensor))) is not None:
            self.readers[maker].append(reader)

    def of(self, tensor: Tensor) -> Tensor:
        """The identities of a tensor's elements."""
        known = self.identities.get(id(tensor))
        return known[1] if known else torch.full(tensor.shape, FIXED)

    def fix(self, ids: Tensor) -> None:
        """Says that these channels must stay."""
        self.fixed.update(ids.unique().tolist())

    def _channels(self, tensor: Tensor, dim: int) -> Tensor | None:
        """The identity of each channel along ``dim``, or None where one channel holds several."""
        rows = self.of(tensor).movedim(dim, 0).flatten(1)  # (channels, everything else)
        return rows[:, 0].clone() if bool((rows == rows[:, :1]).all()) else None

    def enter_layer(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Before a layer: notes what it reads."""
        name, x = self.names[module], args[0]
        self._note_reader(x, name)
        self.read[name] = self._pass(module, x, 1 if isinstance(module, nn.Conv2d) else -1, self.read.get(name))
        self.inside += 1

    def _pass(self, module: nn.Module, x: Tensor, dim: int, before: Tensor | None) -> Tensor:
        """The identities that enter a module; they are fixed if it is rigid or was entered before."""
        ids = self._channels(x, dim)
        if ids is not None and before is None and module not in self.rigid:
            return ids
        self.fix(self.of(x))
        if before is not None:
            self.fix(before)
        return torch.full((x.shape[dim],), FIXED)

    def leave_layer(self, module: nn.Module, args: tuple[Any, ...], out: Tensor) -> None:
        """After a layer: its output channels get new identities."""
        self.inside -= 1
        name = self.names[module]
        dim = 1 if isinstance(module, nn.Conv2d) else out.dim() - 1
        ids = torch.arange(self.count, self.count + out.shape[dim])
        self.count += out.shape[dim]
        if name in self.made or module in self.rigid:
            self.fix(ids)
            self.fix(self.made.get(name, ids))
        self.made[name] = ids
        self.readers.setdefault(name, [])  # those of all calls
        self.makers[id(out)] = name
        shape = [-1 if d == dim else 1 for d in range(out.dim())]
        self.identities[id(out)] = (out, ids.view(shape).expand(out.shape))

    def enter_norm(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Before a batch norm: notes which channels pass through it."""
        name, x = self.names[module], args[0]
        self._note_reader(x, name)
        self.norms[name] = self._pass(module, x, 1, self.norms.get(name))
        self.inside += 1

    def leave_norm(self, module: nn.Module, args: tuple[Any, ...], out: Tensor) -> None:
        """After a batch norm: the same channels come out."""
        self.inside -= 1
        self.identities[id(out)] = (out, self.of(args[0]))


def _rigid(model: nn.Module) -> set[nn.Module]:
    """Modules that cannot be cut: grouped convolutions, weights tied to another's or computed (weight norm)."""
    owners = Counter(id(p) for module in model.modules() for p in module._parameters.values() if p is not None)
    return {
        module
        for module in model.modules()
        if (isinstance(module, nn.Conv2d) and module.groups != 1)
        or (isinstance(module, LAYERS) and module._parameters.get("weight") is None)
        or any(owners[id(p)] > 1 for p in module._parameters.values())
    }


def trace_channels(model: nn.Module, input_shape: tuple[int, int, int]) -> ChannelGraph:
    """Records one forward pass of a plain model and returns where its channels go.

    Args:
        model: a model without noise branches; its mode and weights are left as they were.
        input_shape: channels, height, width of the images that it takes.
    """
    names = {module: name for name, module in model.named_modules()}
    recorder = _Recorder(names, _rigid(model))
    handles = []
    for module in names:
        hooks: tuple[Callable[..., Any], Callable[..., Any]] | None = None
        if isinstance(module, LAYERS):
            hooks = recorder.enter_layer, recorder.leave_layer
        elif isinstance(module, BATCH_NORMS):
            hooks = recorder.enter_norm, recorder.leave_norm
        if hooks:
            handles += [module.register_forward_pre_hook(hooks[0]), module.register_forward_hook(hooks[1])]
    parameter = next(model.parameters(), torch.zeros(()))
    # Two images: one alone would lose its axis in a model's `squeeze()`.
    images = torch.zeros(2, *input_shape, device=parameter.device, dtype=parameter.dtype)
    try:
        with evaluating(model), recorder:
            output = model(images)
    except (RuntimeError, ValueError, IndexError) as error:
        shape = "×".join(map(str, input_shape))
        reason = str(error).splitlines()[0]
        raise ModelError(f"the model cannot run on images of {shape}: {reason}; check the image size") from error
    finally:
        for handle in handles:
            handle.remove()
    return _graph(recorder, output)


def _graph(recorder: _Recorder, output: Any) -> ChannelGraph:
    """Puts what was recorded together; what reaches the model's output is fixed."""
    reached: set[int] = set()
    for tensor in tree_leaves(output):
        if isinstance(tensor, Tensor):
            reached.update(recorder.of(tensor).unique().tolist())
    recorder.fixed |= reached
    classifiers = frozenset(name for name, ids in recorder.made.items() if not reached.isdisjoint(ids.tolist()))
    if not classifiers:  # something that is not followed (a log-softmax) comes last
        classifiers = frozenset(list(recorder.made)[-1:])
        for name in classifiers:
            recorder.fix(recorder.made[name])
    fixed = torch.tensor(sorted(recorder.fixed | {FIXED}))

    def settle(ids: Tensor) -> Tensor:
        return torch.where(torch.isin(ids, fixed), FIXED, ids)

    layers = {}
    for name, made in recorder.made.items():
        readers = recorder.readers[name]
        follows = len(readers) == 1 and readers[0] in recorder.norms and torch.equal(recorder.norms[readers[0]], made)
        norm = readers[0] if follows else None
        layers[name] = LayerChannels(name, settle(made), settle(recorder.read[name]), norm)
    norms = {name: settle(ids) for name, ids in recorder.norms.items()}
    return ChannelGraph(layers, norms, classifiers)
