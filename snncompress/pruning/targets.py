"""Targets as people write them, and what a model of given widths will cost."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

from snncompress.errors import TargetError
from snncompress.measure.cost import Cost
from snncompress.models.channels import ChannelGraph
from snncompress.pruning.coupling import Group

UNITS = {"": 1, "k": 1e3, "m": 1e6, "g": 1e9}
TARGET = re.compile(r"^\s*([0-9]*\.?[0-9]+(?:e[0-9]{1,2})?)\s*([kmg]?|%)\s*$", re.IGNORECASE)


def parse_target(text: str, original: int, option: str = "--target-flops") -> int:
    """``60k``, ``0.06M``, ``60000``, or ``5%`` of the original model's count."""
    match = TARGET.match(text)
    if match is None:
        raise TargetError(f"{option} '{text}' is not a number; write 60k, 0.06M, 60000 or 5%")
    number, unit = float(match[1]), match[2].lower()
    value = number / 100 * original if unit == "%" else number * UNITS[unit]
    if value <= 0:
        raise TargetError(f"{option} {text} leaves nothing; give a number above 0")
    return int(value + 1e-6)  # 0.061M is 60,999.999… in binary


class FlopsModel:
    """Multiplications as a function of the widths, without building anything.

    A layer costs what it cost at full width, times the kept share of its outputs, times the kept share of its
    inputs. What belongs to no layer (attention's products) is constant.
    """

    def __init__(self, cost: Cost, graph: ChannelGraph, groups: Sequence[Group]) -> None:
        full = {layer.name: layer.flops for layer in cost.layers}
        self.widths: dict[str, int] = defaultdict(int)  # removable neurons of each layer
        slots: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))  # reader: maker: inputs
        for group in groups:
            self.widths[group.layer] += 1
            for reader, _ in group.inputs:
                slots[reader][group.layer] += 1
        self.constant = cost.flops - sum(full.get(name, 0) for name in graph.layers)
        self.layers = []  # (flops for one output and one input, name, fixed outputs, fixed inputs, inputs a neuron)
        for name, layer in graph.layers.items():
            outs, ins = len(layer.made), len(layer.read)
            fixed_inputs = ins - sum(slots[name].values())
            per_neuron = {maker: count / self.widths[maker] for maker, count in slots[name].items()}
            unit = full.get(name, 0) / (outs * ins)
            self.layers.append((unit, name, outs - self.widths.get(name, 0), fixed_inputs, per_neuron))

    def __call__(self, widths: Mapping[str, int]) -> int:
        """Multiplications when ``widths`` neurons are left of each layer that has removable ones."""
        total = float(self.constant)
        for unit, name, fixed_outputs, fixed_inputs, per_neuron in self.layers:
            outs = fixed_outputs + widths.get(name, 0)
            ins = fixed_inputs + sum(count * widths[maker] for maker, count in per_neuron.items())
            total += unit * outs * ins
        return round(total)

    def least(self) -> int:
        """The cost with one neuron in each layer."""
        return self(dict.fromkeys(self.widths, 1))
