"""Runs beside each other on a page: the error of each against its FLOPs, and which of them no other beats."""

from __future__ import annotations

from collections.abc import Sequence

from snncompress.reporting.charts import LineChart, Mark, Series, wants_log
from snncompress.reporting.compare import find_front
from snncompress.reporting.rows import Row

FRONT = 6  # the last colour: of the line through the front, and of runs that have none of their own
COUNTS = {"flops": "FLOPs", "weights": "Weights", "memory": "Memory (floats)"}


def beside_charts(rows: Sequence[Row]) -> list[LineChart]:
    """A chart a count, with a mark a run, the last one's a diamond; nothing if fewer than two errors are known."""
    known = [row for row in rows if row.error is not None]
    if len(known) < 2 or len({row.task for row in known}) > 1:
        return []
    return [_chart(known, count) for count in COUNTS]


def _chart(rows: Sequence[Row], count: str) -> LineChart:
    front = [row for row, on_it in zip(rows, find_front(rows, count), strict=True) if on_it]
    places = sorted((float(getattr(row, count)), row.error or 0.0) for row in front)
    line = Series("no other beats these", tuple(x for x, _ in places), tuple(y for _, y in places), FRONT)
    few = len(rows) < FRONT  # more have no colours of their own; the table names them
    marks = tuple(
        Mark(
            row.name if few or row is rows[-1] else "", float(getattr(row, count)), row.error or 0.0,
            index if few else 0 if row is rows[-1] else FRONT, square=row is not rows[-1],
        )
        for index, row in enumerate(rows)
    )  # fmt: skip
    return LineChart(
        f"beside-{count}", f"Against {COUNTS[count].split()[0]}", COUNTS[count], rows[-1].task.axis("Test"),
        (line,) if len(places) > 1 else (), marks, log_x=wants_log([mark.x for mark in marks]),
    )  # fmt: skip
