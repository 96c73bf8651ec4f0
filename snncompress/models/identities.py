"""Identities of channels: numbers that accompany every element of a tensor through a forward pass.

Every output channel of a layer gets a number. Views, transposes and concatenations act on the numbers as on the
values; pooling keeps them; where two channels meet in an element-wise operation (a residual sum, a gate), they can
only leave together: their numbers are united (union-find). ``FIXED`` is the number of all that must stay.

A tensor of numbers is broadcast along the axes on which it does not vary, so that it takes next to no memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

FIXED = 0

aten = torch.ops.aten
ELEMENTWISE = {
    aten.relu, aten.relu_, aten.leaky_relu, aten.leaky_relu_, aten.elu, aten.elu_, aten.gelu, aten.silu,
    aten.silu_, aten.hardswish, aten.hardswish_, aten.hardsigmoid, aten.hardsigmoid_, aten.hardtanh,
    aten.hardtanh_, aten.sigmoid, aten.sigmoid_, aten.tanh, aten.tanh_, aten.clamp, aten.clamp_min, aten.neg,
    aten.abs, aten.exp, aten.sqrt, aten.softplus, aten.mish, aten.clone, aten.detach, aten.alias, aten._to_copy,
    aten.native_dropout, aten.add, aten.add_, aten.mul, aten.mul_, aten.div, aten.div_, aten.sub, aten.sub_, aten.pow,
    aten.maximum, aten.minimum,
}  # fmt: skip
POOLS = {
    aten.max_pool2d_with_indices, aten.avg_pool2d, aten._adaptive_avg_pool2d, aten.adaptive_max_pool2d,
    aten.upsample_nearest2d, aten.upsample_bilinear2d,
}  # fmt: skip
RESHAPES = {aten.view, aten._unsafe_view, aten.reshape, aten.flatten}
VIEWS = {
    aten.t, aten.transpose, aten.permute, aten.unsqueeze, aten.squeeze, aten.slice, aten.select, aten.expand,
    aten.split, aten.split_with_sizes, aten.chunk, aten.unbind,
}  # fmt: skip
REDUCTIONS = {aten.mean, aten.sum, aten.amax, aten.amin}


class Identities:
    """Which numbers are one: union-find, in which the smallest stands for all, so that ``FIXED`` always wins."""

    def __init__(self) -> None:
        self._parents = [FIXED]

    def new(self, count: int) -> Tensor:
        """Numbers that were not there before."""
        first = len(self._parents)
        self._parents.extend(range(first, first + count))
        return torch.arange(first, first + count)

    def unite(self, some: Tensor, others: Tensor) -> None:
        """Says that channels which stand at the same place can only leave together; broadcasts."""
        a, b = torch.broadcast_tensors(thin(some), thin(others))
        base = len(self._parents)
        pairs = (a * base + b)[a != b].unique()
        for pair in pairs.tolist():
            self._join(*divmod(pair, base))

    def fix(self, ids: Tensor) -> None:
        """Says that these channels must stay."""
        self.unite(thin(ids), torch.tensor(FIXED))

    def _join(self, one: int, other: int) -> None:
        one, other = self._root(one), self._root(other)
        self._parents[max(one, other)] = min(one, other)

    def _root(self, number: int) -> int:
        parents = self._parents
        while parents[number] != number:
            parents[number] = number = parents[parents[number]]
        return number

    def settle(self, ids: Tensor) -> Tensor:
        """The number that stands for each."""
        return torch.tensor([self._root(number) for number in ids.tolist()], dtype=torch.long)


def thin(ids: Tensor) -> Tensor:
    """The same numbers, of size 1 along every axis on which they do not vary."""
    for axis in range(ids.dim()):
        first = ids.narrow(axis, 0, 1) if ids.shape[axis] > 1 else ids
        if ids.shape[axis] > 1 and (ids.stride(axis) == 0 or bool((first == ids).all())):
            ids = first
    return ids


def along(identities: Identities, ids: Tensor, axis: int) -> Tensor:
    """The number of each channel along an axis; a channel that holds several makes them one."""
    rows = thin(ids).movedim(axis, 0)
    rows = rows.expand(ids.shape[axis], *rows.shape[1:]).flatten(1)  # (channels, everything else)
    identities.unite(rows[:, :1], rows)
    return rows[:, 0].clone()


def spread(numbers: Tensor, axis: int, shape: Sequence[int]) -> Tensor:
    """Numbers of channels, one for each element of a tensor of the given shape."""
    return numbers.view([-1 if d == axis % len(shape) else 1 for d in range(len(shape))]).expand(shape)


def follow(
    identities: Identities, func: Any, args: Any, kwargs: Any, known: dict[int, Tensor], outputs: Sequence[Tensor]
) -> list[Tensor] | None:
    """The numbers of the outputs of one operation; None if it is not understood.

    Args:
        identities: are told which channels meet.
        func: the operation, an overload of ``torch.ops.aten``.
        args: its arguments.
        kwargs: its named arguments.
        known: the numbers of its tensors that have any, by ``id``.
        outputs: what it gave.
    """
    operation, first = func.overloadpacket, args[0]
    if operation in ELEMENTWISE:
        tensors = [value for value in [*args, *kwargs.values()] if isinstance(value, Tensor) and value.dim()]
        return [_meet(identities, tensors, known, outputs[0])]
    if operation is aten.cat:
        parts = [known.get(id(part), torch.tensor(FIXED).expand(part.shape)) for part in first]
        return [torch.cat(parts, *args[1:], **kwargs)]
    if id(first) not in known if isinstance(first, Tensor) else True:
        return None
    ids = known[id(first)]
    if operation in RESHAPES:
        return [_reshape(identities, ids, outputs[0].shape)]
    if operation in VIEWS:
        moved = func(ids, *args[1:], **kwargs)
        parts = [moved] if isinstance(moved, Tensor) else list(moved)
        if operation in (aten.split, aten.chunk) and len({part.shape for part in parts}) == 1:
            for part in parts[1:]:  # parts of equal size must lose the same places, if they are to stay so
                identities.unite(parts[0], part)
        return parts
    if operation in POOLS:
        return [spread(along(identities, ids, 1), 1, outputs[0].shape)]
    if operation in REDUCTIONS and len(args) > 1 and args[1] is not None:
        axes = [axis % ids.dim() for axis in ([args[1]] if isinstance(args[1], int) else args[1])]
        narrow = thin(ids)
        if axes and all(narrow.shape[axis] == 1 for axis in axes):
            return [ids.amax(axes, keepdim=outputs[0].dim() == ids.dim())]
    if operation is aten.constant_pad_nd:
        narrow, sizes = thin(ids), zip(ids.shape, outputs[0].shape, strict=True)
        if all(narrow.shape[axis] == 1 for axis, (before, after) in enumerate(sizes) if before != after):
            return [narrow.expand(outputs[0].shape)]
    return None


def _meet(identities: Identities, tensors: list[Tensor], known: dict[int, Tensor], output: Tensor) -> Tensor:
    """Element by element: what meets is united."""
    aligned = [(known.get(id(t)), (1,) * (output.dim() - t.dim()) + tuple(t.shape)) for t in tensors]
    narrow = [
        (thin(ids.reshape(shape) if ids.dim() < len(shape) else ids), shape)
        for ids, shape in aligned
        if ids is not None
    ]
    widest = max((ids for ids, _ in narrow), key=Tensor.numel)
    for ids, shape in narrow:
        # One number beside many (a gate for all channels) does not leave with any of them: it stays.
        alone = any(a == 1 < b for a, b in zip(shape, widest.shape, strict=True))
        identities.unite(ids, torch.tensor(FIXED) if alone else widest)
    for unknown, shape in aligned:
        if unknown is None and any(a > 1 and b > 1 for a, b in zip(shape, widest.shape, strict=True)):
            identities.fix(widest)  # a value for each channel, held by nobody whom we could cut
    return widest.expand(output.shape)


def _reshape(identities: Identities, ids: Tensor, shape: Sequence[int]) -> Tensor:
    """Where a reshape splits channels into (groups, channels a group), all groups must lose the same places."""
    if math.prod(shape) != ids.numel():
        return torch.tensor(FIXED).expand(shape)  # another type of the same bytes
    reshaped = ids.reshape(shape)
    before, after = (thin(numbers) for numbers in (ids, reshaped))
    axes = [axis for axis, size in enumerate(after.shape) if size > 1]
    if len(axes) > sum(size > 1 for size in before.shape):
        first = after
        for axis in axes[:-1]:
            first = first.narrow(axis, 0, 1)
        identities.unite(first, after)
    return after.expand(shape)
