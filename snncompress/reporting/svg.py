"""Drawing primitives: tags that escape what they hold, and scales from numbers to places.

Pictures are inline SVG: colours are the page's own (``page.css``), so that they follow light and dark.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from snncompress.reporting.charts import DASHES


def tag(name: str, *content: str, **attributes: object) -> str:
    """An element; ``content`` is markup already, attributes are escaped (``class_`` and ``stroke_width`` as in SVG)."""
    words = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_plain(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{words}>{''.join(content)}</{name}>" if content else f"<{name}{words}/>"


def _plain(value: object) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def text(x: float, y: float, words: str, anchor: str = "start", class_: str | None = None) -> str:
    """Words at a place."""
    return tag("text", escape(words), x=x, y=y, text_anchor=anchor, class_=class_)


def picture(width: int, height: int, label: str, parts: Iterable[str]) -> str:
    """A whole drawing that is as wide as its frame; ``label`` is what a screen reader says."""
    return tag(
        "svg", tag("title", escape(label)), *parts, viewBox=f"0 0 {width} {height}", role="img", aria_label=label,
        width=width, height=height,
    )  # fmt: skip


@dataclass(frozen=True)
class Scale:
    """Numbers from ``low`` to ``high`` become places from ``start`` to ``end``."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """The place of a number; those beyond the ends stay at them."""
        low, high = (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)
        position = math.log(max(value, 1e-300)) if self.log else value
        share = (position - low) / (high - low) if high > low else 0.5
        return self.start + (self.end - self.start) * min(max(share, 0.0), 1.0)


def stretch(values: Sequence[float], log: bool, room: float = 0.06) -> tuple[float, float]:
    """The ends of an axis that shows values with some room around them."""
    low, high = min(values), max(values)
    if log:
        factor = (high / low) ** room if high > low else 1.5
        return low / factor, high * factor
    space = room * (high - low) or abs(high) * 0.1 or 1.0
    return low - space, high + space


def broken_line(xs: Sequence[float], ys: Sequence[float], colour: int, across: Scale, up: Scale) -> list[str]:
    """A line that ends where a y is no number and goes on behind it; a single point is a dot."""
    parts, run = [], list[tuple[float, float]]()
    for x, y in [*zip(xs, ys, strict=True), (0.0, math.nan)]:
        if math.isfinite(y):
            run.append((across(x), up(y)))
        elif run:
            parts.append(_line(run, colour))
            run = []
    return parts


def _line(places: list[tuple[float, float]], colour: int) -> str:
    if len(places) == 1:
        return tag("circle", cx=places[0][0], cy=places[0][1], r=2.5, class_=f"f{colour}")
    dash = ",".join(map(str, DASHES[colour % len(DASHES)])) or None
    return tag("polyline", points=joined(places), class_=f"s{colour}", stroke_dasharray=dash)


def joined(places: Iterable[tuple[float, float]]) -> str:
    """Places as SVG writes them."""
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
