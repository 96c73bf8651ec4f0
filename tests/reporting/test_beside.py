"""Several runs on one page: a mark each, the front through those that no other beats, the table with both."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from test_page import Reader, story_of

from snncompress.data.task import Task
from snncompress.reporting.beside import COUNTS, FRONT, beside_charts
from snncompress.reporting.compare import find_front
from snncompress.reporting.page import render_page
from snncompress.reporting.rows import Row
from snncompress.reporting.story import Story, draw_up
from snncompress.reporting.svg_charts import legend
from snncompress.run_files import load


@pytest.fixture
def story(family: Path) -> Story:
    return story_of(load(family / "small"))


def rows_like(row: Row, errors: list[float | None]) -> list[Row]:
    """Each of more FLOPs than the one before."""
    return [
        replace(row, name=f"run {index}", error=error, flops=1000 * (index + 1)) for index, error in enumerate(errors)
    ]


def test_marks_and_front(story: Story) -> None:
    rows = rows_like(story.row, [5.0, 3.0, 4.0, 2.0])
    charts = beside_charts(rows)
    assert [chart.key for chart in charts] == [f"beside-{count}" for count in COUNTS]
    chart = charts[0]
    assert [(mark.name, mark.x, mark.y) for mark in chart.marks] == [(r.name, r.flops, r.error) for r in rows]
    assert [mark.square for mark in chart.marks] == [True, True, True, False]
    assert list(chart.series[0].ys) == [r.error for r, on in zip(rows, find_front(rows, "flops"), strict=True) if on]
    assert list(chart.series[0].ys) == [5.0, 3.0, 2.0]
    assert charts[1].series == ()  # all have as many weights: one is best


def test_many_runs_share_a_colour_and_only_the_last_is_named(story: Story) -> None:
    chart = beside_charts(rows_like(story.row, [float(error) for error in range(1, 10)]))[0]
    assert {mark.colour for mark in chart.marks[:-1]} == {FRONT}
    assert [mark.name for mark in chart.marks if mark.name] == ["run 8"]
    assert legend(chart).count('class="key"') == 1 + len(chart.series)


def test_nothing_to_compare(story: Story) -> None:
    assert beside_charts(rows_like(story.row, [1.0, None])) == []
    one, other = rows_like(story.row, [1.0, 2.0])
    assert beside_charts([one, replace(other, task=Task.REGRESSION)]) == []


def test_the_page_compares_only_several_runs(story: Story) -> None:
    assert "beside each other" not in Reader(render_page(story)).words
    assert "All numbers" in Reader(render_page(story)).words
    other = replace(story.row, name="the <b>other", error=2.0, flops=story.row.flops + 1)
    several = replace(story, rows=(other, story.row))
    words = Reader(render_page(several)).words
    assert "The runs beside each other" in words
    assert "All numbers" not in words
    assert "the <b>other2.00%" in words
    assert [chart.key for chart in draw_up(several).all()][:3] == [f"beside-{count}" for count in COUNTS]
    assert [row.name for row in several.models] == [story.original.name, "the <b>other", "small"]
