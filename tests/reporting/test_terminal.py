"""Bars and sparklines."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from snncompress.reporting.terminal import STEPS, bar, sparkline


@given(st.floats(-1, 2), st.integers(1, 60))
def test_a_bar_is_as_wide_as_asked(share: float, width: int) -> None:
    assert len(bar(share, width)) == width
    assert (bar(share, width).strip() == "") == (share <= 0)
    assert (bar(share, width) == "█" * width) or share < 1


def test_bars() -> None:
    assert bar(0.5, 4) == "██  "
    assert bar(0.03, 4) == "▏   "  # what is left shows


def test_sparklines() -> None:
    assert sparkline([1, 2, 3, 4, 5, 6, 7, 8]) == STEPS
    assert sparkline([]) == ""
    assert sparkline([3, 3]) == "▁▁"
    assert sparkline([float("nan"), 1.0, 2.0]) == "▁█"
    assert sparkline([90, 9, 0.9]) == "█▅▁"  # by logarithms


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=200), st.integers(2, 50))
def test_a_sparkline_fits_and_keeps_its_ends(values: list[float], width: int) -> None:
    line = sparkline(values, width)
    assert len(line) == min(len(values), width)
    if values[0] == max(values) and values[-1] == min(values) and values[0] > values[-1]:
        assert line[0] == STEPS[-1]
        assert line[-1] == STEPS[0]
