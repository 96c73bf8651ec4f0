"""What is measured, written and said at the end of an epoch."""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn

from snncompress.evaluation.accuracy import Evaluation, evaluate
from snncompress.evaluation.sampling import evaluate_samples
from snncompress.noise.attach import Noise
from snncompress.noise.branch import Branch, Mode
from snncompress.progress import Progress
from snncompress.run_folder import RunFolder
from snncompress.training.batchnorm import reestimate
from snncompress.training.feed import AnyBatches, Feed
from snncompress.training.learner import Learner

OBSERVED_BATCHES = 20  # of 250 images: enough for the history's quartiles
WATCHED_DRAWS = 3  # samples for the history's averages: evaluate --samples takes more


def end_of_epoch(learner: Learner, feed: Feed, folder: RunFolder, step: int, began: float, **extra: Any) -> None:
    """Validates by mean propagation, and by samples where they matter, and writes a line of history."""
    model, noise = learner.model, learner.noise
    if step:
        learner.check_finite()
    if extra or (noise is not None and step):  # gathered under noise, or with other weights than their mean
        reestimate(model, noise, feed.norms)
    if noise is not None:
        observe(model, noise, feed.plain, OBSERVED_BATCHES)
    result = validate(model, noise, feed.validation)
    record: dict[str, Any] = {"step": step, "epoch": step // max(len(feed.train), 1), **extra}
    record |= learner.means() if step and not extra else {}  # nothing was learned yet
    record |= {} if result is None else {"validation_error": result.error, "validation_nll": result.nll}
    if noise is not None:
        record |= _by_samples(model, noise, feed.validation) | {"noise": noise.summary()}
    folder.record({**record, "seconds": round(time.monotonic() - began, 3)})
    learner.forget_sums()


def _by_samples(model: nn.Module, noise: Noise, batches: AnyBatches | None) -> dict[str, float]:
    """Errors by one sample, by averaging, and with the means at zero, for methods that store knowledge in noise."""
    found: dict[str, float] = {}
    if batches is None:
        return found
    for mode in noise.kind.watched:
        result = evaluate_samples(model, noise, batches, WATCHED_DRAWS, mode=mode)
        if mode is Mode.ZERO:
            found["validation_error_zero_mean"] = result.averaged.error
        else:
            found["validation_error_one_sample"] = result.one.error
            found["validation_error_averaged"] = result.averaged.error
    return found


def metrics_of(folder: RunFolder) -> dict[str, Any]:
    """The last validation in the history as a run remembers it."""
    prefix = "validation_"
    last = {key[len(prefix) :]: value for key, value in folder.history[-1].items() if key.startswith(prefix)}
    return {"validation": last} if last else {}


def tell(progress: Progress, folder: RunFolder, learner: Learner) -> None:
    """One line about the epoch that has ended."""
    last, task = folder.history[-1], learner.task
    text = f"epoch {last['epoch']}/{learner.options.epochs}: loss {last['loss']:.4f}"
    if last["penalty"]:
        text += f", penalty {last['penalty']:.4f}"
    if "validation_error" in last:
        text += f", validation {task.word(last['validation_error'])}"
    if "validation_error_averaged" in last:
        text += f" by the mean, {task.show(last['validation_error_averaged'])} by averaging"
    progress.message(text)


def verdict(folder: RunFolder, learner: Learner, by: str = "") -> str:
    """The last validation as the end of a sentence; nothing without validation data."""
    error = folder.history[-1].get("validation_error")
    return "" if error is None else f": validation {learner.task.word(error)}{by}"


def validate(model: nn.Module, noise: Noise | None, batches: AnyBatches | None) -> Evaluation | None:
    """Evaluates the mean network; None without validation data."""
    if batches is None:
        return None
    with noise.mode(Mode.MEAN) if noise is not None else nullcontext():
        return evaluate(model, batches)


@torch.no_grad()
def observe(model: nn.Module, noise: Noise, batches: AnyBatches, count: int | None = None) -> None:
    """Lets the branches gather statistics over some batches, or all of them, with the mean passed on."""
    watchers = [branch for branch in noise.branches.values() if type(branch).observe is not Branch.observe]
    if not watchers:
        return
    for branch in watchers:
        branch.forget()
    model.eval()
    with noise.mode(Mode.OBSERVE):
        for index, (inputs, _) in enumerate(batches.epoch(0)):
            if index == count:
                break
            model(inputs)
