"""Charts as inline SVG, small enough to stand side by side on a desk and one under the other on a phone."""

from __future__ import annotations

import math
from html import escape

from snncompress.reporting.charts import (
    DASHES,
    SURENESS,
    BarChart,
    Chart,
    Histogram,
    LineChart,
    Mark,
    ReliabilityChart,
    labels,
    short,
    ticks,
)
from snncompress.reporting.svg import Scale, broken_line, joined, picture, stretch, tag, text

WIDTH, HEIGHT = 340, 230
LEFT, RIGHT, TOP, BOTTOM = 44, 12, 22, 38
BAR_HEIGHT, BAR_NAMES, BAR_COUNTS = 22, 112, 90  # a row of the picture of widths, and what stands beside its bar
REMOVED = 1  # the colour of what went


def draw(chart: Chart) -> str:
    """The picture of a chart, without title and legend."""
    if isinstance(chart, LineChart):
        return _draw_lines(chart)
    if isinstance(chart, ReliabilityChart):
        return _draw_reliability(chart)
    return _draw_bars(chart) if isinstance(chart, BarChart) else _draw_histogram(chart)


def legend(chart: Chart) -> str:
    """What the lines, marks and bars mean, as HTML; nothing where the title says it."""
    if isinstance(chart, LineChart):
        keys = [(_swatch(s.colour), s.name) for s in chart.series] if len(chart.series) > 1 or chart.marks else []
        keys += [(_sign(mark), mark.name) for mark in chart.marks if mark.name]
        keys += [] if chart.level is None else [(_swatch(6, dashed=True), chart.level[1])]
    elif isinstance(chart, BarChart):
        keys = [(_box("f0"), chart.keys[0]), (_box("ghost"), chart.keys[1])]
    elif isinstance(chart, ReliabilityChart):
        shown = {piece.colour for piece in chart.pieces() if piece.top > piece.bottom}
        keys = [(_box(f"f{colour}"), SURENESS[colour]) for colour in sorted(shown)]
    elif chart.removed is None:
        keys = []
    else:
        keys = [(_box("f0"), f"kept ({sum(chart.kept):,})"), (_box("f1"), f"removed ({sum(chart.removed):,})")]
    return "".join(tag("span", sign, escape(words), class_="key") for sign, words in keys)


def _swatch(colour: int, dashed: bool = False) -> str:
    dash = "4,3" if dashed else ",".join(map(str, DASHES[colour % len(DASHES)])) or None
    line = tag("line", x1=0, y1=5, x2=22, y2=5, class_="level" if dashed else f"s{colour}", stroke_dasharray=dash)
    return tag("svg", line, width=22, height=10, aria_hidden="true")


def _box(class_: str) -> str:
    return tag("svg", tag("rect", width=10, height=10, class_=class_), width=10, height=10, aria_hidden="true")


def _sign(mark: Mark) -> str:
    return tag("svg", _mark(mark, 6.0, 6.0), width=12, height=12, aria_hidden="true")


def _mark(mark: Mark, x: float, y: float) -> str:
    if mark.square:
        return tag("rect", x=x - 4, y=y - 4, width=8, height=8, class_=f"f{mark.colour}")
    return tag("polygon", points=joined([(x, y - 6), (x + 6, y), (x, y + 6), (x - 6, y)]), class_=f"f{mark.colour}")


def _draw_lines(chart: LineChart) -> str:
    x_ends = stretch(chart.xs(), chart.log_x, room=0.04)
    y_ends = stretch(chart.ys(), chart.log_y)
    across = Scale(*x_ends, LEFT, WIDTH - RIGHT, chart.log_x)
    up = Scale(*y_ends, HEIGHT - BOTTOM, TOP, chart.log_y)
    parts = _axes(across, up, chart.x_label, chart.y_label)
    parts += _dividers(chart, across)
    if chart.level is not None:
        y = up(chart.level[0])
        parts.append(tag("line", x1=LEFT, y1=y, x2=WIDTH - RIGHT, y2=y, class_="level", stroke_dasharray="4,3"))
    for series in chart.series:
        if series.band is not None:
            parts += _band(series.xs, *series.band, series.colour, across, up)
        parts += broken_line(series.xs, series.ys, series.colour, across, up)
    for mark in chart.marks:
        x, y = across(mark.x), up(mark.y)
        parts.append(_mark(mark, x, y))
        if mark.text:
            place, anchor = (x + 10, "start") if x < WIDTH / 2 else (x - 10, "end")
            parts.append(text(place, y - 5, mark.text, anchor, "told"))
    return picture(WIDTH, HEIGHT, f"{chart.title}: {chart.y_label} over {chart.x_label}", parts)


def _axes(across: Scale, up: Scale, x_label: str, y_label: str, whole: bool = False) -> list[str]:
    """Grid, ticks and labels; ``whole`` leaves out heights that no count has."""
    parts = []
    heights = [value for value in ticks(up.low, up.high, up.log) if not whole or value == round(value)]
    for value, words in zip(heights, labels(heights), strict=True):
        y = up(value)
        parts.append(tag("line", x1=LEFT, y1=y, x2=WIDTH - RIGHT, y2=y, class_="grid"))
        parts.append(text(LEFT - 5, y + 4, words, "end"))
    places = ticks(across.low, across.high, across.log, most=5)
    for value, words in zip(places, labels(places), strict=True):
        x = across(value)
        parts.append(tag("line", x1=x, y1=HEIGHT - BOTTOM, x2=x, y2=HEIGHT - BOTTOM + 4, class_="axis"))
        parts.append(text(x, HEIGHT - BOTTOM + 16, words, "middle"))
    parts.append(tag("line", x1=LEFT, y1=HEIGHT - BOTTOM, x2=WIDTH - RIGHT, y2=HEIGHT - BOTTOM, class_="axis"))
    parts.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6, x_label, "middle", "label"))
    parts.append(text(2, 10, y_label, class_="label"))
    return parts


def _dividers(chart: LineChart, across: Scale) -> list[str]:
    """Where stages begin; a name that would run into the next is left out."""
    parts = []
    places = [across(x) for x, _ in chart.dividers]
    ends = [*places, float(WIDTH - RIGHT)][1:]
    for index, ((_, name), place, end) in enumerate(zip(chart.dividers, places, ends, strict=True)):
        if index:
            parts.append(tag("line", x1=place, y1=TOP, x2=place, y2=HEIGHT - BOTTOM, class_="divider"))
        if len(chart.dividers) > 1 and 6 * len(name) < end - place:
            parts.append(text(place + 4, TOP + 9, name, class_="stage"))
    return parts


def _band(
    xs: tuple[float, ...], low: tuple[float, ...], high: tuple[float, ...], colour: int, across: Scale, up: Scale
) -> list[str]:
    """The area between two lines, stage by stage."""
    parts, run = [], list[tuple[float, float, float]]()
    for x, bottom, top in [*zip(xs, low, high, strict=True), (0.0, math.nan, math.nan)]:
        if math.isfinite(bottom) and math.isfinite(top):
            run.append((across(x), up(bottom), up(top)))
        elif run:
            outline = [(x, top) for x, _, top in run] + [(x, bottom) for x, bottom, _ in reversed(run)]
            parts.append(tag("polygon", points=joined(outline), class_=f"f{colour} band"))
            run = []
    return parts


def _draw_bars(chart: BarChart) -> str:
    full = WIDTH - BAR_NAMES - BAR_COUNTS
    parts = []
    for index, (bar, (was, left)) in enumerate(zip(chart.bars, chart.shares(), strict=True)):
        y = BAR_HEIGHT * index
        parts.append(text(BAR_NAMES - 8, y + 15, _shortened(bar.name), "end"))
        parts.append(tag("rect", x=BAR_NAMES, y=y + 4, width=full * was, height=BAR_HEIGHT - 8, class_="ghost"))
        parts.append(tag("rect", x=BAR_NAMES, y=y + 4, width=max(full * left, 1.5), height=BAR_HEIGHT - 8, class_="f0"))
        parts.append(text(WIDTH - BAR_COUNTS + 8, y + 15, bar.told))
    return picture(WIDTH, BAR_HEIGHT * len(chart.bars) + 4, chart.title, parts)


def _draw_reliability(chart: ReliabilityChart) -> str:
    across, up = Scale(0.0, 1.0, LEFT, WIDTH - RIGHT), Scale(0.0, 1.0, HEIGHT - BOTTOM, TOP)
    parts = _axes(across, up, "Confidence", "Accuracy")
    width = across(1 / len(chart.counts)) - across(0.0) - 1
    for piece in chart.pieces():
        parts.append(
            tag("rect", tag("title", escape(piece.words)), x=across(piece.left) + 0.5, y=up(piece.top), width=width,
                height=up(piece.bottom) - up(piece.top), class_=f"f{piece.colour}", fill_opacity=piece.strength)
        )  # fmt: skip
    ends = {"x1": across(0.0), "y1": up(0.0), "x2": across(1.0), "y2": up(1.0)}
    parts.append(tag("line", class_="level", stroke_dasharray="4,3", **ends))
    return picture(WIDTH, HEIGHT, f"{chart.title}: accuracy over confidence", parts)


def _shortened(name: str, most: int = 16) -> str:
    return name if len(name) <= most else f"…{name[1 - most :]}"


def _draw_histogram(chart: Histogram) -> str:
    removed = chart.removed or (0,) * len(chart.kept)
    highest = max(k + r for k, r in zip(chart.kept, removed, strict=True)) or 1
    across = Scale(chart.edges[0], chart.edges[-1], LEFT, WIDTH - RIGHT)
    up = Scale(0.7 if chart.log_y else 0.0, 1.06 * highest, HEIGHT - BOTTOM, TOP, chart.log_y)
    floor = up.low
    parts = _axes(across, up, chart.x_label, chart.what.capitalize(), whole=True)
    for low, high, kept, gone in zip(chart.edges, chart.edges[1:], chart.kept, removed, strict=False):
        x, width = across(low) + 0.5, max(across(high) - across(low) - 1, 1.0)
        # On a logarithmic axis stacked bars would lie about the upper one: there the larger stands behind.
        pieces = [(kept, floor, 0), (kept + gone, kept or floor, REMOVED)]
        if chart.log_y:
            pieces = sorted([(gone, floor, REMOVED), (kept, floor, 0)], reverse=True)
        for top, bottom, colour in pieces:
            if top > bottom or (top and chart.log_y):
                y = up(top)
                said = tag("title", escape(f"{short(low)} to {short(high)}: {kept:,} kept, {gone:,} removed"))
                parts.append(tag("rect", said, x=x, y=y, width=width, height=up(bottom) - y, class_=f"f{colour}"))
    return picture(WIDTH, HEIGHT, f"{chart.title}: {chart.x_label}", parts)
