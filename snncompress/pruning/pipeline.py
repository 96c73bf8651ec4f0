"""The verb: from a run and a target to a smaller run."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from snncompress.data.dataset import Dataset
from snncompress.errors import TargetError, UsageError
from snncompress.progress import Progress
from snncompress.pruning.allocation import shrink_to
from snncompress.pruning.dead import find_dead
from snncompress.pruning.neurons import Pruner
from snncompress.pruning.options import PruneOptions
from snncompress.pruning.subject import Subject
from snncompress.pruning.targets import parse_target
from snncompress.run import NoiseRecord, Run
from snncompress.run_folder import RunFolder
from snncompress.training.feed import Feed, UserBatches, make_feed, pick_device
from snncompress.training.interrupt import watch_interrupt
from snncompress.training.learner import Loss
from snncompress.training.options import TrainOptions


def prune(
    run: Run,
    data: Dataset | UserBatches,
    options: PruneOptions,
    training: TrainOptions | None = None,
    *,
    loss: Loss | None = None,
    validation: UserBatches | None = None,
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
        loss: takes outputs and targets; cross-entropy when absent.
        validation: batches for validation when ``data`` is the user's own iterable.
        out: the folder for the new run; nothing is written without it.
        resume: goes on where the run in ``out`` was interrupted.
        force: replaces an existing run in ``out``.
        device: ``auto``, ``cpu``, ``cuda``, ...
        command: what the user typed, for the record.
        progress: is told what happens.
    """
    training = training or TrainOptions()
    progress = progress or Progress()
    subject, feed, target = _prepare(run, data, options, training, loss, validation, device)
    if options.max_drop is not None and feed.validation is None:
        raise UsageError("max_drop needs validation batches to judge by; give validation=")
    if target is not None and subject.cost() > target:  # a criterion that cannot score says so before anything is done
        subject.rank(options.criterion, feed.plain, count=1)
    torch.manual_seed(training.seed)
    config = {**asdict(options), "training": asdict(training)}
    for unused in ("epochs", "save_every"):
        del config["training"][unused]
    folder = RunFolder(None if out is None else Path(out), command, training.save_every)
    started = run.successor(config)
    with folder, watch_interrupt() as interrupt:
        saved = folder.resume(started) if resume else None
        if not resume:
            folder.start(started, force=force)
        pruner = Pruner(subject, feed, options, target, folder, interrupt, progress)
        if saved is not None:
            pruner.resume(*saved)
        pruner.run()
    return folder.finish(_finished(started, pruner))


def _finished(started: Run, pruner: Pruner) -> Run:
    subject, state = pruner.subject, pruner.state
    model = subject.model.cpu().eval()
    last = state["points"][-1] if state["stopped"] is None else state["good_point"]
    metrics = {"validation": {key: last[key] for key in ("error", "nll")}} if "error" in last else {}
    plan = {
        "target": pruner.target,
        "flops": subject.cost(),
        "kept": subject.kept,
        "removed_dead": state["removed_dead"],
        "logit_change": state["logit_change"],
        "stopped": state["stopped"],
        "points": state["points"],
    }
    return replace(started, model=model, noise=NoiseRecord.of(subject.noise), metrics=metrics, plan=plan)


def _prepare(
    run: Run,
    data: Dataset | UserBatches,
    options: PruneOptions,
    training: TrainOptions,
    loss: Loss | None,
    validation: UserBatches | None,
    device: str,
) -> tuple[Subject, Feed, int | None]:
    run.need_mean("pruned")
    target = None if options.target_flops is None else parse_target(options.target_flops, run.original["flops"])
    chosen = pick_device(device)
    torch.manual_seed(training.seed)
    model = copy.deepcopy(run.model).to(chosen)
    noise = run.attach_noise(model)
    if noise is not None:
        noise.to(chosen).detach()
    subject = Subject(model, noise, run.input_shape, training, loss)
    if target is not None and subject.flops.least() > target:
        raise TargetError(
            f"a target of {target:,} FLOPs cannot be met: one neuron in each layer still costs "
            f"{subject.flops.least():,}; raise --target-flops"
        )
    return subject, make_feed(data, validation, training, run.normalization, chosen), target


@dataclass(frozen=True)
class Preview:
    """What pruning would do, before any fine-tuning: the allocation is the first candidate's."""

    dead: int
    neurons: int
    widths: dict[str, int]
    planned: dict[str, int]
    flops: int
    planned_flops: int
    target: int | None

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
    """The plan and its cost; nothing is trained and nothing written."""
    training = training or TrainOptions()
    subject, feed, target = _prepare(run, data, options, training, None, None, device)
    before, flops = subject.widths(), subject.cost()
    dead, _ = find_dead(subject.model, subject.groups, feed.plain, progress or Progress())
    subject.remove(dead)
    planned = subject.widths()
    if target is not None and subject.cost() > target:
        planned = shrink_to(subject.flops, target, dict.fromkeys(planned, 1.0))
    return Preview(len(dead), sum(before.values()), before, planned, flops, subject.flops(planned), target)
