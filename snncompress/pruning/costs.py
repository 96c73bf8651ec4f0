"""What a model of given widths will cost, without building anything.

A layer with o outputs and i inputs costs a·o·i + b·o + c·i: its multiplications and weights grow with both, its
biases and its feature map with the outputs, the map that the first linear layer reads with the inputs. Whole groups
leave a grouped convolution, so that it costs b·o. o and i are linear in the widths of the families (``coupling.py``).
What belongs to no layer that can lose anything (attention's products) is constant. Weights that are zero count:
fine-tuning fills them, and the target is to hold then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from torch import nn

from snncompress.measure.cost import LayerCost, measure_cost
from snncompress.models.channels import ChannelGraph
from snncompress.pruning.coupling import Group, by_family

Widths = dict[str, int]  # how many neurons of each family


@dataclass(frozen=True)
class Counts:
    """Multiplications, weights, floats of hidden feature maps."""

    flops: int
    size: int
    memory: int


@dataclass
class _Term:
    """One module: its channels, what each costs, and how many of them a neuron of each family holds."""

    outs: int
    ins: int
    pair: tuple[float, float, float]  # (flops, size, memory) for one output and one input
    out: tuple[float, float, float]  # for one output
    inp: tuple[float, float, float]  # for one input
    out_share: Mapping[str, int]
    in_share: Mapping[str, int]


class CostModel:
    """Counts as a function of the widths.

    Attributes:
        full: how many neurons each family has in the model that it was made of.
    """

    def __init__(
        self, model: nn.Module, input_shape: tuple[int, int, int], graph: ChannelGraph, groups: Sequence[Group]
    ) -> None:
        cost = measure_cost(model, input_shape)
        families = by_family(groups)
        self.full: Widths = {name: len(members) for name, members in families.items()}
        terms = list(_terms(model, {layer.name: layer for layer in cost.layers}, graph, families))
        total = np.array([cost.flops, cost.parameters, cost.memory], dtype=float)

        def column(name: str) -> np.ndarray:
            return np.array([getattr(term, name) for term in terms], dtype=float).reshape(len(terms), -1)

        self._outs, self._ins = column("outs")[:, 0], column("ins")[:, 0]
        self._pair, self._out, self._inp = column("pair").T, column("out").T, column("inp").T  # (3, terms)
        self._lost_outs = np.array([[t.out_share.get(name, 0) for name in self.full] for t in terms], dtype=float)
        self._lost_ins = np.array([[t.in_share.get(name, 0) for name in self.full] for t in terms], dtype=float)
        self._constant = np.zeros(3)
        self._constant = total - self._total(np.zeros(len(self.full)))

    def _total(self, lost: np.ndarray) -> np.ndarray:
        if not len(self._outs):
            return self._constant
        outs, ins = self._outs - self._lost_outs @ lost, self._ins - self._lost_ins @ lost
        total: np.ndarray = self._constant + self._pair @ (outs * ins) + self._out @ outs + self._inp @ ins
        return total

    def __call__(self, widths: Mapping[str, int]) -> Counts:
        """The cost when ``widths`` neurons are left of each family."""
        lost = np.array([full - widths[name] for name, full in self.full.items()], dtype=float)
        return Counts(*(round(float(value)) for value in self._total(lost)))


def _terms(
    model: nn.Module,
    costs: Mapping[str, LayerCost],
    graph: ChannelGraph,
    families: Mapping[str, Sequence[Group]],
) -> Iterator[_Term]:
    shares = {
        name: tuple(Counter(place for place, _ in kind) for kind in members[0].places)
        for name, members in families.items()
    }

    def share(kind: int, module: str) -> dict[str, int]:
        return {family: counts[kind][module] for family, counts in shares.items() if counts[kind][module]}

    nothing = (0.0, 0.0, 0.0)
    for name, layer in graph.layers.items():
        if (cost := costs.get(name)) is None:
            continue
        outs, ins = len(layer.made), len(layer.read)
        module = model.get_submodule(name)
        matrix = min(module.weight.numel(), cost.parameters)  # type: ignore[operator]  # 0 where another holds it
        biases, hidden = (cost.parameters - matrix) / outs, (cost.memory - cost.memory_read) / outs
        products = cost.flops / outs, matrix / outs
        read = (0.0, 0.0, cost.memory_read / ins)
        if getattr(module, "groups", 1) > 1:
            out = (products[0], products[1] + biases, hidden)
            yield _Term(outs, ins, nothing, out, read, share(0, name), share(2, name))
        else:
            pair = (products[0] / ins, products[1] / ins, 0.0)
            yield _Term(outs, ins, pair, (0.0, biases, hidden), read, share(0, name), share(2, name))
    for name, ids in graph.norms.items():
        if (cost := costs.get(name)) is not None:
            yield _Term(len(ids), 0, nothing, (0.0, cost.parameters / len(ids), 0.0), nothing, share(1, name), {})
