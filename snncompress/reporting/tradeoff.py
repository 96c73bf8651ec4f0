"""Draws what compression costs: the error against FLOPs, weights and memory, as pruning goes on."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from snncompress.data.task import Task
from snncompress.errors import UsageError
from snncompress.files import write_bytes
from snncompress.run import Run

# Okabe and Ito's palette, told apart by people with any kind of colour vision; the marks differ in form too.
BLUE, VERMILLION, GREY = "#0072B2", "#D55E00", "#666666"
AXES = {  # what a point may hold
    "flops": "FLOPs (multiplications for one image)",
    "size": "Weights",
    "memory": "Memory (floats of hidden feature maps)",
}


def plot_tradeoff(
    points: Sequence[Mapping[str, float]],
    out: Path,
    *,
    original_error: float | None,
    title: str,
    task: Task = Task.CLASSIFICATION,
) -> None:
    """Draws a pruning run and writes the picture at once, in the format that its ending names.

    Args:
        points: ``flops``, ``error`` (in the task's unit) and, if known, ``size`` and ``memory``, in the order of
            pruning, the original first.
        out: The picture to write, ``.png``, ``.svg`` or ``.pdf``; an existing one is replaced.
        original_error: The original's error, drawn as a line; None leaves it out.
        title: What stands above.
        task: What the error is the error of.

    Raises:
        UsageError: If there is nothing to draw, matplotlib is missing, or it cannot write such a file.
        RunError: If the picture cannot be written.
    """
    if not points:
        raise UsageError("there are no points to draw: the run kept no validation data while it was pruned")
    counts = [name for name in AXES if all(name in point for point in points)]
    figure, panes = figure_of(out, len(counts))
    for panel, (name, axes) in enumerate(zip(counts, panes, strict=True)):
        _draw(axes, points, name, original_error, task)
        if panel == 0:
            axes.set_ylabel(task.axis())
            axes.set_title(title, loc="left")
            axes.legend(frameon=False)
    write_figure(figure, out)


def write_figure(figure: Any, out: Path) -> None:
    """Writes a picture at once, in the format that its ending names."""
    picture = io.BytesIO()
    figure.savefig(picture, format=out.suffix.removeprefix(".").lower())
    write_bytes(out, picture.getvalue())


def figure_of(out: Path, panels: int) -> tuple[Any, Any]:
    """A figure with some panels side by side that can be written into a file; its panels.

    Raises:
        UsageError: If matplotlib is missing, or it cannot write such a file.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise UsageError("drawing needs matplotlib; pip install snncompress[plots]") from None
    figure = Figure(figsize=(2 + 5 * panels, 4.2), dpi=150, layout="constrained")
    endings = FigureCanvasAgg(figure).get_supported_filetypes()
    if out.suffix.removeprefix(".").lower() not in endings:
        raise UsageError(f"cannot draw into '{out}': its ending is none of {', '.join(sorted(endings))}")
    return figure, figure.subplots(1, panels, squeeze=False)[0]


def plot_run(run: Run, out: Path) -> None:
    """Draws how a run was pruned; its errors are those on validation images."""
    assert run.plan is not None
    points = [point for point in run.plan["points"] if "error" in point]
    title = f"{run.name}: validation {run.task.measure} while pruning"
    plot_tradeoff(points, out, original_error=points[0]["error"] if points else None, title=title, task=run.task)


def _short(count: float) -> str:
    """1.2M, 34k, 560."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:.3g}{letter}"
    return f"{count:g}"


def _draw(
    axes: Any, points: Sequence[Mapping[str, float]], count: str, original_error: float | None, task: Task
) -> None:
    from matplotlib.ticker import LogLocator, NullLocator

    costs, errors = [point[count] for point in points], [point["error"] for point in points]
    dense = len(points) > 40  # single marks would run into each other
    axes.plot(costs, errors, color=BLUE, linewidth=1.5, marker=None if dense else "o", markersize=4, zorder=2)
    axes.plot(costs[0], errors[0], "s", color=GREY, markersize=8, zorder=3, label="original")
    axes.plot(costs[-1], errors[-1], "D", color=VERMILLION, markersize=8, zorder=3, label="compressed")
    if original_error is not None:
        axes.axhline(
            original_error, color=GREY, linewidth=1, linestyle="--", zorder=1, label=f"original's {task.measure}"
        )
    axes.annotate(
        f"{task.show(errors[-1])}\n{_short(costs[-1])}",
        (costs[-1], errors[-1]),
        xytext=(-9, 0),  # pruning comes from the right, so the left is free
        textcoords="offset points",
        ha="right",
        va="center",
        color=VERMILLION,
        fontweight="bold",
    )
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(lambda value, _: _short(value))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.margins(x=0.22, y=0.15)  # room for the number beside the last point
    axes.set_xlabel(AXES[count])
    axes.grid(True, which="major", color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
