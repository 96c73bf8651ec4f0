"""Evaluation of a run on a split, remembered in the run's folder."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING

from snncompress.errors import RunError

if TYPE_CHECKING:
    from snncompress.cli.opening import Opened
    from snncompress.evaluation.accuracy import Evaluation
    from snncompress.progress import Progress


def evaluate_split(opened: Opened, split: str, device: str, progress: Progress) -> Evaluation:
    """Evaluates; the result on the run's own data is stored in ``run.json``."""
    from snncompress.evaluation.accuracy import evaluate
    from snncompress.run import store_metrics
    from snncompress.training.feed import pick_device

    run, batches = opened.run, opened.batches(split, device)
    result = evaluate(run.model.to(pick_device(device)), batches, progress, f"evaluate {run.name}")
    run.model.cpu()
    if run.path is not None and opened.own:
        with suppress(RunError):  # it is only a note: a run that others own may be evaluated, too
            store_metrics(run, {split: asdict(result)})
    return result
