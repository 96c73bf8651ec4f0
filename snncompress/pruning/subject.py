"""The network under the knife: a plain learner whose model shrinks, with its optimizer, and its noise for scoring.

Fine-tuning is without noise: what is left of a network that shrinks needs all its precision. The branches shrink
along and are attached only while neurons are scored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from snncompress.measure.cost import measure_cost
from snncompress.models.channels import ChannelGraph, trace_channels
from snncompress.models.shapes import record_shapes, restore
from snncompress.noise.attach import Noise
from snncompress.pruning.compaction import compact
from snncompress.pruning.coupling import Group, find_groups
from snncompress.pruning.rehearsal import rigid_layers
from snncompress.pruning.scoring import ScoreRequest, rank
from snncompress.pruning.targets import FlopsModel
from snncompress.training.feed import AnyBatches
from snncompress.training.learner import Learner, Loss, part
from snncompress.training.options import TrainOptions


class Subject:
    """A model, what is removable of it now, and what is left of the original's neurons.

    Attributes:
        groups: the neurons that can be removed, by their present numbers.
        flops: multiplications as a function of the widths.
        rigid: the layers whose width the model's code depends on; they stay as they are.
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
        self.noise = noise
        self.learner = Learner(model, None, options, loss)
        self.kept: dict[str, list[int]] = {}
        graph = trace_channels(model, input_shape)
        self.rigid = rigid_layers(model, input_shape, graph, find_groups(graph))
        self._look(graph)
        for group in self.groups:
            self.kept.setdefault(group.layer, []).append(group.channel)

    @property
    def model(self) -> nn.Module:
        """The present model, plain."""
        return self.learner.model

    def widths(self) -> dict[str, int]:
        """How many removable neurons each layer has."""
        return dict(self.flops.widths)

    def cost(self) -> int:
        """The present multiplications."""
        return self.flops(self.flops.widths)

    def _look(self, graph: ChannelGraph) -> None:
        """Reads what can be removed, and the cost, from the channel graph of the present model."""
        self.groups = [group for group in find_groups(graph) if group.layer not in self.rigid]
        self.flops = FlopsModel(measure_cost(self.model, self.input_shape), graph, self.groups)

    def rank(self, criterion: str, batches: AnyBatches, count: int) -> dict[Group, float]:
        """The importance of the present neurons, by their noise where the criterion asks for it."""
        if self.noise is not None:
            self.noise.attach(self.model)
        try:
            return rank(criterion, ScoreRequest(self.model, self.noise, batches, count), self.groups)
        finally:
            if self.noise is not None:
                self.noise.detach()

    def remove(self, groups: Sequence[Group]) -> None:
        """Takes neurons out physically; weights, noise and moments of the others stay."""
        if not groups:
            return
        smaller, cuts = compact(self.model, groups, self.noise)
        self.learner.model = smaller
        self.learner.shrink(cuts)
        for layer in {group.layer for group in groups}:
            present = [group.channel for group in self.groups if group.layer == layer]
            gone = {group.channel for group in groups if group.layer == layer}
            numbers = dict(zip(present, self.kept[layer], strict=True))
            self.kept[layer] = [numbers[channel] for channel in present if channel not in gone]
        self._look(trace_channels(self.model, self.input_shape))

    def trial(self, groups: Sequence[Group]) -> Learner:
        """A copy without these neurons, to be fine-tuned and thrown away."""
        smaller, _ = compact(self.model, groups)
        return Learner(smaller, None, self.learner.options, self.learner.loss)

    def tensors(self) -> dict[str, Tensor]:
        """All tensors that a resumed run needs."""
        noise = {} if self.noise is None else self.noise.state_dict()
        return {**self.learner.tensors(), **{f"noise.{name}": tensor for name, tensor in noise.items()}}

    def meta(self) -> dict[str, Any]:
        """What the state needs beside the tensors."""
        kept = {layer: list(numbers) for layer, numbers in self.kept.items()}  # ours goes on changing
        return {"shapes": record_shapes(self.model), "kept": kept}

    def restore(self, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
        """Sets the network to a saved state."""
        restore(self.model, meta["shapes"], part(tensors, "model."))
        self.learner.restore(tensors)
        if self.noise is not None:
            self.noise.load_state_dict(part(tensors, "noise."))
        self.kept = {layer: list(numbers) for layer, numbers in meta["kept"].items()}
        self._look(trace_channels(self.model, self.input_shape))
