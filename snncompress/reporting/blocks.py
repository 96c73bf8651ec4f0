"""What a page is built of: notes, figures, tables, sections."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from snncompress.reporting.charts import Chart
from snncompress.reporting.svg import tag
from snncompress.reporting.svg_charts import draw, legend


def make_note(words: str) -> str:
    """A paragraph in small letters."""
    return tag("p", escape(words), class_="note")


def make_figures(charts: Iterable[Chart]) -> str:
    """Charts side by side."""
    return tag("div", *(make_figure(chart) for chart in charts), class_="charts")


def make_figure(chart: Chart) -> str:
    """A chart with its title and what its lines mean."""
    caption = legend(chart)
    return tag(
        "figure", tag("b", escape(chart.title)), draw(chart), tag("figcaption", caption) if caption else "",
    )  # fmt: skip


def make_section(title: str, *parts: str) -> str:
    """A part of the page; ``parts`` are markup already."""
    return tag("section", tag("h2", escape(title)), *parts)


def make_table(header: Sequence[str], lines: Iterable[Sequence[str]], words: int = 1, own: int | None = None) -> str:
    """A table whose first ``words`` columns are no numbers; the line ``own`` is the run's."""
    classes = ["words" if index < words else None for index in range(len(header))]
    head = tag("tr", *(tag("th", escape(cell), class_=c) for cell, c in zip(header, classes, strict=True)))
    body = [
        tag(
            "tr", *(tag("td", escape(cell), class_=c) for cell, c in zip(line, classes, strict=True)),
            class_="own" if index == own else None,
        )
        for index, line in enumerate(lines)
    ]  # fmt: skip
    return tag("div", tag("table", tag("thead", head), tag("tbody", *body)), class_="wide tall", tabindex=0)
