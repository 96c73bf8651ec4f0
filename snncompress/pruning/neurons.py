"""Pruning of neurons: dead ones in one batch, then the least important ones with fine-tuning in between.

Stage 1 removes every neuron that never fires on the training data (``dead.py``): exact.
Stage 2 shares the target between the layers (``allocation.py``), then removes a few neurons at a time, the least
important of their layer first, fine-tunes, and repeats until the target; a longer fine-tuning ends it.

Yu et al., AAAI 2021; the loop is that of Molchanov, Tyree, Karras, Aila, Kautz: Pruning Convolutional Neural
Networks for Resource Efficient Inference, ICLR 2017.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from snncompress.progress import Progress
from snncompress.pruning.contest import Contest
from snncompress.pruning.costs import Counts, Widths
from snncompress.pruning.coupling import Group, by_family
from snncompress.pruning.dead import check_exact, find_dead, outputs
from snncompress.pruning.latency import LatencyAim, aim_at_latency
from snncompress.pruning.options import Allocation, Per, PruneOptions
from snncompress.pruning.session import Session
from snncompress.pruning.subject import Subject
from snncompress.pruning.targets import WORDS, Budget, Targets
from snncompress.run_folder import RunFolder
from snncompress.training.feed import Feed

SCORED_BATCHES = 8  # of 250 images: importance changes little from round to round
JUDGE_EVERY = 0.95  # validate when a cost has fallen to this share since the last time
FIRST_SHARE, LEAST_SHARE, LARGEST_SHARE = 0.02, 0.01, 0.04  # of the neurons that are left, a round
GROWTH = 1.3  # of that share, where the error allows it


class Pruner(Session):
    """Pruning of neurons: the phases are dead, allocate, rounds, recover, final, done.

    ``state`` also holds the widths to reach and the trials.
    """

    def __init__(
        self,
        subject: Subject,
        feed: Feed,
        options: PruneOptions,
        targets: Targets,
        criterion: str,
        folder: RunFolder,
        progress: Progress,
    ) -> None:
        super().__init__(subject, feed, options, folder, progress)
        self.options, self.targets, self.criterion = options, targets, criterion
        self.state |= {
            "phase": "dead", "share": FIRST_SHARE, "easy": None, "first": None, "aim": None, "trials": {},
            "removed_dead": 0, "logit_change": 0.0, "latency": None,
        }  # fmt: skip

    def phases(self) -> Mapping[str, Callable[[], str]]:
        """The phases by name."""
        return {
            "dead": self._remove_dead,
            "allocate": self._allocate,
            "rounds": self._rounds,
            "recover": self._recover,
            "final": self._final,
        }

    def resume(self, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
        """Sets everything to a saved state."""
        super().resume(tensors, meta)
        if self.state["latency"] is not None:
            self.targets = LatencyAim(**self.state["latency"]).merge(self.targets)

    # --- the phases: each returns the next one's name -------------------------------------------------------

    def _remove_dead(self) -> str:
        self._begin()
        subject = self.subject
        before = sum(subject.widths().values())
        budget = self._budget()
        dead = find_dead(subject.model, subject.groups, subject.norms, self.feed.plain, self.progress, budget)
        subject.remove(dead.groups, dead.constants)
        change = 0.0
        if dead.groups:
            change = check_exact(dead.logits, outputs(subject.model, self.feed.plain, self.progress, "check outputs"))
        self.state |= {"removed_dead": len(dead.groups), "logit_change": change}
        exact = f" and are gone; logits changed by {change:.1e} of the largest" if dead.groups else ""
        flops = subject.cost().flops
        self.progress.message(f"stage 1: {len(dead.groups)} of {before} neurons never fire{exact}; {flops:,} FLOPs")
        self._judge()
        if self.options.target_latency is not None:
            aim = aim_at_latency(subject, self._budget(), self.options.target_latency, self.progress)
            self.state["latency"] = asdict(aim)
            self.progress.message(
                f"one image takes {aim.before_ms:.3g} ms; {aim.target_ms:.3g} ms are about {aim.flops:,} FLOPs"
            )
            self.targets = aim.merge(self.targets)
        return "allocate" if self.targets.missed(subject.cost()) else "done"

    def _allocate(self) -> str:
        """Shares the targets between the families."""
        if self.options.allocation is Allocation.GLOBAL:
            return "rounds"
        seed = self.subject.learner.options.seed
        torch.manual_seed(seed)  # a random ranking is the same when resumed
        contest = Contest(self.subject, self.feed, self.options, self.state["trials"], self._save, self.progress)
        aim = contest.decide(self._budget(), self._rank())
        torch.manual_seed(seed)  # whichever trials a resumed run has taken
        self.state |= {"aim": aim, "first": self.subject.widths()}
        self.progress.message("allocation: " + ", ".join(f"{name} {width}" for name, width in aim.items()))
        return "rounds"

    def _rounds(self) -> str:
        subject, state = self.subject, self.state
        shown = self._way()
        self.progress.start("prune", 100, done=shown)
        while not self._arrived(subject.widths()) or state["round_step"]:
            if state["round_step"] == 0:
                subject.remove(self._choose())
                state["round"] += 1
            self._finetune_round()
            self._pace(subject.learner.means()["error"])
            self.progress.advance(self._way() - shown, flops=subject.cost().flops, **subject.learner.shown())
            shown = self._way()
            if self._due() and not self._judge():
                return "recover"
            self._save()  # where no fine-tuning step has
        self.progress.finish()
        return "final"

    def _due(self) -> bool:
        """Whether a cost has fallen enough since the last validation, or pruning has arrived."""
        cost, last = self.subject.cost(), self.state["points"][-1]
        fallen = any(getattr(cost, name) <= JUDGE_EVERY * last[name] for name in WORDS)
        return fallen or self._arrived(self.subject.widths())

    def _arrived(self, widths: Widths) -> bool:
        """Whether these are the widths to reach; without such, whether they meet the targets."""
        aim = self.state["aim"]
        return widths == aim if aim is not None else not self.targets.missed(self.subject.costs(widths))

    def _way(self) -> int:
        """How much of the way to the targets is behind, in percent."""
        first = Counts(*(self.state["points"][0][name] for name in WORDS))
        return round(100 * self.targets.way(first, self.subject.cost()))

    # --- their parts ----------------------------------------------------------------------------------------

    def _rank(self) -> dict[Group, float]:
        return self.subject.rank(self.criterion, self.feed.plain, SCORED_BATCHES)

    def _budget(self) -> Budget:
        return self.subject.budget(self.targets, self.options.min_neurons, self.options.round_to)

    def _choose(self) -> list[Group]:
        """The neurons of the next round, least important first, no more than the targets ask for."""
        aim, ranked, budget = self.state["aim"], self._rank(), self._budget()
        queues = {family: sorted(members, key=ranked.__getitem__) for family, members in by_family(ranked).items()}
        widths, chosen = dict(budget.full), list[Group]()
        count = self.options.step or max(1, round(self.state["share"] * sum(widths.values())))
        while len(chosen) < count and not self._arrived(widths):
            if aim is None:
                name, width = self._least_important(budget, widths, queues, ranked)
            else:  # the family that lags behind on its way to its width: all arrive together
                next_widths = {
                    family: max(aim[family], budget.below(family, width) or 0)
                    for family, width in widths.items()
                    if width > aim[family]
                }
                name = min(next_widths, key=lambda family: self._way_of(family, next_widths[family]))
                width = next_widths[name]
            chosen += [queues[name].pop(0) for _ in range(widths[name] - width)]
            widths[name] = width
        return chosen

    def _least_important(
        self, budget: Budget, widths: Widths, queues: dict[str, list[Group]], ranked: dict[Group, float]
    ) -> tuple[str, int]:
        """The paper's loop: the family, and its next width, whose next neurons are the least important of all."""
        now, found = budget.costs(widths), {}
        for name, width in widths.items():
            if (smaller := budget.below(name, width)) is not None:
                gone = queues[name][: width - smaller]
                freed = 1
                if self.options.per is not Per.NONE:
                    after = budget.costs({**widths, name: smaller})
                    freed = getattr(now, self.options.per) - getattr(after, self.options.per)
                found[name, smaller] = sum(ranked[group] for group in gone) / max(freed, 1)
        return min(found, key=found.__getitem__)

    def _way_of(self, family: str, width: int) -> float:
        """The share of a family's way from its width at first to its aim that is behind at some width."""
        first, aim = self.state["first"][family], self.state["aim"][family]
        return math.log(first / width) / math.log(first / aim)

    def _pace(self, error: float) -> None:
        """More neurons a round while the error of the training batches stays what it was, fewer where it rises."""
        state = self.state
        state["easy"] = error if state["easy"] is None else min(error, state["easy"])
        calm = error <= 1.5 * state["easy"] + self.task.slack
        share = state["share"] * GROWTH if calm else state["share"] / GROWTH
        state["share"] = min(LARGEST_SHARE, max(LEAST_SHARE, share))
