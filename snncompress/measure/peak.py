"""The peak memory of a forward pass: bytes of all tensors that are alive at once.

Inputs, outputs and everything between are counted, each storage once however many views it has; weights are not, nor is
the scratch space of single operators. It is torch's own order of work, one operator after the other; a runtime that
fuses operators needs less.
"""

from __future__ import annotations

import copy
import itertools
import weakref
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from snncompress.measure.trace import copy_to_meta
from snncompress.models.modes import evaluating


def measure_peak_bytes(model: nn.Module, input_shape: tuple[int, int, int], batch: int = 1) -> int:
    """The most bytes that a forward pass of a batch holds at once, by the convention above.

    Nothing is computed: the pass is one of shapes, on the ``meta`` device, but for models that cannot run there.

    Args:
        model: A plain model; it is not touched.
        input_shape: Channels, height and width of its images.
        batch: How many images.
    """
    try:
        return _run(copy_to_meta(model), torch.zeros(batch, *input_shape, device="meta"))
    except Exception:  # whatever a user's forward may raise: it looks at values
        return _run(copy.deepcopy(model).cpu(), torch.zeros(batch, *input_shape))


def _run(model: nn.Module, images: Tensor) -> int:
    watch = _Watch(model)
    watch.see(images)
    with evaluating(model), watch:
        model(images)
    return watch.peak


class _Watch(TorchDispatchMode):
    """Sees every tensor that an operator makes, and when its storage is given back."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        tensors = itertools.chain(model.parameters(), model.buffers())
        # The storages themselves are held: what is given back may come again under the same address.
        self.weights = {storage._cdata: storage for storage in (tensor.untyped_storage() for tensor in tensors)}
        self.alive: dict[int, int] = {}
        self.now = self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(output):
            if isinstance(leaf, Tensor):
                self.see(leaf)
        return output

    def see(self, tensor: Tensor) -> None:
        """Counts a tensor's storage from now until it is given back."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self.weights or key in self.alive:
            return
        self.alive[key] = storage.nbytes()
        self.now += self.alive[key]
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._forget, key).atexit = False

    def _forget(self, key: int) -> None:
        self.now -= self.alive.pop(key)
