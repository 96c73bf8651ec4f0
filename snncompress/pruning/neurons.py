"""Pruning of neurons: dead ones in one batch, then the least important ones with fine-tuning in between.

Stage 1 removes every neuron that never fires on the training data (``dead.py``): exact.
Stage 2 shares the target between the layers (``allocation.py``), then removes a few neurons at a time, the least
important of their layer first, fine-tunes, and repeats until the target; a longer fine-tuning ends it.

Yu et al., AAAI 2021; the loop is that of Molchanov, Tyree, Karras, Aila, Kautz: Pruning Convolutional Neural
Networks for Resource Efficient Inference, ICLR 2017.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from snncompress.errors import TargetError
from snncompress.progress import Progress
from snncompress.pruning.contest import Contest
from snncompress.pruning.costs import Counts, Widths
from snncompress.pruning.coupling import Group, by_family
from snncompress.pruning.dead import check_exact, find_dead, outputs
from snncompress.pruning.latency import LatencyAim, aim_at_latency
from snncompress.pruning.options import Allocation, Per, PruneOptions
from snncompress.pruning.subject import Subject
from snncompress.pruning.targets import WORDS, Budget, Targets
from snncompress.run_folder import RunFolder
from snncompress.training.batchnorm import reestimate
from snncompress.training.feed import Cursor, Feed
from snncompress.training.interrupt import Interrupt, interrupted
from snncompress.training.learner import part
from snncompress.training.loop import SHOW_EVERY, validate

SCORED_BATCHES = 8  # of 250 images: importance changes little from round to round
JUDGE_EVERY = 0.95  # validate when a cost has fallen to this share since the last time
RECOVERY_EPOCHS = 2  # before a model over the error budget is given up
FIRST_SHARE, LEAST_SHARE, LARGEST_SHARE = 0.02, 0.005, 0.04  # of the neurons that are left, a round
GROWTH = 1.3  # of that share, where the error allows it


class Pruner:
    """The pruning of one network, phase after phase; each phase can be left and entered again.

    ``state`` holds what a resumed run needs beside the network: the phase (dead, allocate, rounds, recover, final,
    done), the number of fine-tuning steps taken, the widths to reach, trials, and the points of the trade-off.
    """

    def __init__(
        self,
        subject: Subject,
        feed: Feed,
        options: PruneOptions,
        targets: Targets,
        criterion: str,
        folder: RunFolder,
        interrupt: Interrupt,
        progress: Progress,
    ) -> None:
        self.subject, self.feed, self.options, self.targets = subject, feed, options, targets
        self.criterion = criterion
        self.folder, self.interrupt, self.progress = folder, interrupt, progress
        self.cursor = Cursor(feed.train)
        self.good: dict[str, Tensor] = {}
        self.state: dict[str, Any] = {
            "phase": "dead", "step": 0, "round": 0, "round_step": 0, "share": FIRST_SHARE, "easy": None, "first": None,
            "aim": None, "trials": {}, "points": [], "good": None, "good_point": None, "stopped": None,
            "removed_dead": 0, "logit_change": 0.0, "latency": None,
        }  # fmt: skip

    def run(self) -> None:
        """All phases that are left."""
        phases: dict[str, Callable[[], str]] = {
            "dead": self._remove_dead,
            "allocate": self._allocate,
            "rounds": self._rounds,
            "recover": self._recover,
            "final": self._final,
        }
        while self.state["phase"] != "done":
            self.state["phase"] = phases[self.state["phase"]]()
            self._save(always=True)

    def resume(self, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
        """Sets everything to a saved state."""
        self.good = {name: tensor for name, tensor in tensors.items() if name.startswith("good.")}
        self.subject.restore(tensors, meta["subject"])
        self.state = {key: meta[key] for key in self.state}
        if self.state["latency"] is not None:
            self.targets = LatencyAim(**self.state["latency"]).merge(self.targets)

    # --- the phases: each returns the next one's name -------------------------------------------------------

    def _remove_dead(self) -> str:
        if not self._judge():
            error, limit = self.state["points"][0]["error"], self._limit()
            raise TargetError(
                f"the model that pruning begins with has a validation error of {error:.2f}%, more than {limit:g}%; "
                "raise --max-error"
            )
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
            means = subject.learner.means()
            self._pace(means["error"])
            self.progress.advance(self._way() - shown, flops=subject.cost().flops, **means)
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

    def _recover(self) -> str:
        """Over the budget: fine-tuning may bring the error back before pruning gives up."""
        self._finetune("recover", RECOVERY_EPOCHS * len(self.feed.train))
        if self._judge():
            return "rounds"
        self._give_up()
        return "final"

    def _final(self) -> str:
        """The longer fine-tuning."""
        self._finetune("fine-tune", self.options.final_epochs * len(self.feed.train), self.options.final_lr)
        if not self._judge():
            self._give_up()
        return "done"

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
        calm = error <= 1.5 * state["easy"] + 1
        share = state["share"] * GROWTH if calm else state["share"] / GROWTH
        state["share"] = min(LARGEST_SHARE, max(LEAST_SHARE, share))

    def _finetune_round(self) -> None:
        """The remaining fine-tuning steps of this round."""
        learner, state = self.subject.learner, self.state
        if state["round_step"] == 0:
            learner.forget_sums()
        with self.subject.tuning():
            while state["round_step"] < self.options.finetune_steps:
                learner.step(*self.cursor.take(state["step"]), lr=learner.options.lr)
                self._count_step()
        state["round_step"] = 0

    def _finetune(self, task: str, total: int, lr: float | None = None) -> None:
        """Fine-tuning with a falling learning rate, what is left of ``total`` steps."""
        learner, state = self.subject.learner, self.state
        factor = 1.0 if lr is None else lr / learner.options.lr
        self.progress.start(task, total, done=state["round_step"])
        with self.subject.tuning():
            while state["round_step"] < total:
                rate = factor * learner.options.rate(state["round_step"] / total)
                learner.step(*self.cursor.take(state["step"]), lr=rate)
                self._count_step()
                if state["round_step"] % SHOW_EVERY == 0:
                    self.progress.advance(SHOW_EVERY, **learner.means())
                    learner.forget_sums()
        self.progress.finish()
        state["round_step"] = 0

    def _count_step(self) -> None:
        self.state["step"] += 1
        self.state["round_step"] += 1
        self._save()

    def _judge(self) -> bool:
        """Validates, notes a point of the trade-off, and keeps the model if its error is within the budget."""
        subject, state = self.subject, self.state
        if state["step"]:
            subject.learner.check_finite()
            subject.settle()
            reestimate(subject.model, None, self.feed.plain)
        result = validate(subject.model, None, self.feed.validation)
        point: dict[str, Any] = {"round": state["round"], "step": state["step"], **asdict(subject.cost())}
        point |= {"widths": subject.widths()}
        point |= {} if result is None else {"error": result.error, "nll": result.nll}
        self.folder.save_point(len(state["points"]), subject.model)
        state["points"].append(point)
        self.folder.record({"phase": state["phase"], **point})
        if state["round"]:
            error = "" if result is None else f", validation error {result.error:.2f}%"
            self.progress.message(f"round {state['round']}: {point['flops']:,} FLOPs{error}")
        if result is None or not self.options.limited:
            return True
        if result.error > self._limit():
            return False
        self.good = {f"good.{name}": tensor.clone() for name, tensor in subject.tensors().items()}
        state["good"], state["good_point"] = subject.meta(), point
        return True

    def _limit(self) -> float:
        """The largest error that the budget allows, in percent."""
        limits = [] if self.options.max_error is None else [self.options.max_error]
        if self.options.max_drop is not None:
            limits.append(self.state["points"][0]["error"] + self.options.max_drop)
        return min(limits)

    def _give_up(self) -> None:
        """The last model within the budget comes back."""
        last = self.state["points"][-1]
        error, limit = f"{last['error']:.2f}%", f"{self._limit():.2f}%"
        self.state["stopped"] = f"validation error {error} at {last['flops']:,} FLOPs exceeds the budget of {limit}"
        self.subject.restore(part(self.good, "good."), self.state["good"])

    def _save(self, always: bool = False) -> None:
        if always or self.folder.due() or self.interrupt.requested:
            self.subject.learner.check_finite()
            meta = {**self.state, "subject": self.subject.meta()}
            self.folder.save({**self.subject.tensors(), **self.good}, meta)
        if self.interrupt.requested:
            raise interrupted(f"in phase {self.state['phase']}", self.folder.path)
