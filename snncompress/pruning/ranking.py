"""The order in which weights go."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from snncompress.pruning.options import Scope


class Ranking:
    """All weights of some layers, the least important first.

    Those that are zero already come before all others; the most important one of each layer never goes, so that no
    layer is pruned to nothing.

    Args:
        scores: of every weight, by layer.
        zero: which of them are zero already.
        scope: ``layer`` compares a weight with those of its layer only, so that each loses the same share.
    """

    def __init__(self, scores: Mapping[str, Tensor], zero: Mapping[str, Tensor], scope: Scope) -> None:
        keys = {}
        for name, score in scores.items():
            key = score.detach().float().masked_fill(zero[name], -torch.inf).flatten()
            best = len(key) - 1 - int(key.flip(0).argmax())  # of equal ones the last, which the order has at its end
            if scope is Scope.LAYER:
                key = (_ranks(key) + 0.5) / len(key)
                key = key.masked_fill(zero[name].flatten(), -torch.inf)
            if not bool(zero[name].flatten()[best]):
                key[best] = torch.inf
            keys[name] = key
        self.shapes = {name: score.shape for name, score in scores.items()}
        self._keys = torch.cat(list(keys.values()))
        self._ranks = _ranks(self._keys)
        self.total = len(self._keys)
        self.zeros = int((self._keys == -torch.inf).sum())
        self.least = int((self._keys == torch.inf).sum())  # how many stay in any case

    @property
    def alive(self) -> int:
        """How many are not zero yet."""
        return self.total - self.zeros

    def above(self, threshold: float) -> int:
        """How many have at least this score; those that never go are among them."""
        return int((self._keys >= threshold).sum())

    def threshold(self, stay: int) -> float:
        """The least score that is kept when ``stay`` weights stay; those that never go have none."""
        kept = self._keys[self._ranks >= self.total - stay]
        finite = kept[kept != torch.inf]
        return float(finite.min()) if len(finite) else float("inf")

    def gone(self, stay: int) -> dict[str, Tensor]:
        """Which weights are zero when ``stay`` of them stay."""
        gone = (self._ranks < self.total - stay).split([shape.numel() for shape in self.shapes.values()])
        return {name: part.view(shape) for (name, shape), part in zip(self.shapes.items(), gone, strict=True)}


def _ranks(keys: Tensor) -> Tensor:
    """The place of each value among all, 0 for the least; equal ones in their order."""
    order = keys.argsort(stable=True)
    ranks = torch.empty_like(order)
    ranks[order] = torch.arange(len(keys), device=keys.device)
    return ranks
