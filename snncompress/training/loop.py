"""The training loop: steps, validation after each epoch, a history, and a state that resumes exactly."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from snncompress.data.dataset import Dataset
from snncompress.errors import TrainingDivergedError, UsageError
from snncompress.noise.attach import Noise, attach
from snncompress.noise.branch import Clock, Mode
from snncompress.progress import Progress
from snncompress.run import NoiseRecord, Run
from snncompress.run_folder import RunFolder
from snncompress.training.adversarial import AdversarialOptions, Attacker
from snncompress.training.averaging import WeightAverage
from snncompress.training.correcting import check_combination, correct
from snncompress.training.distillation import DistillOptions, hear, to_record
from snncompress.training.epoch_end import end_of_epoch, metrics_of, tell, verdict
from snncompress.training.feed import (
    Cursor,
    Feed,
    UserBatches,
    count_examples,
    make_feed,
    pick_device,
    task_of,
)
from snncompress.training.interrupt import interrupted, watch_interrupt
from snncompress.training.langevin import Langevin, PosteriorOptions
from snncompress.training.learner import Learner, Loss
from snncompress.training.options import TrainOptions

SHOW_EVERY = 10  # steps: reading the loss waits for the device


def train(
    run: Run,
    data: Dataset | UserBatches,
    options: TrainOptions | None = None,
    *,
    method: str = "none",
    method_options: dict[str, Any] | None = None,
    layers: Sequence[str] | None = None,
    loss: Loss | None = None,
    teacher: Run | None = None,
    distill: DistillOptions | None = None,
    posterior: PosteriorOptions | None = None,
    correction: str | None = None,
    correction_from: Run | None = None,
    adversarial: AdversarialOptions | None = None,
    validation: UserBatches | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    force: bool = False,
    device: str = "auto",
    command: Sequence[str] = (),
    progress: Progress | None = None,
) -> Run:
    """Trains a run's model, plainly or with noise, and returns a new run.

    Args:
        run: what ``snncompress.load`` or ``snncompress.wrap`` gave; it is left as it is.
        data: a loaded data set, or any re-iterable of (inputs, targets) batches.
        options: epochs, learning rate and so on.
        method: ``none``, or a noise method that ``snncompress list methods`` shows.
        method_options: options of the method.
        layers: names or globs of the layers that become stochastic, or ``all``, ``hidden``, ``inner``,
            ``last-hidden``, ``first-linear``; the method's own choice when absent.
        loss: takes outputs and targets; when absent, cross-entropy, or half the squared error where the targets are
            one float a sample.
        teacher: a run whose probabilities are learned from.
        distill: how much, and how softly.
        posterior: samples the weights' posterior after training.
        correction: a loss for labels that may be wrong, of ``snncompress list corrections``, such as ``forward``.
        correction_from: a run on the same labels without correction, for a correction that learns from one.
        adversarial: half of the loss is that of attacked images.
        validation: batches for validation when ``data`` is the user's own iterable.
        out: the folder for the run; nothing is written without it.
        resume: goes on where the run in ``out`` was interrupted.
        force: replaces an existing run in ``out``.
        device: ``auto``, ``cpu``, ``cuda``, ...
        command: what the user typed, for the record.
        progress: is told what happens.
    """
    options = options or TrainOptions()
    progress = progress or Progress()
    chosen = pick_device(device)
    run = replace(run, task=task_of(data))
    torch.manual_seed(options.seed)
    model = copy.deepcopy(run.model).to(chosen)
    noise = None
    if method == "none" and (method_options or layers):
        raise UsageError(f"method none has no option '{next(iter(method_options or {'layers': None}))}'; leave it out")
    if method != "none":
        noise = _attach(run, model, method, method_options, layers).to(chosen)
    if run.hollow and not _continues(run, method, layers):
        progress.message(f"the variances of layer {run.hollow[0]} are dropped; training starts from its mean, zero")
    feed = make_feed(data, validation, options, run.normalization, chosen)
    distill = distill or DistillOptions()
    guide = hear(teacher, run, distill, options, chosen)
    corrected = None
    if correction is not None:
        check_combination(correction, teacher, posterior=posterior is not None, own_loss=loss is not None)
        corrected = correct(correction, correction_from, run, feed.plain, chosen, progress)
        loss = corrected.loss
    config = {
        **{key: value for key, value in asdict(options).items() if key != "save_every"},
        "method": method,
        "method_options": dict(method_options or {}),
        "layers": None if layers is None else list(layers),
        "distill": to_record(teacher, distill),
        "posterior": None if posterior is None else asdict(posterior),
        "correction": None if corrected is None else corrected.record,
        "adversarial": None if adversarial is None else asdict(adversarial),
    }
    if posterior is not None and options.average is not None:
        raise UsageError("--posterior gives the weights a mean of its own; leave --average or --posterior out")
    attacker = None if adversarial is None else _attacker(adversarial, options, run, data, chosen)
    folder = RunFolder(None if out is None else Path(out), command, options.save_every)
    learner = Learner(model, noise, options, loss, guide, sparse=run.sparse, task=run.task, attacker=attacker)
    started = run.successor(config)
    step, drawn = 0, 0
    with folder:
        saved = folder.resume(started) if resume else None
        if saved is not None:
            learner.restore(saved[0])
            step, drawn = saved[1]["step"], saved[1].get("drawn", 0)
        elif not resume:
            folder.start(started, force=force)
        if corrected is not None and corrected.matrix is not None:
            folder.keep("corruption.json", corrected.matrix)
        average = None
        if options.average is not None:  # of the parameters as they are after a restoration, which may renew them
            average = WeightAverage(learner.parameters, (options.epochs - options.average) * len(feed.train))
            if saved is not None:
                average.restore(saved[0])
        metrics = _loop(learner, feed, folder, step, progress, average)
        if posterior is not None:
            if noise is not None and not drawn:
                noise.settle()  # the walk is through the weights of the mean
            walk = Langevin(model, learner.loss, posterior, count_examples(feed.train), sparse=run.sparse)
            if drawn and saved is not None:
                walk.restore(saved[0], drawn)
            metrics = _sample_posterior(walk, learner, feed, folder, progress)
            started = replace(started, posterior=walk.moments())
    if noise is not None:
        noise.settle()
        noise.detach()
    finished = replace(started, model=model.cpu().eval(), metrics=metrics, noise=NoiseRecord.of(noise))
    return folder.finish(finished)


def _attacker(
    adversarial: AdversarialOptions, options: TrainOptions, run: Run, data: Dataset | UserBatches, device: torch.device
) -> Attacker:
    if options.mixup is not None:
        raise UsageError("--adversarial attacks images as they are; leave --mixup or --adversarial out")
    if not isinstance(data, Dataset):
        raise UsageError("adversarial training must know what pixels are: give a data set of load_data, not batches")
    return Attacker(adversarial, run.normalization, run.input_shape, device)


def _continues(run: Run, method: str, layers: Sequence[str] | None) -> bool:
    """Whether the branches that the run was trained with go on learning."""
    return run.noise_method == method and layers is None


def _attach(
    run: Run, model: nn.Module, method: str, options: dict[str, Any] | None, layers: Sequence[str] | None
) -> Noise:
    """The branches that the run was trained with, if they go on learning; else new ones."""
    if _continues(run, method, layers):
        noise = run.attach_noise(model, options)
        assert noise is not None
        noise.unsettle()
        return noise
    noise = attach(model, method, run.input_shape, options, layers)
    if run.sparse:
        noise.silence_zeros()
    return noise


def _loop(
    learner: Learner, feed: Feed, folder: RunFolder, step: int, progress: Progress, average: WeightAverage | None
) -> dict[str, Any]:
    """Takes the remaining steps; returns the last validation, as a run's metrics."""
    options, length = learner.options, len(feed.train)
    total, examples = options.epochs * length, count_examples(feed.train)
    cursor = Cursor(feed.train)

    def save() -> None:
        folder.save(learner.tensors() | ({} if average is None else average.tensors()), {"step": step})

    fresh = not folder.history
    if fresh:
        end_of_epoch(learner, feed, folder, 0, time.monotonic())  # the checkpoint as it came
    began = time.monotonic()
    with watch_interrupt() as interrupt:
        if fresh:
            save()
        progress.start("train", total, done=step)
        while step < total:
            if learner.noise is not None:
                learner.noise.tell(Clock(step / length, examples))
            learner.step(*cursor.take(step), lr=options.rate(step / total))
            step += 1
            if average is not None:
                average.gather(step)
            if step % SHOW_EVERY == 0 or step == total:
                progress.advance(step % SHOW_EVERY or SHOW_EVERY, **learner.shown())
            if step % length == 0:
                end_of_epoch(learner, feed, folder, step, began)
                began = time.monotonic()
                tell(progress, folder, learner)
            if folder.due() or interrupt.requested:
                learner.check_finite()
                save()
            if interrupt.requested:
                raise interrupted(f"at step {step} of {total}", folder.path)
    progress.finish()
    learner.check_finite()
    if average is not None:
        average.settle()
        end_of_epoch(learner, feed, folder, step, began, averaged=learner.options.average)
        progress.message(f"weights averaged over the last epochs{verdict(folder, learner)}")
    return metrics_of(folder)


def _sample_posterior(
    walk: Langevin, learner: Learner, feed: Feed, folder: RunFolder, progress: Progress
) -> dict[str, Any]:
    """Draws the remaining samples, with the noise at its mean, and gives the model the posterior's mean."""
    options, length = learner.options, len(feed.train)
    trained, total = options.epochs * length, walk.options.samples
    cursor = Cursor(feed.train)
    began = time.monotonic()
    progress.start("posterior", total, done=walk.count)
    quiet = learner.noise.mode(Mode.MEAN) if learner.noise is not None else nullcontext()
    with watch_interrupt() as interrupt, quiet:
        while walk.count < total:
            loss = walk.step(*cursor.take(trained + walk.count))
            if walk.count % SHOW_EVERY == 0 or walk.count == total:
                if not math.isfinite(float(loss)):
                    raise _walk_diverged(walk)
                progress.advance(walk.count % SHOW_EVERY or SHOW_EVERY, loss=float(loss))
            if folder.due() or interrupt.requested:
                try:
                    learner.check_finite()
                except TrainingDivergedError:
                    raise _walk_diverged(walk) from None
                folder.save(learner.tensors() | walk.tensors(), {"step": trained, "drawn": walk.count})
            if interrupt.requested:
                raise interrupted(f"at sample {walk.count} of {total}", folder.path)
    progress.finish()
    walk.settle()
    end_of_epoch(learner, feed, folder, trained, began, posterior=walk.count)
    progress.message(f"{total:,} samples of the posterior{verdict(folder, learner, ' by their mean')}")
    return metrics_of(folder)


def _walk_diverged(walk: Langevin) -> TrainingDivergedError:
    return TrainingDivergedError(
        f"Langevin dynamics diverged at sample {walk.count}; start again with --force and a smaller "
        f"--posterior-lr than {walk.lr:g}"
    )
