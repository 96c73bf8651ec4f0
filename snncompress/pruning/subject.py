"""The network under the knife: a learner whose model shrinks, with its noise and its optimizer."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from snncompress.measure.cost import measure_cost
from snncompress.models.channels import trace_channels
from snncompress.models.shapes import record_shapes, restore
from snncompress.noise.attach import Noise
from snncompress.pruning.compaction import compact
from snncompress.pruning.coupling import Group, find_groups
from snncompress.pruning.targets import FlopsModel
from snncompress.training.learner import Learner, Loss, part
from snncompress.training.options import TrainOptions


class Subject:
    """A model, what is removable of it now, and what is left of the original's neurons.

    Attributes:
        groups: the neurons that can be removed, by their present numbers.
        flops: multiplications as a function of the widths.
        kept: for each layer the original numbers of the neurons that are left.
    """

    def __init__(
        self,
        model: nn.Module,
        noise: Noise | None,
        input_shape: tuple[int, int, int],
        options: TrainOptions,
        loss: Loss | None,
    ) -> None:
        self.input_shape = input_shape
        self.learner = Learner(model, noise, options, loss)
        self.kept: dict[str, list[int]] = {}
        self._look()
        for group in self.groups:
            self.kept.setdefault(group.layer, []).append(group.channel)

    @property
    def model(self) -> nn.Module:
        """The present model, branches attached where there is noise."""
        return self.learner.model

    @property
    def noise(self) -> Noise | None:
        """The present branches."""
        return self.learner.noise

    def widths(self) -> dict[str, int]:
        """How many removable neurons each layer has."""
        return dict(self.flops.widths)

    def cost(self) -> int:
        """The present multiplications."""
        return self.flops(self.flops.widths)

    def _look(self) -> None:
        """Traces the present model."""
        if self.noise is not None:
            self.noise.detach()
        graph = trace_channels(self.model, self.input_shape)
        self.groups = find_groups(graph)
        self.flops = FlopsModel(measure_cost(self.model, self.input_shape), graph, self.groups)
        if self.noise is not None:
            self.noise.attach(self.model)

    def remove(self, groups: Sequence[Group]) -> None:
        """Takes neurons out physically; weights, noise and moments of the others stay."""
        if not groups:
            return
        if self.noise is not None:
            self.noise.detach()
        smaller, cuts = compact(self.model, groups, self.noise)
        self.learner.model = smaller
        self.learner.shrink(cuts)
        for layer in {group.layer for group in groups}:
            present = [group.channel for group in self.groups if group.layer == layer]
            gone = {group.channel for group in groups if group.layer == layer}
            numbers = dict(zip(present, self.kept[layer], strict=True))
            self.kept[layer] = [numbers[channel] for channel in present if channel not in gone]
        self._look()

    def trial(self, groups: Sequence[Group]) -> Learner:
        """A plain copy without these neurons, to be fine-tuned and thrown away."""
        if self.noise is not None:
            self.noise.detach()
        smaller, _ = compact(self.model, groups)
        if self.noise is not None:
            self.noise.attach(self.model)
        return Learner(smaller, None, self.learner.options, self.learner.loss)

    def plain(self) -> nn.Module:
        """A deterministic copy of the present model."""
        if self.noise is not None:
            self.noise.detach()
        model = copy.deepcopy(self.model)
        if self.noise is not None:
            self.noise.attach(self.model)
        return model.eval()

    def drop_noise(self) -> None:
        """Takes the branches off for good; the optimizer starts again."""
        if self.noise is not None:
            self.noise.detach()
            self.learner.noise = None
            self.learner.rebuild()

    def meta(self) -> dict[str, Any]:
        """What the state needs beside the learner's tensors."""
        return {"shapes": record_shapes(self.model), "kept": self.kept, "noisy": self.noise is not None}

    def restore(self, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
        """Sets the network to a saved state."""
        if not meta["noisy"]:
            self.drop_noise()
        if self.noise is not None:
            self.noise.detach()
        restore(self.model, meta["shapes"], part(tensors, "model."))
        self.learner.restore(tensors)
        self.kept = meta["kept"]
        self._look()
