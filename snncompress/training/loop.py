"""The training loop: steps, validation after each epoch, a history, and a state that resumes exactly."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from snncompress.data.dataset import Dataset
from snncompress.evaluation.accuracy import Evaluation, evaluate
from snncompress.noise.attach import Noise, attach
from snncompress.noise.branch import Mode
from snncompress.progress import Progress
from snncompress.run import NoiseRecord, Run
from snncompress.run_folder import RunFolder
from snncompress.training.batchnorm import reestimate
from snncompress.training.feed import AnyBatches, Cursor, Feed, UserBatches, make_feed, pick_device
from snncompress.training.interrupt import interrupted, watch_interrupt
from snncompress.training.learner import Learner, Loss
from snncompress.training.options import TrainOptions

SHOW_EVERY = 10  # steps: reading the loss waits for the device
OBSERVED_BATCHES = 5  # of 1,000 images: enough for the history's quartiles


def train(
    run: Run,
    data: Dataset | UserBatches,
    options: TrainOptions | None = None,
    *,
    method: str = "none",
    method_options: dict[str, Any] | None = None,
    layers: Sequence[str] | None = None,
    loss: Loss | None = None,
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
        layers: names or globs of the layers that become stochastic; all but the classifier when absent.
        loss: takes outputs and targets; cross-entropy when absent.
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
    torch.manual_seed(options.seed)
    model = copy.deepcopy(run.model).to(chosen)
    noise = None
    if method != "none":
        noise = _attach(run, model, method, method_options, layers).to(chosen)
    feed = make_feed(data, validation, options, run.normalization, chosen)
    config = {**asdict(options), "method": method, "method_options": dict(method_options or {})}
    config |= {"layers": None if layers is None else list(layers)}
    del config["save_every"]
    folder = RunFolder(None if out is None else Path(out), command, options.save_every)
    learner = Learner(model, noise, options, loss)
    started = run.successor(config)
    step = 0
    with folder:
        saved = folder.resume(started) if resume else None
        if saved is not None:
            learner.restore(saved[0])
            step = saved[1]["step"]
        elif not resume:
            folder.start(started, force=force)
        last = _loop(learner, feed, folder, step, progress)
    if noise is not None:
        noise.detach()
    metrics = {} if last is None else {"validation": asdict(last)}
    finished = replace(started, model=model.cpu().eval(), metrics=metrics, noise=NoiseRecord.of(noise))
    return folder.finish(finished)


def _attach(
    run: Run, model: nn.Module, method: str, options: dict[str, Any] | None, layers: Sequence[str] | None
) -> Noise:
    """The branches that the run was trained with, if the method is the same; else new ones."""
    if run.noise is not None and run.noise.json["method"] == method and layers is None:
        noise = run.attach_noise(model, options)
        assert noise is not None
        return noise
    return attach(model, method, run.input_shape, options, layers)


def _loop(learner: Learner, feed: Feed, folder: RunFolder, step: int, progress: Progress) -> Evaluation | None:
    """Takes the remaining steps; returns the last evaluation."""
    options, length = learner.options, len(feed.train)
    total = options.epochs * length
    cursor = Cursor(feed.train)
    result = None
    if not folder.history:
        result = _end_of_epoch(learner, feed, folder, 0, time.monotonic())  # the checkpoint as it came
        folder.save(learner.tensors(), {"step": 0})
    progress.start("train", total, done=step)
    began = time.monotonic()
    with watch_interrupt() as interrupt:
        while step < total:
            learner.step(*cursor.take(step), lr=options.rate(step / total))
            step += 1
            if step % SHOW_EVERY == 0 or step == total:
                progress.advance(step % SHOW_EVERY or SHOW_EVERY, **learner.means())
            if step % length == 0:
                result = _end_of_epoch(learner, feed, folder, step, began)
                began = time.monotonic()
                _tell(progress, folder, options.epochs)
            if folder.due() or interrupt.requested:
                learner.check_finite()
                folder.save(learner.tensors(), {"step": step})
            if interrupt.requested:
                raise interrupted(f"at step {step} of {total}", folder.path)
    progress.finish()
    learner.check_finite()
    if result is None:  # resumed when only the last save was missing
        result = validate(learner.model, learner.noise, feed.validation)
    return result


def _end_of_epoch(learner: Learner, feed: Feed, folder: RunFolder, step: int, began: float) -> Evaluation | None:
    """Validates with the noise off and writes a line of history."""
    if step:
        learner.check_finite()
    if learner.noise is not None:
        if step:
            reestimate(learner.model, learner.noise, feed.plain)
        observe(learner.model, learner.noise, feed.plain, OBSERVED_BATCHES)
    result = validate(learner.model, learner.noise, feed.validation)
    record: dict[str, Any] = {"step": step, "epoch": step // max(len(feed.train), 1)}
    record |= learner.means() if step else {}  # nothing was learned yet
    record |= {} if result is None else {"validation_error": result.error, "validation_nll": result.nll}
    record |= {"noise": learner.noise.summary()} if learner.noise is not None else {}
    folder.record({**record, "seconds": round(time.monotonic() - began, 3)})
    learner.forget_sums()
    return result


def _tell(progress: Progress, folder: RunFolder, epochs: int) -> None:
    last = folder.history[-1]
    text = f"epoch {last['epoch']}/{epochs}: loss {last['loss']:.4f}"
    if last["penalty"]:
        text += f", penalty {last['penalty']:.4f}"
    if "validation_error" in last:
        text += f", validation error {last['validation_error']:.2f}%"
    progress.message(text)


def validate(model: nn.Module, noise: Noise | None, batches: AnyBatches | None) -> Evaluation | None:
    """Evaluates the mean network; None without validation data."""
    if batches is None:
        return None
    with noise.mode(Mode.MEAN) if noise is not None else nullcontext():
        return evaluate(model, batches)


@torch.no_grad()
def observe(model: nn.Module, noise: Noise, batches: AnyBatches, count: int | None = None) -> None:
    """Lets the branches gather statistics over some batches, or all of them, with the mean passed on."""
    for branch in noise.branches.values():
        branch.forget()
    model.eval()
    with noise.mode(Mode.OBSERVE):
        for index, (inputs, _) in enumerate(batches.epoch(0)):
            if index == count:
                break
            model(inputs)
