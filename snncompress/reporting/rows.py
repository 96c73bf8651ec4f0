"""One line of the report: what a model costs beside what the original cost."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from snncompress.data.task import Task
from snncompress.measure.cost import LayerCost, measure_cost, state_bytes


@dataclass(frozen=True)
class Row:
    """A measured model; percentages are of the original model's counts.

    Attributes:
        name: What the model is called.
        error: Its error in percent, or the RMSE of a regression; None if nobody evaluated it.
        weights: Non-zero weights.
        weights_percent: The same, of the original's.
        flops: Multiplications for one image.
        flops_percent: The same, of the original's.
        memory: Floats of hidden feature maps for one image.
        memory_percent: The same, of the original's.
        bytes: Size of its tensors on disk, zeros included.
        flops_sparse: Multiplications by weights that are not zero.
        stored_bytes: Size of its file where that leaves zeros out; None for other models.
        layers: What each layer costs, JSON-able; empty if nobody measured them.
        task: What the error is the error of.
        time_between: Of its time, by kind of operator, what belongs to no layer, as a share; None if nobody timed it.
            The others are in ``layers``, as ``time_share``.
        uncounted: Operators whose multiplications are in no count: ``module``, ``operator`` and ``calls`` of each.
    """

    name: str
    error: float | None
    weights: int
    weights_percent: float
    flops: int
    flops_percent: float
    memory: int
    memory_percent: float
    bytes: int
    flops_sparse: int
    stored_bytes: int | None = None
    layers: tuple[dict[str, Any], ...] = ()
    task: Task = Task.CLASSIFICATION
    uncounted: tuple[dict[str, Any], ...] = ()
    time_between: dict[str, float] | None = None


def make_row(
    name: str,
    model: nn.Module,
    input_shape: tuple[int, int, int],
    original: Mapping[str, int],
    error: float | None,
    original_neurons: Mapping[str, int] | None = None,
    stored_bytes: int | None = None,
    task: Task = Task.CLASSIFICATION,
) -> Row:
    """Measures a model for the report.

    Args:
        name: What to call it.
        model: The model.
        input_shape: Channels, height and width of the images it reads.
        original: ``weights``, ``flops`` and ``memory`` of the model before any pruning.
        error: Its error in the task's unit, if known.
        original_neurons: How many neurons each layer had before any pruning, if known.
        stored_bytes: Size of the file of a sparse model.
        task: What it is for.
    """
    cost = measure_cost(model, input_shape)
    return Row(
        name=name,
        error=error,
        weights=cost.weights,
        weights_percent=_percent(cost.weights, original["weights"]),
        flops=cost.flops,
        flops_percent=_percent(cost.flops, original["flops"]),
        memory=cost.memory,
        memory_percent=_percent(cost.memory, original["memory"]),
        bytes=state_bytes(model),
        flops_sparse=cost.flops_sparse,
        stored_bytes=stored_bytes,
        layers=tuple(_layer(layer, original_neurons or {}) for layer in cost.layers),
        task=task,
        uncounted=tuple(dataclasses.asdict(each) for each in cost.uncounted),
    )


def original_row(
    name: str, original: Mapping[str, int], error: float | None = None, task: Task = Task.CLASSIFICATION
) -> Row:
    """The line of the original model, from the counts (and ``bytes``) that a run carries with it."""
    return Row(
        name=name,
        error=error,
        weights=original["weights"],
        weights_percent=100.0,
        flops=original["flops"],
        flops_percent=100.0,
        memory=original["memory"],
        memory_percent=100.0,
        bytes=original["bytes"],
        flops_sparse=original["flops"],
        task=task,
    )


def add_times(row: Row, layers: Mapping[str, float], between: Mapping[str, float]) -> Row:
    """A row whose layers know their share of the time."""
    timed = tuple({**layer, "time_share": layers.get(layer["name"], 0.0)} for layer in row.layers)
    return dataclasses.replace(row, layers=timed, time_between=dict(between))


def _percent(count: int, whole: int) -> float:
    return 100 * count / whole if whole else 100.0


def _layer(layer: LayerCost, original_neurons: Mapping[str, int]) -> dict[str, Any]:
    values = dataclasses.asdict(layer)
    values["input_shape"], values["output_shape"] = list(layer.input_shape), list(layer.output_shape)
    return {**values, "original_neurons": original_neurons.get(layer.name)}
