"""Pruning of weights: the least important ones are set to zero, and the neurons that this leaves idle are removed.

How many stay is what a target asks for (a quantile of the scores, found by bisection where idle neurons count, too),
what a threshold of the criterion leaves, or what an error budget allows (bisection on validation data). On the way to
a target the network is fine-tuned between rounds; zeros stay zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from snncompress import registry
from snncompress.errors import TargetError
from snncompress.evaluation.accuracy import Evaluation
from snncompress.progress import Progress
from snncompress.pruning.costs import Counts
from snncompress.pruning.options import Scope, WeightOptions
from snncompress.pruning.ranking import Ranking
from snncompress.pruning.session import Session
from snncompress.pruning.sparsifier import CRITERIA, Sparsifier
from snncompress.pruning.subject import Subject
from snncompress.pruning.targets import WORDS, Targets
from snncompress.run_folder import RunFolder
from snncompress.training.feed import Feed

KEPT_A_ROUND = 0.8  # of the weights, where fine-tuning follows
PRECISION = 0.01  # of the number of weights that an error budget leaves
TOLD = ("threshold", "removed_neurons", "logit_change")  # of the state, in the plan


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
        progress: Progress,
    ) -> None:
        super().__init__(subject, feed, options, folder, progress)
        self.options, self.targets, self.criterion = options, targets, criterion
        self.sparsifier = Sparsifier(subject, feed)
        self.state |= {
            "phase": "decide", "first": 0, "goal": 0, "rounds": 1, "threshold": None, "removed_neurons": 0,
            "logit_change": 0.0, "good_told": {},
        }  # fmt: skip

    def phases(self) -> Mapping[str, Callable[[], str]]:
        """The phases by name."""
        return {"decide": self._decide, "rounds": self._rounds, "recover": self._recover, "final": self._final}

    # --- the phases -----------------------------------------------------------------------------------------

    def decide(self) -> tuple[Ranking, int]:
        """The weights in the order in which they go, and how many of them stay."""
        self._begin()
        ranking = self._rank()
        return ranking, self._goal(ranking)

    def _decide(self) -> str:
        """In how many rounds weights go."""
        ranking, goal = self.decide()
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

    # --- how many weights -----------------------------------------------------------------------------------

    def _rank(self) -> Ranking:
        return self.sparsifier.rank(self.criterion, self.goals.keep, self.options.scope)

    def _goal(self, ranking: Ranking) -> int:
        """How many weights stay."""
        if self.targets.given():
            return self._most_that_cost_little(ranking)
        if self.options.threshold is None and self.goals.limited:
            return self._fewest_that_err_little(ranking)
        module = registry.load(CRITERIA, self.criterion)
        threshold = module.THRESHOLD if self.options.threshold is None else self.options.threshold
        return max(ranking.least, ranking.above(getattr(module, "SIGN", 1) * threshold))

    def _most_that_cost_little(self, ranking: Ranking) -> int:
        """The largest number of weights whose cost, once idle neurons are gone, meets the targets."""
        costs: dict[int, Counts] = {}

        def met(stay: int) -> bool:
            costs[stay] = self.sparsifier.cost_of(ranking, stay)
            return not self.targets.missed(costs[stay])

        if not met(ranking.least):
            name = self.targets.missed(costs[ranking.least])[0]
            raise TargetError(
                f"a target of {self.targets.given()[name]:,} {WORDS[name]} cannot be met: with one weight a layer the "
                f"model still has {getattr(costs[ranking.least], name):,}; raise --target-{name}, or keep fewer layers"
            )
        return self._bisect(ranking.least, ranking.alive, met)[0]

    def _fewest_that_err_little(self, ranking: Ranking) -> int:
        """The smallest number of weights, to a hundredth, whose error is within the budget."""

        def fails(stay: int) -> bool:
            return self.sparsifier.error_of(ranking, stay) > self._limit()

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

    def _remove(self, ranking: Ranking) -> None:
        """The weights of this round, and the neurons that do nothing without them."""
        state = self.state
        if state["round"] < state["rounds"]:
            share = state["round"] / state["rounds"]
            stay = round(state["first"] ** (1 - share) * state["goal"] ** share)
        else:  # fine-tuning has changed the scores, and with them which neurons will be idle
            stay = self._goal(ranking) if state["rounds"] > 1 or self._draws() else state["goal"]
        self._take_all_but(min(stay, ranking.alive), ranking)
        # New statistics of batch norms make other constants of silent neurons, which not every reader can take.
        while state["round"] == state["rounds"] and self.targets.missed(self.cost()):
            ranking = self._rank()
            self._take_all_but(min(self._goal(ranking), ranking.alive - 1), ranking)
        self.subject.learner.hold_zeros()

    def threshold(self, ranking: Ranking, stay: int) -> float | None:
        """The score of the criterion, as ``--threshold`` takes it, that is the last to stay; None if there is none."""
        value = ranking.threshold(stay)
        if self.options.scope is Scope.LAYER or math.isinf(value):  # each layer has its own; only the best are left
            return None
        return value * getattr(registry.load(CRITERIA, self.criterion), "SIGN", 1)

    def _draws(self) -> bool:
        """Whether the criterion gives other scores every time."""
        return getattr(registry.load(CRITERIA, self.criterion), "DRAWS", False)

    def _take_all_but(self, stay: int, ranking: Ranking) -> None:
        state = self.state
        state["threshold"] = self.threshold(ranking, stay)
        self.sparsifier.silence(ranking.gone(stay))
        self._refresh()
        count, change = self.sparsifier.remove_idle()
        state["removed_neurons"] += count
        state["logit_change"] = max(change, state["logit_change"])

    # --- what a session asks for ----------------------------------------------------------------------------

    def cost(self) -> Counts:
        """What the present model costs; zeros do not count."""
        return self.sparsifier.cost()

    def _judge(self) -> bool:
        judged = super()._judge()
        if self.state["good_point"] is self.state["points"][-1]:
            self.state["good_told"] = {key: self.state[key] for key in TOLD}
        return judged

    def _give_up(self) -> None:
        super()._give_up()
        self.state |= self.state["good_told"]

    def _words(self, point: Mapping[str, Any]) -> str:
        return f"{point['size']:,} weights, {point['flops']:,} FLOPs"

    def _refresh(self) -> None:
        self.sparsifier.refresh()

    def _validate(self) -> Evaluation | None:
        return self.sparsifier.validate()
