"""The verb: from a run and a target to a smaller run."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from snncompress.data.dataset import Dataset
from snncompress.errors import UsageError
from snncompress.exporting.latency import measure_latency
from snncompress.noise.branch import Clock
from snncompress.progress import Progress
from snncompress.pruning.allocation import shrink_to, trial_steps_of
from snncompress.pruning.costs import Widths
from snncompress.pruning.dead import find_dead
from snncompress.pruning.latency import aim_at_latency
from snncompress.pruning.neurons import LEAST_SHARE, Pruner
from snncompress.pruning.options import PruneOptions
from snncompress.pruning.points import metrics_of
from snncompress.pruning.scoring import pick_criterion
from snncompress.pruning.session import config_of
from snncompress.pruning.subject import Subject
from snncompress.pruning.targets import Targets, parse_latency, targets_of
from snncompress.run import NoiseRecord, Run
from snncompress.run_folder import RunFolder
from snncompress.training.distillation import DistillOptions, hear
from snncompress.training.feed import Cursor, Feed, UserBatches, count_examples, make_feed, pick_device, task_of
from snncompress.training.learner import Learner, Loss
from snncompress.training.options import TrainOptions


def prune(
    run: Run,
    data: Dataset | UserBatches,
    options: PruneOptions,
    training: TrainOptions | None = None,
    *,
    loss: Loss | None = None,
    validation: UserBatches | None = None,
    teacher: Run | None = None,
    distill: DistillOptions = DistillOptions(),  # noqa: B008 (frozen)
    out: str | Path | None = None,
    resume: bool = False,
    force: bool = False,
    device: str = "auto",
    command: Sequence[str] = (),
    progress: Progress | None = None,
) -> Run:
    """Removes neurons of a run's model until it costs no more than the target, and returns a new run.

    Args:
        run: a run, best one that was trained with noise; it is left as it is.
        data: a loaded data set, or any re-iterable of (inputs, targets) batches.
        options: the target and how to get there.
        training: learning rate, batch size, augmentation and seed of the fine-tuning.
        loss: takes outputs and targets; that of ``train`` when absent.
        validation: batches for validation when ``data`` is the user's own iterable.
        teacher: a run whose probabilities the fine-tuning learns from, best ``run`` itself.
        distill: how it is listened to.
        out: the folder for the new run; nothing is written without it.
        resume: goes on where the run in ``out`` was interrupted.
        force: replaces an existing run in ``out``.
        device: ``auto``, ``cpu``, ``cuda``, ...
        command: what the user typed, for the record.
        progress: is told what happens.
    """
    training = training or TrainOptions()
    progress = progress or Progress()
    run = replace(run, task=task_of(data))
    plan = _prepare(run, data, options, training, device, progress, loss, validation, teacher, distill)
    subject, feed, targets, criterion = plan
    if options.target_latency or targets.missed(subject.cost()):
        # A criterion that cannot score says so before anything is done.
        subject.rank(criterion, feed.plain, count=1)
    torch.manual_seed(training.seed)
    folder = RunFolder(None if out is None else Path(out), command, training.save_every)
    started = run.successor(config_of(options, training, teacher, distill))
    pruner = Pruner(subject, feed, options, targets, criterion, folder, progress)
    pruner.conduct(started, resume=resume, force=force)
    return folder.finish(_finished(started, pruner))


def _finished(started: Run, pruner: Pruner) -> Run:
    subject, state = pruner.subject, pruner.state
    model = subject.model.cpu().eval()
    last = state["points"][-1] if state["stopped"] is None else state["good_point"]
    plan = {
        "targets": pruner.targets.given(),
        **asdict(subject.cost()),
        "latency": _latency(pruner, model),
        "criterion": pruner.criterion,
        "kept": subject.kept(),
        "unprunable": subject.unprunable,
        "removed_dead": state["removed_dead"],
        "logit_change": state["logit_change"],
        "stopped": state["stopped"],
        "points": state["points"],
    }
    return replace(
        started,
        model=model,
        noise=NoiseRecord.of(subject.noise),
        posterior=subject.present_posterior(),
        metrics=metrics_of(last),
        plan=plan,
    )


def _latency(pruner: Pruner, model: nn.Module) -> dict[str, float] | None:
    """The latency that was asked for, and what the finished model takes."""
    aim = pruner.state["latency"]
    return None if aim is None else {**aim, "ms": measure_latency(model, pruner.subject.input_shape)}


class _Plan(NamedTuple):
    """What pruning begins with."""

    subject: Subject
    feed: Feed
    targets: Targets
    criterion: str


def _prepare(
    run: Run,
    data: Dataset | UserBatches,
    options: PruneOptions,
    training: TrainOptions,
    device: str,
    progress: Progress,
    loss: Loss | None = None,
    validation: UserBatches | None = None,
    teacher: Run | None = None,
    distill: DistillOptions = DistillOptions(),  # noqa: B008 (frozen)
) -> _Plan:
    run.need_mean("pruned")
    if options.target_latency is not None:
        parse_latency(options.target_latency, original_ms=1.0)  # what is no time is refused before it is measured
    targets = targets_of(run, options)
    chosen = pick_device(device)
    torch.manual_seed(training.seed)
    model = copy.deepcopy(run.model).to(chosen)
    noise = run.attach_noise(model)
    if noise is not None:
        noise.to(chosen).detach()
    if options.finetune_noise and noise is None:
        raise UsageError("--finetune-noise needs a run that was trained with noise; run `snncompress train` first")
    heard = hear(teacher, run, distill, training, chosen)
    tuned = noise if options.finetune_noise else None
    learner = Learner(model, tuned, training, loss, heard, sparse=run.sparse, task=run.task)
    subject = Subject(learner, noise, run.input_shape, keep=options.keep, posterior=run.posterior)
    if subject.unprunable:
        names = ", ".join(subject.unprunable[:3]) + (" ..." if len(subject.unprunable) > 3 else "")
        progress.message(f"{len(subject.unprunable)} hidden layers lose no neurons of their own: {names}")
    budget = subject.budget(targets, options.min_neurons, options.round_to)
    budget.check()
    if options.limited and not options.aimed:  # as far as the error allows
        targets = Targets(flops=budget.costs(budget.least).flops)
    criterion = pick_criterion(options.criterion, noise, run.posterior, subject.groups)
    feed = make_feed(data, validation, training, run.normalization, chosen)
    if noise is not None:
        noise.tell(Clock(math.inf, count_examples(feed.train)))  # any warm-up is over
    return _Plan(subject, feed, targets, criterion)


@dataclass(frozen=True)
class Preview:
    """What pruning would do, before any fine-tuning: the allocation is the uniform one.

    Attributes:
        dead: neurons that never fire.
        neurons: all that can be removed.
        widths: how many each family has.
        planned: how many it would keep.
        cost: flops, size and memory now.
        planned_cost: the same after pruning.
        targets: those that were given.
        unprunable: hidden layers that lose nothing, whatever the target.
        criterion: what the neurons would be ranked by.
        steps: fine-tuning steps, those of trials included.
        seconds: how long the fine-tuning would take at most, by a few steps that were timed.
    """

    dead: int
    neurons: int
    widths: dict[str, int]
    planned: dict[str, int]
    cost: dict[str, int]
    planned_cost: dict[str, int]
    targets: dict[str, int]
    unprunable: list[str]
    criterion: str
    steps: int
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def preview(
    run: Run,
    data: Dataset | UserBatches,
    options: PruneOptions,
    training: TrainOptions | None = None,
    *,
    device: str = "auto",
    progress: Progress | None = None,
) -> Preview:
    """The plan, its cost and how long it would take; nothing is kept and nothing written."""
    training, progress = training or TrainOptions(), progress or Progress()
    run = replace(run, task=task_of(data))
    subject, feed, targets, criterion = _prepare(run, data, options, training, device, progress)
    before, cost = subject.widths(), subject.cost()
    budget = subject.budget(targets, options.min_neurons, options.round_to)
    dead = find_dead(subject.model, subject.groups, subject.norms, feed.plain, progress, budget)
    subject.remove(dead.groups, dead.constants)
    if options.target_latency is not None:
        budget = subject.budget(targets, options.min_neurons, options.round_to)
        targets = aim_at_latency(subject, budget, options.target_latency, progress).merge(targets)
    planned, steps = subject.widths(), 0
    if targets.missed(subject.cost()):
        budget = subject.budget(targets, options.min_neurons, options.round_to)
        planned = shrink_to(budget, dict.fromkeys(planned, 1.0))
        steps = options.final_epochs * len(feed.train) + options.finetune_steps * _rounds(options, budget.full, planned)
        if options.contested:
            steps += trial_steps_of(options.candidates, options.trial_steps)
    return Preview(
        dead=len(dead.groups),
        neurons=sum(before.values()),
        widths=before,
        planned=planned,
        cost=asdict(cost),
        planned_cost=asdict(subject.costs(planned)),
        targets=targets.given(),
        unprunable=subject.unprunable,
        criterion=criterion,
        steps=steps,
        seconds=steps * _seconds_a_step(subject, feed) if steps else 0.0,
    )


def _rounds(options: PruneOptions, full: Widths, planned: Widths) -> int:
    """How many rounds there will be at most."""
    first, last = sum(full.values()), sum(planned.values())
    if options.step:
        return -(-(first - last) // options.step)
    return min(first - last, math.ceil(math.log(first / last) / LEAST_SHARE))


def _seconds_a_step(subject: Subject, feed: Feed) -> float:
    """The time of a fine-tuning step of the present model; the first, which sets things up, is not counted."""
    cursor, learner = Cursor(feed.train), subject.learner
    times = []
    with subject.tuning():
        for step in range(min(3, len(feed.train))):
            start = time.perf_counter()
            learner.step(*cursor.take(step), lr=0.0)
            times.append(time.perf_counter() - start)
    return min(times)
