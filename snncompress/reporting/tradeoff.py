"""Draws what compression costs: the error against the FLOPs, as pruning goes on."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from snncompress.errors import UsageError
from snncompress.files import write_bytes
from snncompress.reporting.table import format_flops

# Okabe and Ito's palette, told apart by people with any kind of colour vision; the marks differ in form too.
BLUE, VERMILLION, GREY = "#0072B2", "#D55E00", "#666666"


def plot_tradeoff(
    points: Sequence[Mapping[str, float]], out: Path, *, original_error: float | None, title: str
) -> None:
    """Draws a pruning run and writes the picture at once, in the format that its ending names.

    Args:
        points: ``flops`` and ``error`` (percent) in the order of pruning, the original first.
        out: The picture to write, ``.png``, ``.svg`` or ``.pdf``; an existing one is replaced.
        original_error: The original's error in percent, drawn as a line; None leaves it out.
        title: What stands above.

    Raises:
        UsageError: If there is nothing to draw, matplotlib is missing, or it cannot write such a file.
        RunError: If the picture cannot be written.
    """
    if not points:
        raise UsageError("there are no points to draw; prune a model first")
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise UsageError("drawing needs matplotlib; pip install snncompress[plots]") from None
    figure = Figure(figsize=(7, 4.2), dpi=150, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    endings = canvas.get_supported_filetypes()
    ending = out.suffix.removeprefix(".").lower()
    if ending not in endings:
        raise UsageError(f"cannot draw into '{out}': its ending is none of {', '.join(sorted(endings))}")
    _draw(figure.add_subplot(), points, original_error, title)
    picture = io.BytesIO()
    figure.savefig(picture, format=ending)
    write_bytes(out, picture.getvalue())


def _draw(axes: Any, points: Sequence[Mapping[str, float]], original_error: float | None, title: str) -> None:
    from matplotlib.ticker import LogLocator, NullLocator

    flops, errors = [point["flops"] for point in points], [point["error"] for point in points]
    dense = len(points) > 40  # single marks would run into each other
    axes.plot(flops, errors, color=BLUE, linewidth=1.5, marker=None if dense else "o", markersize=4, zorder=2)
    axes.plot(flops[0], errors[0], "s", color=GREY, markersize=8, zorder=3, label="original")
    axes.plot(flops[-1], errors[-1], "D", color=VERMILLION, markersize=8, zorder=3, label="compressed")
    if original_error is not None:
        axes.axhline(original_error, color=GREY, linewidth=1, linestyle="--", zorder=1, label="original's error")
    axes.annotate(
        f"{errors[-1]:.2f}%\n{format_flops(round(flops[-1]))}",
        (flops[-1], errors[-1]),
        xytext=(-9, 0),  # pruning comes from the right, so the left is free
        textcoords="offset points",
        ha="right",
        va="center",
        color=VERMILLION,
        fontweight="bold",
    )
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value / 1e6:g}M")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.margins(x=0.15, y=0.15)
    axes.set_xlabel("FLOPs (multiplications for one image)")
    axes.set_ylabel("Error (%)")
    axes.set_title(title, loc="left")
    axes.grid(True, which="major", color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
