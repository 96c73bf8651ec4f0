"""Which channel of which layer goes where: channel identities carried through one recorded forward pass.

Hooks see what layers, norms and paddings read and make; a dispatch mode follows the identities through everything in
between (``identities.py``). So what a layer reads in each of its inputs is known exactly, whatever Python control
flow the model has, and so is which channels can only leave together. Where an operation is not understood, or mixes
channels (a layer norm, attention), the channels that enter it are *fixed*: they stay.
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
from snncompress.models.identities import FIXED, Identities, along, follow, spread
from snncompress.models.modes import evaluating
from snncompress.models.padding import ChannelPad

LAYERS = (nn.Conv2d, nn.Linear)
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)
NORMS = (*BATCH_NORMS, nn.GroupNorm)


@dataclass(frozen=True)
class LayerChannels:
    """One layer's channels: the identities that it makes and the one that each of its inputs reads."""

    name: str
    made: Tensor  # (out,) identities of its output channels, FIXED where they must stay
    read: Tensor  # (in,) identity read by each input channel or feature
    norm: str | None  # the batch norm that is the only reader of its output


@dataclass(frozen=True)
class ChannelGraph:
    """All layers in the order of their first call, norms, paddings, and the layers that make the output.

    Channels with the same identity can only leave together.
    """

    layers: dict[str, LayerChannels]
    norms: dict[str, Tensor]  # (channels,) identities that pass through each norm
    pads: dict[str, Tensor]  # (before + after,) identities of the channels of zeros that each padding adds
    classifiers: frozenset[str]


@dataclass
class _Recorder(TorchDispatchMode):
    """Follows identities through a forward pass: hooks handle layers, norms and paddings, dispatch the rest."""

    names: dict[nn.Module, str]
    rigid: set[nn.Module]  # modules whose weights cannot be cut
    identities: Identities = field(default_factory=Identities)
    known: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)  # the tensor is kept alive
    made: dict[str, Tensor] = field(default_factory=dict)
    read: dict[str, Tensor] = field(default_factory=dict)
    norms: dict[str, Tensor] = field(default_factory=dict)
    shared: set[str] = field(default_factory=set)  # norms that are called more than once: they follow no layer
    pads: dict[str, Tensor] = field(default_factory=dict)
    makers: dict[int, str] = field(default_factory=dict)  # id of a raw layer output: its layer
    readers: dict[str, list[str]] = field(default_factory=dict)  # layer: who reads its raw output
    inside: int = 0  # how many hooked modules we are in: their own operations are not looked at

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if self.inside:
            return out
        read = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor) and id(t) in self.known]
        if not read:
            return out
        for tensor in read:
            self._note_reader(tensor, str(func))
        outputs = [t for t in tree_leaves(out) if isinstance(t, Tensor)]
        known = {id(tensor): self.of(tensor) for tensor in read}
        found = follow(self.identities, func, args, kwargs or {}, known, outputs)
        if found is None:
            for tensor in read:
                self.identities.fix(self.of(tensor))
            found = [torch.tensor(FIXED).expand(tensor.shape) for tensor in outputs]
        for tensor, ids in zip(outputs, found, strict=False):  # a pooling's second output is no feature map
            self.known[id(tensor)] = (tensor, ids)
        return out

    def _note_reader(self, tensor: Tensor, reader: str) -> None:
        if (maker := self.makers.get(id(tensor))) is not None:
            self.readers[maker].append(reader)

    def of(self, tensor: Tensor) -> Tensor:
        """The identities of a tensor's elements."""
        known = self.known.get(id(tensor))
        return known[1] if known else torch.tensor(FIXED).expand(tensor.shape)

    def _enter(self, module: nn.Module, x: Tensor, axis: int, before: Tensor | None) -> Tensor:
        """The identities that enter a module; another call of it must read the same, a rigid one can lose none."""
        self._note_reader(x, self.names[module])
        self.inside += 1
        ids = along(self.identities, self.of(x), axis)
        if before is not None:
            self.identities.unite(ids, before)
        if module in self.rigid:
            self.identities.fix(ids)
        return ids

    def enter_layer(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Before a layer: notes what it reads."""
        name = self.names[module]
        ids = self._enter(module, args[0], channel_axis(module), self.read.get(name))
        self.read[name] = ids
        if (groups := getattr(module, "groups", 1)) > 1:  # whole groups can leave
            self.identities.unite(ids.view(groups, -1)[:, :1], ids.view(groups, -1))

    def leave_layer(self, module: nn.Module, args: tuple[Any, ...], out: Tensor) -> None:
        """After a layer: its output channels have identities of their own."""
        self.inside -= 1
        name, axis = self.names[module], channel_axis(module)
        ids = self.made.get(name)
        if ids is None:
            ids = self.made[name] = self.identities.new(out.shape[axis])
        if module in self.rigid:
            self.identities.fix(ids)
        if (groups := getattr(module, "groups", 1)) > 1:
            self.identities.unite(self.read[name].view(groups, -1)[:, :1], ids.view(groups, -1))
        self.readers.setdefault(name, [])  # those of all calls
        self.makers[id(out)] = name
        self.known[id(out)] = (out, spread(ids, axis, out.shape))

    def enter_norm(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Before a norm: notes which channels pass through it."""
        name = self.names[module]
        if name in self.norms:
            self.shared.add(name)
        ids = self.norms[name] = self._enter(module, args[0], 1, self.norms.get(name))
        if isinstance(module, nn.GroupNorm):  # what is normalized together leaves together
            self.identities.unite(ids.view(module.num_groups, -1)[:, :1], ids.view(module.num_groups, -1))

    def leave_norm(self, module: nn.Module, args: tuple[Any, ...], out: Tensor) -> None:
        """After a norm: the same channels come out."""
        self.inside -= 1
        self.known[id(out)] = (out, self.of(args[0]))

    def enter_pad(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Before a padding with channels."""
        self._enter(module, args[0], 1, None)

    def leave_pad(self, module: nn.Module, args: tuple[Any, ...], out: Tensor) -> None:
        """After a padding: its channels of zeros have identities of their own."""
        self.inside -= 1
        assert isinstance(module, ChannelPad)
        name = self.names[module]
        if name not in self.pads:
            self.pads[name] = self.identities.new(module.pad_before + module.pad_after)
        before, after = self.pads[name].split([module.pad_before, module.pad_after])
        ids = torch.cat([before, along(self.identities, self.of(args[0]), 1), after])
        self.known[id(out)] = (out, spread(ids, 1, out.shape))

    def hooks(self, module: nn.Module) -> tuple[Callable[..., Any], Callable[..., Any]] | None:
        """What to call before and after a module, if anything."""
        if isinstance(module, LAYERS):
            return self.enter_layer, self.leave_layer
        if isinstance(module, NORMS):
            return self.enter_norm, self.leave_norm
        return (self.enter_pad, self.leave_pad) if isinstance(module, ChannelPad) else None


def channel_axis(module: nn.Module) -> int:
    """The axis of a layer's inputs and outputs that holds its channels."""
    return 1 if isinstance(module, nn.Conv2d) else -1


def _rigid(model: nn.Module) -> set[nn.Module]:
    """Modules that cannot be cut: weights tied to another's or computed (weight norm)."""
    owners = Counter(id(p) for module in model.modules() for p in module._parameters.values() if p is not None)
    return {
        module
        for module in model.modules()
        if (isinstance(module, LAYERS) and module._parameters.get("weight") is None)
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
        if hooks := recorder.hooks(module):
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
    identities = recorder.identities
    outputs = [recorder.of(tensor) for tensor in tree_leaves(output) if isinstance(tensor, Tensor)]
    reached = {number for ids in outputs for number in ids.unique().tolist()}
    classifiers = frozenset(name for name, ids in recorder.made.items() if not reached.isdisjoint(ids.tolist()))
    for ids in outputs:
        identities.fix(ids)
    if not classifiers:  # something that is not followed (a log-softmax) comes last
        classifiers = frozenset(list(recorder.made)[-1:])
        for name in classifiers:
            identities.fix(recorder.made[name])
    kinds = {name: module for module, name in recorder.names.items()}
    batch_norms = {name for name in recorder.norms.keys() - recorder.shared if isinstance(kinds[name], BATCH_NORMS)}
    layers = {}
    for name, made in recorder.made.items():
        readers = recorder.readers[name]
        follows = len(readers) == 1 and readers[0] in batch_norms and torch.equal(recorder.norms[readers[0]], made)
        norm = readers[0] if follows else None
        layers[name] = LayerChannels(name, identities.settle(made), identities.settle(recorder.read[name]), norm)
    norms = {name: identities.settle(ids) for name, ids in recorder.norms.items()}
    pads = {name: identities.settle(ids) for name, ids in recorder.pads.items()}
    return ChannelGraph(layers, norms, pads, classifiers)
