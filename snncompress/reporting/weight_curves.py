"""Draws error against the share of weights removed, and the moments of the weights' distribution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snncompress.reporting.charts import COLOURS
from snncompress.reporting.tradeoff import figure_of, write_figure

if TYPE_CHECKING:
    from snncompress.pruning.curves import Curve

MARKS = "osD^vPX"
Moments = tuple[Sequence[float], Sequence[float]]


def plot_curves(
    curves: Sequence[Curve], out: Path, *, title: str, label: str, moments: Mapping[str, Moments] | None = None
) -> None:
    """Draws curves and, where there are any, the moments of some weights beside them.

    Args:
        curves: one for each criterion.
        out: the picture to write.
        title: what stands above.
        label: of the errors' axis.
        moments: means and deviations of some weights, by network.
    """
    panels = 2 if moments else 1
    figure, panes = figure_of(out, panels)
    _draw_errors(panes[0], curves, label)
    panes[0].set_title(title, loc="left")
    if moments:
        _draw_moments(panes[1], moments)
    write_figure(figure, out)


def _draw_errors(axes: Any, curves: Sequence[Curve], label: str) -> None:
    for curve, colour, mark in zip(curves, COLOURS * 2, MARKS * 2, strict=False):
        line = "none" if curve.name == "retrained" else "-"
        axes.plot(
            curve.shares, curve.errors, color=colour, marker=mark, markersize=4, linewidth=1.5, linestyle=line,
            label=curve.name,
        )  # fmt: skip
    first = curves[0].errors[0]
    axes.axhline(2 * first, color="#666666", linewidth=1, linestyle="--", label="twice the first")
    largest = max(max(curve.errors) for curve in curves)
    if first > 0 and largest > 8 * first:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set(xlabel="Weights removed (%)", ylabel=label)
    _finish(axes)


def _draw_moments(axes: Any, moments: Mapping[str, Moments]) -> None:
    for (name, (means, deviations)), colour, mark in zip(moments.items(), COLOURS, MARKS, strict=False):
        axes.plot(means, deviations, mark, color=colour, markersize=2, alpha=0.4, linestyle="none", label=name)
    axes.set(xlabel="Posterior mean of a weight", ylabel="Posterior standard deviation", yscale="log")
    _finish(axes)


def _finish(axes: Any) -> None:
    axes.grid(True, which="major", color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
