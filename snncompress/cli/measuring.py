"""Evaluation of a run on a split, remembered in the run's folder."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from snncompress.errors import RunError

if TYPE_CHECKING:
    from snncompress.cli.opening import Opened
    from snncompress.evaluation.accuracy import Evaluation
    from snncompress.evaluation.sampling import StochasticEvaluation
    from snncompress.progress import Progress


def evaluate_by_samples(
    opened: Opened, split: str, draws: int, seed: int, device: str, progress: Progress
) -> StochasticEvaluation:
    """Evaluates a stochastic run in all ways; the result on the run's own data is stored in ``run.json``."""
    from snncompress.evaluation.sampling import evaluate_stochastic
    from snncompress.training.feed import pick_device

    batches, training = opened.batches(split, device), opened.batches("train", device)
    result = evaluate_stochastic(
        opened.run, batches, training, draws, seed=seed, device=pick_device(device), progress=progress
    )
    _store(opened, split, result.to_json())
    return result


def evaluate_split(opened: Opened, split: str, device: str, progress: Progress) -> Evaluation:
    """Evaluates; the result on the run's own data is stored in ``run.json``."""
    from snncompress.evaluation.accuracy import evaluate
    from snncompress.training.feed import pick_device

    run, batches = opened.run, opened.batches(split, device)
    result = evaluate(run.model.to(pick_device(device)), batches, progress, f"evaluate {run.name}")
    run.model.cpu()
    _store(opened, split, asdict(result))
    return result


def _store(opened: Opened, split: str, metrics: dict[str, Any]) -> None:
    from snncompress.run_files import store_metrics

    if opened.run.path is not None and opened.own:
        with suppress(RunError):  # it is only a note: a run that others own may be evaluated, too
            store_metrics(opened.run, {split: metrics})
