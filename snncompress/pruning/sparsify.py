"""The verb: from a run to one with fewer weights."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from snncompress.data.dataset import Dataset
from snncompress.errors import UsageError
from snncompress.models.layers import weight_layers
from snncompress.progress import Progress
from snncompress.pruning.options import Scope, WeightOptions
from snncompress.pruning.points import metrics_of
from snncompress.pruning.session import config_of
from snncompress.pruning.sparsifier import CRITERIA, Sparsifier, pick_weight_criterion
from snncompress.pruning.subject import Subject
from snncompress.pruning.targets import targets_of
from snncompress.pruning.weights import WeightPruner
from snncompress.registry import load
from snncompress.run import NoiseRecord, Run
from snncompress.run_folder import RunFolder
from snncompress.storage import Storage
from snncompress.training.distillation import DistillOptions, Teacher, hear
from snncompress.training.feed import UserBatches, make_feed, pick_device, task_of
from snncompress.training.learner import Learner, Loss
from snncompress.training.options import TrainOptions


def prune_weights(
    run: Run,
    data: Dataset | UserBatches,
    options: WeightOptions,
    training: TrainOptions | None = None,
    *,
    loss: Loss | None = None,
    validation: UserBatches | None = None,
    teacher: Run | None = None,
    distill: DistillOptions = DistillOptions(),  # noqa: B008 (frozen)
    storage: Storage = Storage.CSR,
    out: str | Path | None = None,
    resume: bool = False,
    force: bool = False,
    device: str = "auto",
    command: Sequence[str] = (),
    progress: Progress | None = None,
) -> Run:
    """Sets weights of a run's model to zero, removes the neurons that this leaves idle, and returns a new run.

    Args:
        run: a run, best one whose weights have a distribution; it is left as it is.
        data: a loaded data set, or any re-iterable of (inputs, targets) batches.
        options: how many weights go, and which.
        training: learning rate, batch size, augmentation and seed of the fine-tuning.
        loss: takes outputs and targets; that of ``train`` when absent.
        validation: batches for validation when ``data`` is the user's own iterable.
        teacher: a run whose probabilities the fine-tuning learns from, best ``run`` itself.
        distill: how it is listened to.
        storage: how the new run's file holds its weights.
        out: the folder for the new run; nothing is written without it.
        resume: goes on where the run in ``out`` was interrupted.
        force: replaces an existing run in ``out``.
        device: ``auto``, ``cpu``, ``cuda``, ...
        command: what the user typed, for the record.
        progress: is told what happens.
    """
    training = training or TrainOptions()
    run = replace(run, task=task_of(data))
    folder = RunFolder(None if out is None else Path(out), command, training.save_every)
    pruner = _make_pruner(run, data, options, training, device, progress, folder, loss, validation, teacher, distill)
    config = {**config_of(options, training, teacher, distill), "storage": str(storage)}
    started = replace(run.successor(config), sparse=True, storage=storage)
    pruner.conduct(started, resume=resume, force=force)
    return folder.finish(_finished(started, run, pruner))


def _make_pruner(
    run: Run,
    data: Dataset | UserBatches,
    options: WeightOptions,
    training: TrainOptions,
    device: str,
    progress: Progress | None,
    folder: RunFolder,
    loss: Loss | None = None,
    validation: UserBatches | None = None,
    teacher: Run | None = None,
    distill: DistillOptions = DistillOptions(),  # noqa: B008 (frozen)
) -> WeightPruner:
    """What pruning begins with; what makes no sense is refused."""
    chosen = pick_device(device)
    torch.manual_seed(training.seed)
    heard = hear(teacher, run, distill, training, chosen)
    subject = make_subject(run, training, chosen, loss=loss, teacher=heard, keep=options.keep)
    criterion = pick_weight_criterion(options.criterion, subject.noise, run.posterior)
    _check(run, options, criterion)
    feed = make_feed(data, validation, training, run.normalization, chosen)
    torch.manual_seed(training.seed)
    targets = targets_of(run, options)
    return WeightPruner(subject, feed, options, targets, criterion, folder, progress or Progress())


@dataclass(frozen=True)
class WeightPreview:
    """What pruning would do at once, without rounds and fine-tuning.

    Attributes:
        criterion: what the weights rank by.
        threshold: the last score to stay, as ``--threshold`` takes it; None if each layer has its own.
        layers: by layer, its weights and those that would be left.
        cost: flops, size and memory now; zeros do not count.
        planned_cost: the same after pruning, idle neurons gone.
        targets: those that were given.
    """

    criterion: str
    threshold: float | None
    layers: dict[str, dict[str, int]]
    cost: dict[str, int]
    planned_cost: dict[str, int]
    targets: dict[str, int]

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def preview_weights(
    run: Run,
    data: Dataset | UserBatches,
    options: WeightOptions,
    training: TrainOptions | None = None,
    *,
    device: str = "auto",
    progress: Progress | None = None,
) -> WeightPreview:
    """How many weights would stay, where, and what that would cost; nothing is kept and nothing written."""
    run = replace(run, task=task_of(data))
    pruner = _make_pruner(run, data, options, training or TrainOptions(), device, progress, RunFolder(None))
    ranking, stay = pruner.decide()
    sparsifier = pruner.sparsifier
    cost, planned = pruner.cost(), sparsifier.cost_of(ranking, stay)
    with sparsifier.without(ranking.gone(stay)):
        layers = _layers(run, sparsifier)
    threshold = pruner.threshold(ranking, stay)
    targets = pruner.targets.given()
    return WeightPreview(pruner.criterion, threshold, layers, asdict(cost), asdict(planned), targets)


def make_subject(
    run: Run,
    training: TrainOptions,
    device: torch.device,
    *,
    loss: Loss | None = None,
    teacher: Teacher | None = None,
    keep: Sequence[str] = (),
) -> Subject:
    """A copy of a run's network whose weights can be removed; its zeros stay zero."""
    model = copy.deepcopy(run.model).to(device)
    noise = run.attach_noise(model)
    if noise is not None:
        noise.to(device)
        noise.hollow = run.hollow
        if run.hollow:
            noise.unsettle()
        noise.detach()
    learner = Learner(model, noise if run.hollow else None, training, loss, teacher, sparse=True, task=run.task)
    return Subject(learner, noise, run.input_shape, keep=keep, posterior=run.posterior)


def _check(run: Run, options: WeightOptions, criterion: str) -> None:
    """Refuses what makes no sense together."""
    check_hollow(run, criterion)
    if options.threshold is not None and (options.aimed or options.scope is Scope.LAYER):
        other = "a target" if options.aimed else "--scope layer"
        raise UsageError(f"--threshold says which weights go, and so does {other}; give one of them")
    aimless = not (options.aimed or options.limited or options.threshold is not None)
    if aimless and not hasattr(load(CRITERIA, criterion), "THRESHOLD"):
        raise UsageError("how far? give --target-size 5% (or -flops, -memory), --threshold, --max-error or --max-drop")


def check_hollow(run: Run, criterion: str) -> None:
    """Refuses a criterion of means where they carry nothing."""
    if criterion != "sigma":
        run.need_mean(f"pruned by {criterion}")


def _finished(started: Run, source: Run, pruner: WeightPruner) -> Run:
    subject, state = pruner.subject, pruner.state
    if pruner.sparsifier.hollow:
        subject.settle()
    model = subject.model.cpu().eval()
    last = state["points"][-1] if state["stopped"] is None else state["good_point"]
    plan: dict[str, Any] = {
        "targets": pruner.targets.given(),
        **asdict(pruner.cost()),
        "criterion": pruner.criterion,
        "threshold": state["threshold"],
        "layers": _layers(source, pruner.sparsifier),
        "kept": subject.kept(),
        "unprunable": subject.unprunable,
        "removed_neurons": state["removed_neurons"],
        "logit_change": state["logit_change"],
        "stopped": state["stopped"],
        "points": state["points"],
    }
    noise = NoiseRecord.of(subject.noise) if pruner.sparsifier.hollow else None
    return replace(started, model=model, noise=noise, metrics=metrics_of(last), plan=plan)


def _layers(source: Run, sparsifier: Sparsifier) -> dict[str, dict[str, int]]:
    """By layer: its weights before pruning, and those that are left."""
    left = sparsifier.nonzero()
    return {
        name: {"weights": layer.weight.numel(), "left": left[name]}
        for name, layer in weight_layers(source.model).items()
    }
