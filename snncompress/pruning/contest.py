"""Which allocation to aim at: short trials on validation data decide (``allocation.py`` says between what)."""

from __future__ import annotations

from collections.abc import Callable

import torch

from snncompress.progress import Progress
from snncompress.pruning.allocation import compete, propose, sensitivity_rates, shrink_to, trials_of
from snncompress.pruning.costs import Widths
from snncompress.pruning.coupling import Group, by_family
from snncompress.pruning.masking import masked
from snncompress.pruning.options import Allocation, PruneOptions
from snncompress.pruning.scoring import least_important
from snncompress.pruning.subject import Subject
from snncompress.pruning.targets import Budget
from snncompress.training.batchnorm import reestimate
from snncompress.training.epoch_end import validate
from snncompress.training.feed import Cursor, Feed
from snncompress.training.learner import Learner

Ranked = dict[Group, float]


class Contest:
    """Allocations of one network; trials that a resumed run knows already are not tried again.

    Args:
        subject: the network.
        feed: its data.
        options: which allocations, how many, how long.
        trials: validation losses by steps and widths, which grow.
        save: is called after each trial.
        progress: is told what happens.
    """

    def __init__(
        self,
        subject: Subject,
        feed: Feed,
        options: PruneOptions,
        trials: dict[str, float],
        save: Callable[[], None],
        progress: Progress,
    ) -> None:
        self.subject, self.feed, self.options = subject, feed, options
        self.trials, self.save, self.progress = trials, save, progress

    def decide(self, budget: Budget, ranked: Ranked) -> Widths:
        """The widths to aim at."""
        bases = [dict.fromkeys(budget.full, 1.0)]
        if self.options.allocation is Allocation.SENSITIVITY or self.options.contested:
            bases.append(self._sensitivity(ranked))
        if not self.options.contested:
            return shrink_to(budget, bases[-1])
        candidates = propose(budget, bases, self.options.candidates, self.subject.learner.options.seed)
        self.progress.start("compare allocations", trials_of(len(candidates)))
        aim = compete(candidates, self.options.trial_steps, lambda widths, steps: self._trial(ranked, widths, steps))
        self.progress.finish()
        return aim

    @torch.no_grad()
    def _sensitivity(self, ranked: Ranked) -> dict[str, float]:
        """Shrink rates by the loss on training images without the less important half of each family."""
        images, labels = next(iter(self.feed.plain.epoch(0)))
        model, loss = self.subject.model.eval(), self.subject.learner.loss
        families = by_family(ranked)
        self.progress.start("measure sensitivity", len(families))
        losses = {}
        for family, members in families.items():
            with masked(model, sorted(members, key=ranked.__getitem__)[: len(members) // 2]):
                losses[family] = float(loss(model(images), labels))
            self.progress.advance()
        self.progress.finish()
        return sensitivity_rates(losses, float(loss(model(images), labels)))

    def _trial(self, ranked: Ranked, widths: Widths, steps: int) -> float:
        """Validation loss of an allocation after brief fine-tuning."""
        key = f"{steps}:" + "-".join(map(str, widths.values()))
        if key not in self.trials:
            torch.manual_seed(self.subject.learner.options.seed)
            learner = self.subject.trial(least_important(ranked, widths))
            cursor = Cursor(self.feed.train)
            for step in range(steps):
                learner.step(*cursor.take(step), lr=learner.options.rate(step / steps))
            learner.check_finite()
            reestimate(learner.model, None, self.feed.norms)
            self.trials[key] = self._loss(learner)
            self.save()
        self.progress.advance(loss=self.trials[key])
        return self.trials[key]

    def _loss(self, learner: Learner) -> float:
        result = validate(learner.model, None, self.feed.validation)
        return learner.means()["loss"] if result is None else result.nll
