"""What every way of pruning has in common: phases that can be left and entered again, fine-tuning, an error budget."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from torch import Tensor

from snncompress.errors import TargetError, UsageError
from snncompress.evaluation.accuracy import Evaluation
from snncompress.progress import Progress
from snncompress.pruning.costs import Counts
from snncompress.pruning.options import Goals
from snncompress.pruning.subject import Subject
from snncompress.run import Run
from snncompress.run_folder import RunFolder
from snncompress.training.batchnorm import reestimate
from snncompress.training.distillation import DistillOptions, to_record
from snncompress.training.epoch_end import validate
from snncompress.training.feed import Cursor, Feed
from snncompress.training.interrupt import Interrupt, interrupted, watch_interrupt
from snncompress.training.learner import part
from snncompress.training.loop import SHOW_EVERY
from snncompress.training.options import TrainOptions

RECOVERY_EPOCHS = 2  # before a model over the error budget is given up
WHEN = {"recover": "recovered", "final": "fine-tuned"}  # how a message calls the phases that are no rounds


def config_of(goals: Goals, training: TrainOptions, teacher: Run | None, distill: DistillOptions) -> dict[str, Any]:
    """What a pruned run remembers of its options."""
    config = {**asdict(goals), "keep": list(goals.keep), "training": asdict(training)}
    for unused in ("epochs", "save_every"):
        del config["training"][unused]
    return config | {"distill": to_record(teacher, distill)}


class Session(ABC):
    """The pruning of one network, phase after phase.

    ``state`` holds what a resumed run needs beside the network: the phase, the number of fine-tuning steps taken, the
    points of the trade-off, the last point within the error budget.
    """

    def __init__(
        self,
        subject: Subject,
        feed: Feed,
        options: Goals,
        folder: RunFolder,
        progress: Progress,
    ) -> None:
        self.subject, self.feed, self.goals, self.task = subject, feed, options, subject.learner.task
        self.folder, self.interrupt, self.progress = folder, Interrupt(), progress
        self.cursor = Cursor(feed.train)
        self.good: dict[str, Tensor] = {}
        self.state: dict[str, Any] = {
            "step": 0, "round": 0, "round_step": 0, "points": [], "good": None, "good_point": None, "stopped": None,
        }  # fmt: skip

    @abstractmethod
    def phases(self) -> Mapping[str, Callable[[], str]]:
        """The phases by name; each returns the next one's name, or ``done``."""

    def conduct(self, started: Run, *, resume: bool, force: bool) -> None:
        """All phases, from the beginning or from where they were left.

        Args:
            started: the run as it begins.
            resume: goes on where the run in the folder was interrupted.
            force: replaces an existing run in the folder.
        """
        if self.goals.limited and self.feed.validation is None:
            raise UsageError("a limit of the error needs validation data: leave --holdout none out or give validation=")
        with self.folder, watch_interrupt() as self.interrupt:
            saved = self.folder.resume(started) if resume else None
            if not resume:
                self.folder.start(started, force=force)
            if saved is not None:
                self.resume(*saved)
            self.run()
            self.folder.keep("curve.json", self.state["points"])

    def run(self) -> None:
        """All phases that are left."""
        phases = self.phases()
        while self.state["phase"] != "done":
            self.state["phase"] = phases[self.state["phase"]]()
            self._save(always=True)

    def resume(self, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
        """Sets everything to a saved state."""
        self.good = {name: tensor for name, tensor in tensors.items() if name.startswith("good.")}
        self.subject.restore(tensors, meta["subject"])
        self.state = {key: meta[key] for key in self.state}

    # --- fine-tuning ----------------------------------------------------------------------------------------

    def _finetune_round(self) -> None:
        """The remaining fine-tuning steps of this round."""
        learner, state = self.subject.learner, self.state
        if state["round_step"] == 0:
            learner.forget_sums()
        with self.subject.tuning():
            while state["round_step"] < self.goals.finetune_steps:
                learner.step(*self.cursor.take(state["step"]), lr=learner.options.lr)
                self._count_step()
        state["round_step"] = 0

    def _finetune(self, task: str, total: int, lr: float | None = None) -> None:
        """Fine-tuning with a falling learning rate, what is left of ``total`` steps."""
        learner, state = self.subject.learner, self.state
        factor = 1.0 if lr is None else lr / learner.options.lr
        length = len(self.feed.train)
        self.progress.start(task, total, done=state["round_step"])
        while state["round_step"] < total:
            epochs, rest = divmod(state["round_step"], length)
            if epochs and not rest:
                self._look(f"epoch {epochs}/{total // length}")
            with self.subject.tuning():
                while state["round_step"] < min(total, (epochs + 1) * length):
                    rate = factor * learner.options.rate(state["round_step"] / total)
                    learner.step(*self.cursor.take(state["step"]), lr=rate)
                    self._count_step()
                    if state["round_step"] % SHOW_EVERY == 0:
                        self.progress.advance(SHOW_EVERY, **learner.shown())
                        learner.forget_sums()
        self.progress.finish()
        state["round_step"] = 0

    def _look(self, when: str) -> None:
        """How good the model is on the way; a resumed run does not look twice."""
        step = self.state["step"]
        if self.folder.history[-1]["step"] == step:
            return
        if self.subject.learner.noise is not None:  # what was gathered under noise is wrong for the mean
            self._refresh()
        if (result := self._validate()) is not None:
            self.folder.record({"phase": self.state["phase"], "step": step, "error": result.error, "nll": result.nll})
            self.progress.message(f"{when}: validation {self.task.word(result.error)}")

    def _count_step(self) -> None:
        self.state["step"] += 1
        self.state["round_step"] += 1
        self._save()

    def _recover(self) -> str:
        """Over the budget: fine-tuning may bring the error back before pruning gives up."""
        self._finetune("recover", RECOVERY_EPOCHS * len(self.feed.train))
        if self._judge():
            return "rounds"
        self._give_up()
        return "final"

    def _final(self) -> str:
        """The longer fine-tuning, if there is any."""
        if not self.goals.final_epochs:
            return "done"
        self._finetune("fine-tune", self.goals.final_epochs * len(self.feed.train), self.goals.final_lr)
        if not self._judge():
            self._give_up()
        return "done"

    # --- the error budget -----------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Judges the model that pruning begins with."""
        if not self._judge():
            error, limit = self.state["points"][0]["error"], self._limit()
            raise TargetError(
                f"the model that pruning begins with has a validation {self.task.measure} of {self.task.show(error)}, "
                f"more than {limit:g}{self.task.unit}; raise --max-error"
            )

    def cost(self) -> Counts:
        """What the present model costs."""
        return self.subject.cost()

    def _validate(self) -> Evaluation | None:
        """How good the present model is; None without validation data."""
        return validate(self.subject.model, None, self.feed.validation)

    def _refresh(self) -> None:
        """Makes the plain model that of the mean, and gathers the statistics of its batch norms again."""
        self.subject.settle()
        reestimate(self.subject.model, None, self.feed.norms)

    def _judge(self) -> bool:
        """Validates, notes a point of the trade-off, and keeps the model if its error is within the budget."""
        subject, state = self.subject, self.state
        if state["step"]:
            subject.learner.check_finite()
            self._refresh()
        result = self._validate()
        point: dict[str, Any] = {"round": state["round"], "step": state["step"], **asdict(self.cost())}
        point |= {"widths": subject.widths()}
        point |= {} if result is None else {"error": result.error, "nll": result.nll}
        self.folder.save_point(len(state["points"]), subject.model)
        state["points"].append(point)
        self.folder.record({"phase": state["phase"], **point})
        if state["round"]:
            error = "" if result is None else f", validation {self.task.word(result.error)}"
            when = WHEN.get(state["phase"], f"round {state['round']}")
            self.progress.message(f"{when}: {self._words(point)}{error}")
        if result is None or not self.goals.limited:
            return True
        if result.error > self._limit():
            return False
        self.good = {f"good.{name}": tensor.clone() for name, tensor in subject.tensors().items()}
        state["good"], state["good_point"] = subject.meta(), point
        return True

    def _words(self, point: Mapping[str, Any]) -> str:
        """The cost that pruning brings down."""
        return f"{point['flops']:,} FLOPs"

    def _limit(self) -> float:
        """The largest error that the budget allows, in the task's unit."""
        limits = [] if self.goals.max_error is None else [self.goals.max_error]
        if self.goals.max_drop is not None:
            limits.append(self.state["points"][0]["error"] + self.goals.max_drop)
        return min(limits)

    def _give_up(self) -> None:
        """The last model within the budget comes back."""
        last = self.state["points"][-1]
        error, limit = self.task.word(last["error"]), self.task.show(self._limit())
        self.state["stopped"] = f"validation {error} at {self._words(last)} exceeds the budget of {limit}"
        self.subject.restore(part(self.good, "good."), self.state["good"])

    # --- the state ------------------------------------------------------------------------------------------

    def _save(self, always: bool = False) -> None:
        if always or self.folder.due() or self.interrupt.requested:
            self.subject.learner.check_finite()
            meta = {**self.state, "subject": self.subject.meta()}
            self.folder.save({**self.subject.tensors(), **self.good}, meta)
        if self.interrupt.requested:
            raise interrupted(f"in phase {self.state['phase']}", self.folder.path)
