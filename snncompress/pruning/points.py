"""Models on the way of a pruning run, brought back: any point of its trade-off curve."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from snncompress.data.task import Task
from snncompress.errors import RunError, UsageError
from snncompress.files import read_tensors
from snncompress.models.shapes import restore
from snncompress.run import Run
from snncompress.run_folder import POINTS, RunFolder


def restore_point(
    run: Run,
    *,
    under: float | None = None,
    point: int | None = None,
    out: str | Path | None = None,
    force: bool = False,
    command: Sequence[str] = (),
) -> Run:
    """The model that a pruning run had at one of its points, as a run of its own.

    Args:
        run: a pruned run with a folder.
        under: takes the cheapest point whose validation error (percent; an RMSE in its unit) is at most this.
        point: takes this one, counted from 0.
        out: the folder for the new run; nothing is written without it.
        force: replaces an existing run in ``out``.
        command: what the user typed, for the record.
    """
    points = points_of(run)
    run.need_mean("brought back to a point")  # those hold no variances
    index = _cheapest(points, under, run.task) if point is None else point
    if not 0 <= index < len(points):
        raise UsageError(f"there is no point {index}; the points of this run are 0 to {len(points) - 1}")
    assert run.path is not None
    file = run.path / POINTS / f"{index:03}.safetensors"
    if not file.is_file():
        raise RunError(f"{file} is missing, so point {index} cannot be restored; choose another, or prune again")
    tensors, meta = read_tensors(file)
    model = copy.deepcopy(run.model)
    restore(model, meta["shapes"], tensors)
    started = run.successor({"point": index})
    finished = replace(started, model=model.eval(), metrics=metrics_of(points[index]))
    with RunFolder(None if out is None else Path(out), command) as folder:
        folder.start(started, force=force)
        return folder.finish(finished)


def metrics_of(point: Mapping[str, Any]) -> dict[str, Any]:
    """What a run says of itself at a point of its trade-off."""
    return {"validation": {key: point[key] for key in ("error", "nll")}} if "error" in point else {}


def points_of(run: Run) -> list[dict[str, Any]]:
    """The points of a pruned run, in the order of pruning."""
    if run.plan is None or run.path is None:
        raise UsageError(f"{run.path or run.name} was not pruned, so it has no points to restore; name a pruned run")
    return list(run.plan["points"])


def _cheapest(points: Sequence[dict[str, Any]], under: float | None, task: Task) -> int:
    if under is None:
        raise UsageError("which point? give --keep-best-under ERROR or --point N")
    errors = [point["error"] for point in points if "error" in point]
    if not errors:
        raise UsageError(f"no point has a validation {task.measure}: the run kept no validation data; give --point N")
    good = [index for index, point in enumerate(points) if point.get("error", float("inf")) <= under]
    if not good:
        best = task.show(min(errors))
        raise UsageError(
            f"no point has a validation {task.measure} of at most {under:g}{task.unit}; the best has {best}"
        )
    return min(good, key=lambda index: (points[index]["flops"], points[index]["size"], points[index]["error"]))
