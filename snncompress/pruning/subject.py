"""The network under the knife: a learner whose model shrinks, with its optimizer, and its noise for scoring.

Fine-tuning is without noise unless the user wants it: what is left of a network that shrinks needs all its precision.
The branches shrink along and are attached only while neurons are scored or trained with noise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from snncompress.models.channels import trace_channels
from snncompress.models.layers import match_layers
from snncompress.models.shapes import record_shapes, restore
from snncompress.noise.attach import Noise
from snncompress.noise.branch import Mode
from snncompress.pruning.compaction import compact
from snncompress.pruning.costs import CostModel, Counts, Widths
from snncompress.pruning.coupling import Group, Place, by_family, find_groups, touching, without
from snncompress.pruning.folding import fold
from snncompress.pruning.rehearsal import rigid_families
from snncompress.pruning.scoring import ScoreRequest, rank
from snncompress.pruning.targets import Budget, Targets, make_budget
from snncompress.training.feed import AnyBatches
from snncompress.training.learner import Learner, part

MOMENTS = ("mean", "variance")  # of a sampled posterior


class Subject:
    """A model, what is removable of it now, and what is gone of the original's neurons.

    Attributes:
        learner: the model in training.
        groups: the neurons that can be removed, by their present channels.
        costs: what widths cost.
        norms: the batch norm that follows each layer.
        unprunable: hidden layers that lose no neuron, whatever the target.
        posterior: mean and variance of the weights, where they were sampled; fine-tuning does not change them.
    """

    def __init__(
        self,
        learner: Learner,
        noise: Noise | None,
        input_shape: tuple[int, int, int],
        *,
        keep: Sequence[str] = (),
        posterior: Mapping[str, Tensor] | None = None,
    ) -> None:
        self.learner = learner
        self.noise = noise
        self.input_shape = input_shape
        self.posterior = posterior
        graph = trace_channels(self.model, input_shape)
        groups = find_groups(graph)
        match_layers(keep, graph.layers)  # what is no layer is refused
        fixed = rigid_families(self.model, input_shape, groups) | touching(groups, keep)
        self.original = [group for group in groups if group.family not in fixed]
        self.groups = list(self.original)
        self.costs = CostModel(self.model, input_shape, graph, self.original)
        self.norms = {name: layer.norm for name, layer in graph.layers.items()}
        losing = [members[0] for members in by_family(self.original).values() if len(members) > 1]
        shrinking = {name for group in losing for name, _ in group.outputs}
        self.unprunable = [name for name in graph.layers if name not in shrinking | graph.classifiers]

    @property
    def model(self) -> nn.Module:
        """The present model, plain."""
        return self.learner.model

    def widths(self) -> Widths:
        """How many removable neurons each family has."""
        return {name: len(members) for name, members in by_family(self.groups).items()}

    def cost(self) -> Counts:
        """What the present model costs."""
        return self.costs(self.widths())

    def budget(self, targets: Targets, minimum: int, round_to: int) -> Budget:
        """The widths that the present model can come down to."""
        channels = {name: _channels(members[0]) for name, members in by_family(self.groups).items()}
        return make_budget(self.costs, targets, self.widths(), channels, minimum, round_to)

    @contextmanager
    def noisy(self) -> Iterator[None]:
        """With the noise attached, if there is any."""
        if self.noise is not None:
            self.noise.attach(self.model)
        try:
            yield
        finally:
            if self.noise is not None:
                self.noise.detach()

    def tuning(self) -> AbstractContextManager[None]:
        """As fine-tuning wants it: with the noise if the learner learns it."""
        return nullcontext() if self.learner.noise is None else self.noisy()

    def settle(self) -> None:
        """Makes the plain weights those of the noise's mean, where both have been fine-tuned."""
        if self.learner.noise is not None:
            with self.noisy():
                self.learner.noise.settle()

    def rank(self, criterion: str, batches: AnyBatches, count: int) -> dict[Group, float]:
        """The importance of the present neurons."""
        with self.noisy(), nullcontext() if self.noise is None else self.noise.mode(Mode.MEAN):
            request = ScoreRequest(
                self.model, self.noise, batches, count, self.groups, self.norms, self.posterior, self.learner.loss
            )
            return rank(criterion, request)

    def remove(self, groups: Sequence[Group], constants: Mapping[Place, float] | None = None) -> None:
        """Takes neurons out physically; weights, noise and moments of the others stay.

        Args:
            groups: some of the present ones.
            constants: what they always gave, by (layer, input), to be folded into the layers that read it.
        """
        if not groups:
            return
        fold(self.model, constants or {}, self.norms)
        smaller, cuts = compact(self.model, groups, self.noise)
        self.learner.model = smaller
        self.learner.shrink(cuts)
        if self.posterior is not None:
            cut = {f"{name.removeprefix('model.')}.{moment}": f for name, f in cuts.items() for moment in MOMENTS}
            self.posterior = {name: cut.get(name, torch.clone)(values) for name, values in self.posterior.items()}
        self.groups = without(self.groups, groups)

    def present_posterior(self) -> dict[str, Tensor] | None:
        """Variances as they were sampled, with the present weights as means."""
        if self.posterior is None:
            return None
        means = {f"{name}.mean": weight.detach().cpu().clone() for name, weight in self.model.named_parameters()}
        return {name: means.get(name, values) for name, values in self.posterior.items()}

    def trial(self, groups: Sequence[Group]) -> Learner:
        """A plain copy without these neurons, to be fine-tuned and thrown away."""
        smaller, _ = compact(self.model, groups)
        return Learner(
            smaller, None, self.learner.options, self.learner.loss, self.learner.teacher,
            sparse=self.learner.sparse, task=self.learner.task,
        )  # fmt: skip

    def kept(self) -> dict[str, list[int]]:
        """For each layer that can lose channels, the original numbers of those that are left."""
        left = {group.number for group in self.groups}
        kept: dict[str, list[int]] = {}
        for group in self.original:
            for layer, channel in group.outputs:
                numbers = kept.setdefault(layer, [])
                if group.number in left:
                    numbers.append(channel)
        return {layer: sorted(numbers) for layer, numbers in kept.items()}

    def tensors(self) -> dict[str, Tensor]:
        """All tensors that a resumed run needs."""
        noise = {} if self.noise is None else self.noise.state_dict()
        posterior = {f"posterior.{name}": values for name, values in (self.posterior or {}).items()}
        return {**self.learner.tensors(), **{f"noise.{name}": t for name, t in noise.items()}, **posterior}

    def meta(self) -> dict[str, Any]:
        """What the state needs beside the tensors."""
        return {"shapes": record_shapes(self.model), "left": [group.number for group in self.groups]}

    def restore(self, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
        """Sets the network to a saved state."""
        restore(self.model, meta["shapes"], part(tensors, "model."))
        if self.noise is not None:
            self.noise.load_state_dict(part(tensors, "noise."))
        self.learner.restore(tensors)
        self.posterior = part(tensors, "posterior.") or None
        left = set(meta["left"])
        self.groups = without(self.original, [group for group in self.original if group.number not in left])


def _channels(group: Group) -> int:
    """How many channels of its first layer a neuron has."""
    first = group.outputs[0][0]
    return sum(name == first for name, _ in group.outputs)
