"""The Pareto front: what no other run beats."""

from __future__ import annotations

import csv
import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snncompress.data.task import Task
from snncompress.errors import UsageError
from snncompress.reporting.compare import find_front, find_fronts, sort_rows
from snncompress.reporting.rows import Row, original_row
from snncompress.reporting.table import Format, render, rows_json


def row(name: str, error: float | None, flops: int, weights: int = 1) -> Row:
    counts = {"weights": weights, "flops": flops, "memory": 1, "bytes": 4}
    return original_row(name, counts, error)


ROWS = [row("large", 1.0, 100, 5), row("small", 2.0, 10, 9), row("worse", 2.5, 20, 3), row("new", None, 5, 1)]


def test_the_front() -> None:
    ordered = sort_rows(ROWS)
    assert [each.name for each in ordered] == ["new", "small", "worse", "large"]
    assert find_fronts(ordered) == [(), ("flops",), ("weights",), ("flops", "weights")]


def test_equal_ones_are_both_on_it() -> None:
    assert find_front([row("a", 1.0, 10), row("b", 1.0, 10), row("c", 1.0, 11)], "flops") == [True, True, False]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 5)), min_size=1, max_size=12))
def test_whatever_is_not_on_it_is_beaten_by_one_that_is(pairs: list[tuple[int, int]]) -> None:
    rows = [row(str(index), float(error), flops) for index, (error, flops) in enumerate(pairs)]
    front = find_front(rows, "flops")
    best = [pair for pair, on in zip(pairs, front, strict=True) if on]
    assert best
    for (error, flops), on in zip(pairs, front, strict=True):
        beaten = any(e <= error and f <= flops and (e, f) != (error, flops) for e, f in best)
        assert beaten != on


def test_tasks_do_not_mix() -> None:
    number = dataclasses.replace(ROWS[0], task=Task.REGRESSION)
    with pytest.raises(UsageError, match="do not compare"):
        sort_rows([*ROWS, number])


def test_it_is_shown_in_every_format() -> None:
    rows = sort_rows(ROWS)
    fronts = find_fronts(rows)
    assert [each["front"] for each in rows_json(rows, fronts)] == [list(front) for front in fronts]
    assert "front" not in rows_json(rows)[0]
    text = render(rows, Format.TEXT, fronts=fronts)
    assert text.splitlines()[0].split()[-1] == "Front"
    assert text.splitlines()[5].endswith("FLOPs, weights")
    assert "Front: no other run" in text
    read = list(csv.DictReader(render(rows, Format.CSV, fronts=fronts).splitlines()))
    assert [each["front"] for each in read] == ["", "flops", "weights", "flops weights"]
    assert "| Front" in render(rows, Format.MARKDOWN, fronts=fronts).replace("|          Front", "| Front")
