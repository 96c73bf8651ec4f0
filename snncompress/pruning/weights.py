"""Pruning of weights: the least important ones are set to zero, and the neurons that this leaves idle are removed.

How many stay is what a target asks for (a quantile of the scores, found by bisection where idle neurons count, too),
what a threshold of the criterion leaves, or what an error budget allows (bisection on validation data). On the way to
a target the network is fine-tuned between rounds; zeros stay zero. Where the mean carries nothing (variance layers),
deviations are pruned and errors are those of averaged samples; neurons stay there.
"""

from __future__ import annotations

import fnmatch
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from snncompress import registry
from snncompress.errors import TargetError, UsageError
from snncompress.evaluation.accuracy import Evaluation
from snncompress.evaluation.sampling import evaluate_samples
from snncompress.measure.cost import count_nonzero
from snncompress.models.layers import weight_layers
from snncompress.noise.attach import Noise
from snncompress.noise.weights import WeightBranch
from snncompress.progress import Progress
from snncompress.pruning.costs import Counts
from snncompress.pruning.coupling import by_family
from snncompress.pruning.dead import Dead, check_exact, outputs
from snncompress.pruning.idle import find_idle, strip
from snncompress.pruning.moments import Moments, weight_moments
from snncompress.pruning.options import WeightOptions
from snncompress.pruning.ranking import Ranking
from snncompress.pruning.session import Session
from snncompress.pruning.subject import Subject
from snncompress.pruning.targets import WORDS, Targets
from snncompress.run_folder import RunFolder
from snncompress.training.batchnorm import reestimate
from snncompress.training.feed import Feed
from snncompress.training.interrupt import Interrupt

KEPT_A_ROUND = 0.8  # of the weights, where fine-tuning follows
CHECKED_BATCHES = 8  # of 250 images: that idle neurons do nothing is known, this checks it
DRAWS = 10  # samples of a network whose mean carries nothing
PRECISION = 0.01  # of the number of weights that an error budget leaves
CRITERIA = "weight-criteria"


def pick_weight_criterion(criterion: str, noise: Noise | None, posterior: Mapping[str, Tensor] | None) -> str:
    """What ``auto`` means: the criterion that reads the distribution of the weights, or the one that needs none."""
    if criterion != "auto":
        registry.load(CRITERIA, criterion)
        return criterion
    if noise is not None and noise.hollow:
        return "sigma"
    if noise is not None and any(isinstance(branch, WeightBranch) for branch in noise.branches.values()):
        return "log-alpha"
    return "spr" if posterior else "magnitude"


class WeightPruner(Session):
    """Pruning of weights: the phases are decide, rounds, recover, final, done.

    ``state`` also holds how many weights there were at first, and how many are to stay.
    """

    def __init__(
        self,
        subject: Subject,
        feed: Feed,
        options: WeightOptions,
        targets: Targets,
        criterion: str,
        folder: RunFolder,
        interrupt: Interrupt,
        progress: Progress,
    ) -> None:
        super().__init__(subject, feed, options, folder, interrupt, progress)
        self.options, self.targets = options, targets
        self.criterion = registry.load(CRITERIA, criterion)
        self.hollow = [] if subject.noise is None else subject.noise.hollow
        self.state |= {
            "phase": "decide", "first": 0, "goal": 0, "rounds": 1, "threshold": None, "removed_neurons": 0,
            "logit_change": 0.0,
        }  # fmt: skip

    def phases(self) -> Mapping[str, Callable[[], str]]:
        """The phases by name."""
        return {"decide": self._decide, "rounds": self._rounds, "recover": self._recover, "final": self._final}

    # --- the phases -----------------------------------------------------------------------------------------

    def _decide(self) -> str:
        """How many weights stay, and in how many rounds the others go."""
        self._begin()
        ranking = self._rank()
        goal = self._goal(ranking)
        rounds = 1
        if self.goals.finetune_steps and self.targets.given() and goal < ranking.alive:
            rounds = math.ceil(math.log(goal / ranking.alive) / math.log(KEPT_A_ROUND))
        self.state |= {"first": ranking.alive, "goal": goal, "rounds": rounds}
        return "rounds"

    def _rounds(self) -> str:
        state = self.state
        self.progress.start("prune", state["rounds"], done=state["round"])
        while state["round"] < state["rounds"] or state["round_step"]:
            if state["round_step"] == 0:
                state["round"] += 1
                self._remove(self._rank())
            if state["rounds"] > 1:
                self._finetune_round()
            self.progress.advance(1, weights=self.cost().size)
            if not self._judge():
                if self.goals.finetune_steps:
                    return "recover"
                self._give_up()
                return "final"
            self._save()
        self.progress.finish()
        return "final"

    # --- which weights --------------------------------------------------------------------------------------

    def _rank(self) -> Ranking:
        """The present weights in the order in which they go."""
        subject = self.subject
        layers = {
            name: layer
            for name, layer in weight_layers(subject.model).items()
            if not any(fnmatch.fnmatch(name, pattern) for pattern in self.goals.keep)
            and (name in self.hollow or not self.hollow)
        }
        if getattr(self.criterion, "NEEDS_DEVIATION", True):
            known = weight_moments(subject.model, subject.noise, subject.posterior)
            moments = {name: known[name] for name in layers if name in known}
        else:
            moments = {name: Moments(layer.weight, layer.weight.new_zeros(())) for name, layer in layers.items()}
        if not moments:
            raise UsageError(
                f"criterion {self.criterion.__name__.rpartition('.')[2].replace('_', '-')} needs a distribution of the "
                "weights: run `snncompress train ... --method sparse-vd` or `--method dropout --posterior sgld:10000` "
                "first, or choose --criterion magnitude"
            )
        with torch.no_grad():
            scores = {name: self.criterion.score(*moments[name]) for name in moments}
        zero = {name: (moments[name].deviation if self.hollow else layers[name].weight) == 0 for name in moments}
        return Ranking(scores, zero, self.options.scope)

    def _goal(self, ranking: Ranking) -> int:
        """How many weights stay."""
        if self.targets.given():
            return self._as_many_as_cost(ranking)
        if self.options.threshold is None and self.goals.limited:
            return self._as_few_as_err(ranking)
        threshold = self.criterion.THRESHOLD if self.options.threshold is None else self.options.threshold
        return max(ranking.least, ranking.above(getattr(self.criterion, "SIGN", 1) * threshold))

    def _as_many_as_cost(self, ranking: Ranking) -> int:
        """The largest number of weights whose cost, once idle neurons are gone, meets the targets."""
        costs: dict[int, Counts] = {}

        def met(stay: int) -> bool:
            costs[stay] = self._cost_of(ranking, stay)
            return not self.targets.missed(costs[stay])

        if not met(ranking.least):
            name = self.targets.missed(costs[ranking.least])[0]
            raise TargetError(
                f"a target of {self.targets.given()[name]:,} {WORDS[name]} cannot be met: with one weight a layer the "
                f"model still has {getattr(costs[ranking.least], name):,}; raise --target-{name}, or keep fewer layers"
            )
        return self._bisect(ranking.least, ranking.alive, met)[0]

    def _as_few_as_err(self, ranking: Ranking) -> int:
        """The smallest number of weights, to a hundredth, whose error is within the budget."""

        def fails(stay: int) -> bool:
            with self._without(ranking.gone(stay)):
                self._refresh()
                result = self._validate()
            assert result is not None  # a limit without validation data was refused
            return result.error > self._limit()

        if not fails(ranking.least):
            return ranking.least
        return self._bisect(ranking.least, ranking.alive, fails, PRECISION)[1]

    def _bisect(self, low: int, high: int, holds: Callable[[int], bool], precision: float = 0.0) -> tuple[int, int]:
        """A number for which something holds that holds for small ones, and one for which it does not: neighbours.

        The middle is the geometric one: at the lower end every weight counts.
        """
        if holds(high):
            return high, high
        self.progress.start("search", math.ceil(math.log2(max(high - low, 2))))
        while high - low > max(1, precision * low):
            middle = min(max(round(math.sqrt(max(low, 1) * high)), low + 1), high - 1)
            low, high = (middle, high) if holds(middle) else (low, middle)
            self.progress.advance()
        self.progress.finish()
        return low, high

    def _cost_of(self, ranking: Ranking, stay: int) -> Counts:
        """What the network would cost with so many weights."""
        with self._without(ranking.gone(stay)):
            if self.hollow:
                return self.cost()
            subject = self.subject
            model, groups = strip(subject.model, subject.groups, subject.norms, subject.input_shape)
            left = by_family(groups)
            widths = {family: len(left.get(family, ())) for family in subject.widths()}
            return replace(subject.costs(widths), size=count_nonzero(model))

    # --- their removal --------------------------------------------------------------------------------------

    def _remove(self, ranking: Ranking) -> None:
        """The weights of this round, and the neurons that do nothing without them."""
        state = self.state
        if state["round"] < state["rounds"]:
            share = state["round"] / state["rounds"]
            stay = round(state["first"] ** (1 - share) * state["goal"] ** share)
        else:  # fine-tuning has changed the scores, and with them which neurons will be idle
            stay = self._goal(ranking) if state["rounds"] > 1 else state["goal"]
        stay = min(stay, ranking.alive)
        state["threshold"] = ranking.threshold(stay)
        self._silence(ranking.gone(stay))
        self._refresh()
        self._remove_idle()
        self.subject.learner.hold_zeros()

    @torch.no_grad()
    def _silence(self, gone: Mapping[str, Tensor]) -> None:
        for name, where in gone.items():
            layer: Any = self.subject.model.get_submodule(name)
            if name in self.hollow:
                assert self.subject.noise is not None
                self.subject.noise.branches[name].silence(layer, where)  # type: ignore[operator]
            else:
                layer.weight.masked_fill_(where, 0.0)

    @contextmanager
    def _without(self, gone: Mapping[str, Tensor]) -> Iterator[None]:
        """The network without some weights, for a while."""
        noise = {} if self.subject.noise is None else self.subject.noise.state_dict()
        tensors = [*self.subject.model.state_dict().values(), *noise.values()]
        before = [tensor.clone() for tensor in tensors]
        self._silence(gone)
        try:
            yield
        finally:
            for tensor, old in zip(tensors, before, strict=True):
                tensor.copy_(old)

    def _remove_idle(self) -> None:
        """Neurons that read nothing or that nobody reads go, with the outputs compared."""
        subject = self.subject
        if self.hollow or not (idle := self._find_idle()).groups:
            return
        before = self._some_outputs()
        while idle.groups:
            subject.remove(idle.groups, idle.constants)
            self.state["removed_neurons"] += len(idle.groups)
            idle = self._find_idle()
        change = check_exact(before, self._some_outputs())
        self.state["logit_change"] = max(change, self.state["logit_change"])

    def _find_idle(self) -> Dead:
        subject = self.subject
        return find_idle(subject.model, subject.groups, subject.norms, subject.input_shape)

    def _some_outputs(self) -> list[Tensor]:
        counter = itertools.count(1)
        return outputs(self.subject.model, self.feed.plain, Progress(), "", lambda: next(counter) < CHECKED_BATCHES)

    # --- what a session asks for ----------------------------------------------------------------------------

    def nonzero(self) -> dict[str, int]:
        """The weights that are left of each layer; deviations, where the mean carries nothing."""
        subject = self.subject
        moments = weight_moments(subject.model, subject.noise, None) if self.hollow else {}
        return {
            name: int((moments[name].deviation if name in self.hollow else layer.weight).count_nonzero())
            for name, layer in weight_layers(subject.model).items()
        }

    def cost(self) -> Counts:
        """What the present model costs; zeros do not count."""
        subject = self.subject
        left = self.nonzero()
        rest = count_nonzero(subject.model) - sum(
            int(layer.weight.count_nonzero()) for layer in weight_layers(subject.model).values()
        )
        return replace(subject.cost(), size=rest + sum(left.values()))

    def _words(self, point: Mapping[str, Any]) -> str:
        return f"{point['size']:,} weights, {point['flops']:,} FLOPs"

    def _refresh(self) -> None:
        if self.hollow:
            with self.subject.noisy():
                reestimate(self.subject.model, self.subject.noise, self.feed.plain)
        else:
            super()._refresh()

    def _validate(self) -> Evaluation | None:
        subject, batches = self.subject, self.feed.validation
        if not self.hollow or batches is None:
            return super()._validate()
        assert subject.noise is not None
        with subject.noisy():
            return evaluate_samples(subject.model, subject.noise, batches, DRAWS).averaged
