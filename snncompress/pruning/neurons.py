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
from typing import Any

import torch
from torch import Tensor

from snncompress.progress import Progress
from snncompress.pruning.allocation import Widths, compete, propose, trials_of
from snncompress.pruning.coupling import Group
from snncompress.pruning.dead import check_exact, find_dead, outputs
from snncompress.pruning.options import Allocation, PruneOptions
from snncompress.pruning.subject import Subject
from snncompress.run_folder import RunFolder
from snncompress.training.batchnorm import reestimate
from snncompress.training.feed import Cursor, Feed
from snncompress.training.interrupt import Interrupt, interrupted
from snncompress.training.learner import Learner, part
from snncompress.training.loop import SHOW_EVERY, validate

SCORED_BATCHES = 2  # of 1,000 images: importance changes little from round to round
JUDGE_EVERY = 0.95  # validate when the multiplications have fallen to this share since the last time
RECOVERY_EPOCHS = 2  # before a model over the error budget is given up
TRIAL_STEPS = 50  # of fine-tuning in the first heat of competing allocations


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
        target: int | None,
        folder: RunFolder,
        interrupt: Interrupt,
        progress: Progress,
    ) -> None:
        self.subject, self.feed, self.options, self.target = subject, feed, options, target
        self.folder, self.interrupt, self.progress = folder, interrupt, progress
        self.cursor = Cursor(feed.train)
        self.good: dict[str, Tensor] = {}
        self.state: dict[str, Any] = {
            "phase": "dead", "step": 0, "round": 0, "round_step": 0, "first": None, "aim": None, "trials": {},
            "points": [], "good": None, "good_point": None, "stopped": None, "removed_dead": 0, "logit_change": 0.0,
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

    # --- the phases: each returns the next one's name -------------------------------------------------------

    def _remove_dead(self) -> str:
        self._judge()
        subject = self.subject
        before = sum(subject.widths().values())
        dead, logits = find_dead(subject.model, subject.groups, self.feed.plain, self.progress)
        subject.remove(dead)
        change = 0.0
        if dead:
            change = check_exact(logits, outputs(subject.model, self.feed.plain, self.progress, "check outputs"))
        self.state |= {"removed_dead": len(dead), "logit_change": change}
        exact = f" and are gone; logits changed by {change:.1e} of the largest" if dead else ""
        self.progress.message(f"stage 1: {len(dead)} of {before} neurons never fire{exact}; {subject.cost():,} FLOPs")
        self._judge()
        return "allocate" if self.target is not None and subject.cost() > self.target else "done"

    def _allocate(self) -> str:
        assert self.target is not None
        flops = self.subject.flops
        if self.options.allocation is Allocation.COMPETE:
            seed = self.subject.learner.options.seed
            candidates = propose(flops, self.target, self.options.candidates, seed)
            torch.manual_seed(seed)  # a random ranking is the same when resumed
            ranked = self._rank()
            self.progress.start("compare allocations", trials_of(len(candidates)))
            aim = compete(candidates, TRIAL_STEPS, lambda widths, steps: self._trial(ranked, widths, steps))
            self.progress.finish()
            torch.manual_seed(seed)  # whichever trials a resumed run has taken
            self.state |= {"aim": aim, "first": self.subject.widths()}
            self.progress.message("allocation: " + ", ".join(f"{name} {width}" for name, width in aim.items()))
        return "rounds"

    def _rounds(self) -> str:
        subject, state, target = self.subject, self.state, self.target
        assert target is not None
        shown = self._way()
        self.progress.start("prune", 100, done=shown)
        while subject.cost() > target or state["round_step"]:
            if state["round_step"] == 0:
                subject.remove(self._choose())
                state["round"] += 1
            self._finetune_round()
            self.progress.advance(self._way() - shown, flops=subject.cost(), **subject.learner.means())
            shown = self._way()
            due = subject.cost() <= max(JUDGE_EVERY * state["points"][-1]["flops"], target)
            if due and not self._judge():
                return "recover"
            self._save()  # where no fine-tuning step has
        self.progress.finish()
        return "final"

    def _way(self) -> int:
        """How much of the way to the target is behind, in percent: the logarithm of the cost falls steadily."""
        assert self.target is not None
        start = math.log(self.state["points"][0]["flops"])
        return round(100 * (start - math.log(self.subject.cost())) / (start - math.log(self.target)))

    def _recover(self) -> str:
        """Over the budget: fine-tuning may bring the error back before pruning gives up."""
        self._finetune("recover", RECOVERY_EPOCHS * len(self.feed.train))
        if self._judge():
            return "rounds"
        self._give_up()
        return "final"

    def _final(self) -> str:
        """The longer fine-tuning."""
        self._finetune("fine-tune", self.options.final_epochs * len(self.feed.train))
        if not self._judge():
            self._give_up()
        return "done"

    # --- their parts ----------------------------------------------------------------------------------------

    def _rank(self) -> dict[Group, float]:
        return self.subject.rank(self.options.criterion, self.feed.plain, SCORED_BATCHES)

    def _choose(self) -> list[Group]:
        """The neurons of the next round, least important first, no more than the target asks for."""
        subject, aim = self.subject, self.state["aim"]
        ranked = self._rank()
        queues: dict[str, list[Group]] = {name: [] for name in subject.widths()}
        for group in sorted(ranked, key=lambda group: ranked[group]):
            queues[group.layer].append(group)
        widths, chosen = subject.widths(), []
        for _ in range(self.options.neurons_a_round(sum(widths.values()))):
            assert self.target is not None
            if aim is None:  # the paper's loop: the least important of the whole network
                layers = [name for name in widths if widths[name] > 1]
                name = min(layers, key=lambda layer: ranked[queues[layer][0]])
            else:  # the layer that lags behind on its way to its width: all arrive together
                name = min(
                    (layer for layer in widths if widths[layer] > aim[layer]),
                    key=lambda layer: self._way_of(layer, widths),
                )
            chosen.append(queues[name].pop(0))
            widths[name] -= 1
            if subject.flops(widths) <= self.target or (aim is not None and widths == aim):
                break
        return chosen

    def _way_of(self, layer: str, widths: Widths) -> float:
        """The share of a layer's way from its width at first to its aim that would be behind with one neuron less."""
        first, aim = self.state["first"][layer], self.state["aim"][layer]
        return math.log(first / (widths[layer] - 1)) / math.log(first / aim) if widths[layer] > 1 else 1.0

    def _trial(self, ranked: dict[Group, float], widths: Widths, steps: int) -> float:
        """Validation loss of an allocation after brief fine-tuning; known ones are not tried again."""
        key = f"{steps}:" + "-".join(map(str, widths.values()))
        trials = self.state["trials"]
        if key not in trials:
            surplus = []
            for name, width in widths.items():
                members = sorted((g for g in ranked if g.layer == name), key=lambda group: ranked[group])
                surplus += members[: len(members) - width]
            torch.manual_seed(self.subject.learner.options.seed)
            learner = self.subject.trial(surplus)
            cursor = Cursor(self.feed.train)
            for step in range(steps):
                learner.step(*cursor.take(step), lr=learner.options.rate(step / steps))
            learner.check_finite()
            reestimate(learner.model, None, self.feed.plain)
            trials[key] = self._loss(learner)
            self._save()
        self.progress.advance(loss=trials[key])
        return float(trials[key])

    def _loss(self, learner: Learner) -> float:
        result = validate(learner.model, None, self.feed.validation)
        return learner.means()["loss"] if result is None else result.nll

    def _finetune_round(self) -> None:
        """The remaining fine-tuning steps of this round."""
        learner, state = self.subject.learner, self.state
        if state["round_step"] == 0:
            learner.forget_sums()
        while state["round_step"] < self.options.finetune_steps:
            learner.step(*self.cursor.take(state["step"]), lr=learner.options.lr)
            self._count_step()
        state["round_step"] = 0

    def _finetune(self, task: str, total: int) -> None:
        """Fine-tuning with a falling learning rate, what is left of ``total`` steps."""
        learner, state = self.subject.learner, self.state
        self.progress.start(task, total, done=state["round_step"])
        while state["round_step"] < total:
            learner.step(*self.cursor.take(state["step"]), lr=learner.options.rate(state["round_step"] / total))
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
            reestimate(subject.model, None, self.feed.plain)
        result = validate(subject.model, None, self.feed.validation)
        point: dict[str, Any] = {"round": state["round"], "step": state["step"], "flops": subject.cost()}
        point |= {"widths": subject.widths()}
        point |= {} if result is None else {"error": result.error, "nll": result.nll}
        state["points"].append(point)
        self.folder.record({"phase": state["phase"], **point})
        if result is None or self.options.max_drop is None:
            return True
        if result.error > self._limit():
            return False
        self.good = {f"good.{name}": tensor.clone() for name, tensor in subject.tensors().items()}
        state["good"], state["good_point"] = subject.meta(), point
        return True

    def _limit(self) -> float:
        """The largest error that the budget allows, in percent."""
        return float(self.state["points"][0]["error"] + (self.options.max_drop or 0.0))

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
