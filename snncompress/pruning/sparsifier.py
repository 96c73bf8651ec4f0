"""A network whose weights can be set to zero: their order, what is left of them, and what that costs.

Where the mean carries nothing (variance layers), deviations are the weights, and errors are those of averaged samples;
neurons stay there.
"""

from __future__ import annotations

import fnmatch
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from snncompress import registry
from snncompress.errors import UsageError
from snncompress.evaluation.accuracy import Evaluation
from snncompress.evaluation.sampling import evaluate_samples
from snncompress.measure.cost import count_nonzero
from snncompress.models.layers import weight_layers
from snncompress.noise.attach import Noise
from snncompress.noise.branch import Clock
from snncompress.noise.weights import WeightBranch
from snncompress.progress import Progress
from snncompress.pruning.costs import Counts
from snncompress.pruning.coupling import by_family
from snncompress.pruning.dead import Dead, check_exact, outputs
from snncompress.pruning.idle import find_idle, strip
from snncompress.pruning.moments import Moments, weight_moments
from snncompress.pruning.options import Scope
from snncompress.pruning.ranking import Ranking
from snncompress.pruning.subject import Subject
from snncompress.training.batchnorm import reestimate
from snncompress.training.epoch_end import validate
from snncompress.training.feed import Feed, count_examples

CRITERIA = "weight-criteria"
CHECKED_BATCHES = 8  # of 250 images: that idle neurons do nothing is known, this checks it
DRAWS = 10  # samples of a network whose mean carries nothing


def pick_weight_criterion(criterion: str, noise: Noise | None, posterior: Mapping[str, Tensor] | None) -> str:
    """What ``auto`` means: the criterion that reads the distribution of the weights, or the one that needs none."""
    if criterion != "auto":
        registry.load(CRITERIA, criterion)  # an unknown name is refused
        return criterion
    if noise is not None and noise.hollow:
        return "sigma"
    if noise is not None and any(isinstance(branch, WeightBranch) for branch in noise.branches.values()):
        return "log-alpha"
    return "spr" if posterior else "magnitude"


class Sparsifier:
    """A network that loses weights.

    Args:
        subject: the network.
        feed: its data.
    """

    def __init__(self, subject: Subject, feed: Feed) -> None:
        self.subject, self.feed = subject, feed
        self.hollow = [] if subject.noise is None else subject.noise.hollow
        if subject.noise is not None:
            subject.noise.tell(Clock(math.inf, count_examples(feed.train)))  # any warm-up is over

    # --- which weights --------------------------------------------------------------------------------------

    @torch.no_grad()
    def rank(self, criterion: str, keep: Sequence[str] = (), scope: Scope = Scope.GLOBAL) -> Ranking:
        """The present weights in the order in which they go.

        Args:
            criterion: a name that ``snncompress list weight-criteria`` shows.
            keep: names or globs of layers that lose nothing.
            scope: which weights compete.
        """
        layers = {
            name: layer
            for name, layer in weight_layers(self.subject.model).items()
            if not any(fnmatch.fnmatch(name, pattern) for pattern in keep) and (name in self.hollow or not self.hollow)
        }
        module = registry.load(CRITERIA, criterion)
        if getattr(module, "NEEDS_DEVIATION", True):
            known = self._moments()
            moments = {name: known[name] for name in layers if name in known}
        else:
            moments = {name: Moments(layer.weight, layer.weight.new_zeros(())) for name, layer in layers.items()}
        if not moments:
            raise UsageError(
                f"criterion {criterion} needs a distribution of the weights: run `snncompress train ... --method "
                "sparse-vd` or `--method dropout --posterior sgld:10000` first, or choose --criterion magnitude"
            )
        scores = {name: module.score(*moments[name]) for name in moments}
        zero = {name: (moments[name].deviation if self.hollow else layers[name].weight) == 0 for name in moments}
        return Ranking(scores, zero, scope)

    def _moments(self) -> dict[str, Moments]:
        return weight_moments(self.subject.model, self.subject.noise, self.subject.posterior)

    # --- their removal --------------------------------------------------------------------------------------

    @torch.no_grad()
    def silence(self, gone: Mapping[str, Tensor]) -> None:
        """Sets weights to zero."""
        for name, where in gone.items():
            layer: Any = self.subject.model.get_submodule(name)
            if name in self.hollow:
                assert self.subject.noise is not None
                self.subject.noise.branches[name].silence(layer, where)
            else:
                layer.weight.masked_fill_(where, 0.0)

    @contextmanager
    def without(self, gone: Mapping[str, Tensor]) -> Iterator[None]:
        """The network without some weights, for a while."""
        noise = {} if self.subject.noise is None else self.subject.noise.state_dict()
        tensors = [*self.subject.model.state_dict().values(), *noise.values()]
        before = [tensor.clone() for tensor in tensors]
        self.silence(gone)
        try:
            yield
        finally:
            for tensor, old in zip(tensors, before, strict=True):
                tensor.copy_(old)

    def remove_idle(self) -> tuple[int, float]:
        """Neurons that read nothing or that nobody reads go: how many, and by how much that changed a logit."""
        if self.hollow or not (idle := self._find_idle()).groups:
            return 0, 0.0
        before, count = self._some_outputs(), 0
        while idle.groups:
            self.subject.remove(idle.groups, idle.constants)
            count += len(idle.groups)
            idle = self._find_idle()
        return count, check_exact(before, self._some_outputs())

    def _find_idle(self) -> Dead:
        subject = self.subject
        return find_idle(subject.model, subject.groups, subject.norms, subject.input_shape)

    def _some_outputs(self) -> list[Tensor]:
        counter = itertools.count(1)
        return outputs(self.subject.model, self.feed.plain, Progress(), "", lambda: next(counter) < CHECKED_BATCHES)

    # --- what is left ---------------------------------------------------------------------------------------

    def nonzero(self) -> dict[str, int]:
        """The weights that are left of each layer."""
        moments = self._moments() if self.hollow else {}
        return {
            name: int((moments[name].deviation if name in self.hollow else layer.weight).count_nonzero())
            for name, layer in weight_layers(self.subject.model).items()
        }

    def cost(self) -> Counts:
        """What the present model costs; zeros do not count."""
        model = self.subject.model
        plain = sum(int(layer.weight.count_nonzero()) for layer in weight_layers(model).values())
        return replace(self.subject.cost(), size=count_nonzero(model) - plain + sum(self.nonzero().values()))

    def cost_of(self, ranking: Ranking, stay: int) -> Counts:
        """What the network would cost with so many weights, once idle neurons are gone."""
        with self.without(ranking.gone(stay)):
            if self.hollow:
                return self.cost()
            subject = self.subject
            model, groups = strip(subject.model, subject.groups, subject.norms, subject.input_shape)
            left = by_family(groups)
            widths = {family: len(left.get(family, ())) for family in subject.widths()}
            return replace(subject.costs(widths), size=count_nonzero(model))

    def error_of(self, ranking: Ranking, stay: int) -> float:
        """The validation error that the network would have with so many weights."""
        with self.without(ranking.gone(stay)):
            self.refresh()
            result = self.validate()
        assert result is not None, "there is no validation data"
        return result.error

    def refresh(self) -> None:
        """Gathers the statistics of batch norms again."""
        with self.subject.noisy() if self.hollow else nullcontext():
            reestimate(self.subject.model, self.subject.noise if self.hollow else None, self.feed.norms)

    def validate(self) -> Evaluation | None:
        """How good the present model is; None without validation data."""
        subject, batches = self.subject, self.feed.validation
        if not self.hollow or batches is None:
            return validate(subject.model, None, batches)
        assert subject.noise is not None
        with subject.noisy():
            return evaluate_samples(subject.model, subject.noise, batches, DRAWS).averaged
