"""Runs beside each other: which of them no other beats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from snncompress.errors import UsageError

if TYPE_CHECKING:  # printing needs no torch
    from snncompress.reporting.rows import Row

COUNTS = ("flops", "weights")  # what an error is weighed against


def sort_rows(rows: Sequence[Row]) -> list[Row]:
    """The cheapest first, by FLOPs, then by weights, then by error.

    Raises:
        UsageError: If their errors are of different kinds, so that nothing compares.
    """
    measures = {row.task.measure: row.name for row in rows}
    if len(measures) > 1:
        one, other = list(measures)[:2]
        raise UsageError(
            f"--compare: {measures[one]} has an {one} and {measures[other]} an {other}, which do not compare; "
            "name runs of one task"
        )
    return sorted(rows, key=lambda row: (row.flops, row.weights, _known(row.error)))


def find_front(rows: Sequence[Row], count: str) -> list[bool]:
    """Whether each row is on the Pareto front of error and a count: no other is better in one and as good in the other.

    Of equal ones all are on it; a row without an error is not.
    """
    return [row.error is not None and not any(_beats(other, row, count) for other in rows) for row in rows]


def find_fronts(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """For each row, the counts on whose front it is."""
    fronts = {count: find_front(rows, count) for count in COUNTS}
    return [tuple(count for count in COUNTS if fronts[count][index]) for index in range(len(rows))]


def _beats(one: Row, other: Row, count: str) -> bool:
    mine, theirs = (_known(one.error), getattr(one, count)), (_known(other.error), getattr(other, count))
    return mine != theirs and all(a <= b for a, b in zip(mine, theirs, strict=True))


def _known(error: float | None) -> float:
    return float("inf") if error is None else error
