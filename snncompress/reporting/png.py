"""The page's pictures as PNG files, by matplotlib."""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from snncompress.errors import UsageError
from snncompress.files import make_folder, write_bytes
from snncompress.reporting.charts import (
    COLOURS,
    DASHES,
    SURENESS,
    BarChart,
    Chart,
    Histogram,
    LineChart,
    ReliabilityChart,
    Series,
    short,
    ticks,
)
from snncompress.reporting.svg import stretch

GREY, GHOST = "#666666", "#e3dfd8"
KEPT, REMOVED = COLOURS[0], COLOURS[1]


def write_pictures(charts: Sequence[Chart], folder: Path) -> list[Path]:
    """Draws each chart into a file named by its key; returns the files.

    Raises:
        UsageError: If matplotlib is missing.
        RunError: If a file cannot be written.
    """
    pictures = {f"{chart.key}.png": _picture(chart) for chart in charts}
    make_folder(folder)
    for name, picture in pictures.items():
        write_bytes(folder / name, picture)
    return [folder / name for name in pictures]


def _picture(chart: Chart) -> bytes:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise UsageError("drawing needs matplotlib; pip install snncompress[plots]") from None
    height = 0.9 + 0.28 * len(chart.bars) if isinstance(chart, BarChart) else 4.2
    figure = Figure(figsize=(6.4, height), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.set_title(chart.title, loc="left", parse_math=False)
    axes.spines[["top", "right"]].set_visible(False)
    if isinstance(chart, LineChart):
        _draw_lines(axes, chart)
    elif isinstance(chart, BarChart):
        _draw_bars(axes, chart)
    elif isinstance(chart, ReliabilityChart):
        _draw_reliability(axes, chart)
    else:
        _draw_histogram(axes, chart)
    out = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # names may be in any script
        figure.savefig(out, format="png")
    return out.getvalue()


def _draw_lines(axes: Any, chart: LineChart) -> None:
    for series in chart.series:
        _draw_series(axes, series)
    for mark in chart.marks:
        form = "s" if mark.square else "D"
        axes.plot(mark.x, mark.y, form, color=COLOURS[mark.colour], markersize=8, zorder=3,
                  label=_plain(mark.name) if mark.name else None)  # fmt: skip
        if mark.text:
            axes.annotate(mark.text, (mark.x, mark.y), xytext=(9, 6), textcoords="offset points", fontweight="bold",
                          color=COLOURS[mark.colour])  # fmt: skip
    if chart.level is not None:
        axes.axhline(chart.level[0], color=GREY, linewidth=1, linestyle="--", zorder=1, label=chart.level[1])
    x_ends, y_ends = stretch(chart.xs(), chart.log_x, 0.04), stretch(chart.ys(), chart.log_y)
    for index, (place, name) in enumerate(chart.dividers):
        if index:
            axes.axvline(place, color=GREY, linewidth=0.8, linestyle=":")
        if len(chart.dividers) > 1:
            axes.annotate(
                name, (place, 1), xycoords=("data", "axes fraction"), xytext=(4, -10), textcoords="offset points",
                fontsize=8, style="italic", color=GREY, parse_math=False, in_layout=False,
            )  # fmt: skip
    axes.set_xscale("log" if chart.log_x else "linear")
    if chart.log_y:
        axes.set_yscale("log", nonpositive="clip")  # zeros lie on the floor
    axes.set(xlim=x_ends, ylim=y_ends, xlabel=chart.x_label, ylabel=chart.y_label)
    _set_ticks(axes.xaxis, *x_ends, chart.log_x)
    _set_ticks(axes.yaxis, *y_ends, chart.log_y)
    axes.grid(True, which="major", color="#dddddd", linewidth=0.6)
    if len(chart.series) > 1 or chart.marks:
        axes.legend(frameon=False, fontsize=8)


def _draw_series(axes: Any, series: Series) -> None:
    colour, dash = COLOURS[series.colour % len(COLOURS)], DASHES[series.colour % len(DASHES)]
    style = (0, dash) if dash else "-"
    dot = "o" if len(series.xs) == 1 else None  # no line goes through one point
    axes.plot(series.xs, series.ys, color=colour, linewidth=1.5, linestyle=style, marker=dot, label=_plain(series.name))
    if series.band is not None:
        axes.fill_between(series.xs, *series.band, color=colour, alpha=0.16, linewidth=0)


def _plain(name: str) -> str:
    """A name that matplotlib neither hides (a leading underscore) nor takes for mathematics."""
    return "\u200b" + name.replace("$", r"\$")


def _set_ticks(axis: Any, low: float, high: float, log: bool) -> None:
    """The same round numbers as on the page."""
    from matplotlib.ticker import FixedLocator, NullLocator

    axis.set_major_locator(FixedLocator(ticks(low, high, log)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(lambda value, _: short(value))


def _draw_bars(axes: Any, chart: BarChart) -> None:
    places = range(len(chart.bars))
    shares = chart.shares()
    axes.barh(places, [100 * was for was, _ in shares], color=GHOST)
    axes.barh(places, [100 * left for _, left in shares], color=KEPT)
    axes.set_yticks(places, [bar.name for bar in chart.bars], parse_math=False)
    axes.invert_yaxis()
    axes.set(xlim=(0, 125), xlabel=chart.x_label, xticks=[0, 25, 50, 75, 100])
    for place, bar in zip(places, chart.bars, strict=True):
        axes.text(102, place, bar.told, va="center", fontsize=8)


def _draw_reliability(axes: Any, chart: ReliabilityChart) -> None:
    width = 1 / len(chart.counts)
    for piece in chart.pieces():
        axes.bar(piece.left, piece.top - piece.bottom, width, piece.bottom, align="edge", edgecolor="white",
                 linewidth=0.8, color=COLOURS[piece.colour], alpha=piece.strength)  # fmt: skip
    for colour in sorted({piece.colour for piece in chart.pieces() if piece.top > piece.bottom}):
        axes.bar(0, 0, color=COLOURS[colour], label=SURENESS[colour])  # for the legend, in full colour
    axes.plot([0, 1], [0, 1], color=GREY, linewidth=1, linestyle="--", label="as sure as right")
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="Confidence (paler: fewer predictions)", ylabel="Accuracy")
    axes.legend(frameon=False, fontsize=8, loc="upper left")


def _draw_histogram(axes: Any, chart: Histogram) -> None:
    lefts = chart.edges[:-1]
    width = chart.edges[1] - chart.edges[0]
    removed = chart.removed or (0,) * len(chart.kept)
    bottoms = (0,) * len(removed) if chart.log_y else chart.kept  # stacked bars lie on a logarithmic axis
    axes.bar(lefts, removed, width, bottoms, align="edge", color=REMOVED, label="removed")
    axes.bar(lefts, chart.kept, width, align="edge", color=KEPT, label="kept", alpha=0.8 if chart.log_y else 1)
    axes.set(xlabel=chart.x_label, ylabel=chart.what.capitalize(), yscale="log" if chart.log_y else "linear")
    if chart.removed is not None:
        axes.legend(frameon=False)
