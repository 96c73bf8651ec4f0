"""What a picture shows: round ticks, scales that keep their promises, and marks that cannot break out."""

from __future__ import annotations

import math
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snncompress.reporting.charts import (
    GAP,
    Bar,
    BarChart,
    Histogram,
    LineChart,
    Mark,
    ReliabilityChart,
    Series,
    labels,
    short,
    ticks,
    wants_log,
)
from snncompress.reporting.svg import Scale, stretch, tag
from snncompress.reporting.svg_charts import BOTTOM, HEIGHT, WIDTH, draw, legend


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6))
def test_linear_ticks_are_round_and_within(low: float, width: float) -> None:
    found = ticks(low, low + width)
    assert 1 <= len(found) <= 8
    step = found[1] - found[0] if len(found) > 1 else width
    assert all(low - 1e-6 * step <= value <= low + width + 1e-6 * step for value in found)


@given(st.floats(1e-3, 1e6), st.floats(1.01, 1e6))
def test_log_ticks_are_within(low: float, factor: float) -> None:
    found = ticks(low, low * factor, log=True)
    assert 1 <= len(found) <= 8
    assert found == sorted(found)
    assert all(0.999 * low <= value <= 1.001 * low * factor for value in found)


def test_the_ticks_that_one_expects() -> None:
    assert ticks(0, 10) == [0, 2, 4, 6, 8, 10]
    assert ticks(60_000, 2_400_000, log=True, most=5) == [100_000, 200_000, 500_000, 1_000_000, 2_000_000]
    assert ticks(3, 3) == [3]
    assert [short(value) for value in (2_293_000, 61_000, 560, 0.05, -3)] == ["2.29M", "61k", "560", "0.05", "−3"]


def test_labels_tell_ticks_apart() -> None:
    assert labels([-2.975, -2.9745, -2.974]) == ["−2.975", "−2.9745", "−2.974"]
    assert labels([0.5, 1, 2]) == ["0.5", "1", "2"]


def test_a_count_has_no_halves() -> None:
    svg = draw(Histogram("k", "t", "x", (0.0, 1.0, 2.0), (1, 0), (0, 1)))
    assert "0.2" not in "".join(ElementTree.fromstring(svg).itertext())


def test_scales() -> None:
    up = Scale(1, 100, 200, 0, log=True)
    assert [up(value) for value in (1, 10, 100, 1000, 0)] == pytest.approx([200, 100, 0, 0, 200])
    assert Scale(5, 5, 0, 10)(5) == 5
    assert stretch([2, 2], log=False)[0] < 2 < stretch([2, 2], log=False)[1]
    assert wants_log([1, 10])
    assert wants_log([0, 1, 10])  # zeros lie on the floor
    assert not wants_log([0, 10])
    assert not wants_log([-1, 10])
    assert not wants_log([1, 2, math.nan])


def test_attributes_and_words_are_escaped() -> None:
    assert tag("a", title='"<') == '<a title="&quot;&lt;"/>'
    evil = "<script>alert('x')</script>"
    line = LineChart("k", evil, evil, evil, (Series(evil, (0, 1), (1, 2)), Series("b", (0,), (1,), 1)))
    bars = BarChart("k", evil, (Bar(evil, 3, 2),))
    counts = Histogram("k", evil, evil, (0.0, 1.0, 2.0), (1, 2), (3, 4))
    for chart in (line, bars, counts):
        drawn = draw(chart) + legend(chart)
        assert "<script" not in drawn
        ElementTree.fromstring(f"<p>{drawn}</p>")


def places(svg: str, name: str, key: str) -> list[float]:
    return [float(element.get(key, "nan")) for element in ElementTree.fromstring(svg).iter(name)]


def test_a_line_is_broken_at_a_gap() -> None:
    series = Series("a", (0, 1, 1, 2, 3), (1, 2, GAP, 4, 5), band=((0, 1, GAP, 3, 4), (2, 3, GAP, 5, 6)))
    svg = draw(LineChart("k", "t", "x", "y", (series,), marks=(Mark("m", 3, 5, 1, "five"),), level=(3, "three")))
    root = ElementTree.fromstring(svg)
    lines = [element.get("points", "").split() for element in root.iter("polyline")]
    assert [len(line) for line in lines] == [2, 2]
    assert len([element for element in root.iter("polygon") if "band" in element.get("class", "")]) == 2
    for line in lines:
        for place in line:
            x, y = map(float, place.split(","))
            assert 0 <= x <= WIDTH
            assert 0 <= y <= HEIGHT
    assert "five" in "".join(root.itertext())


def test_a_zero_lies_on_the_floor_of_a_logarithmic_axis() -> None:
    svg = draw(LineChart("k", "t", "x", "y", (Series("a", (0, 1, 2), (100, 1, 0)),), log_y=True))
    (points,) = [element.get("points", "").split() for element in ElementTree.fromstring(svg).iter("polyline")]
    assert float(points[2].split(",")[1]) == HEIGHT - BOTTOM
    assert float(points[1].split(",")[1]) < HEIGHT - BOTTOM


def test_a_bar_is_as_long_as_its_share() -> None:
    svg = draw(BarChart("k", "t", (Bar("conv1", 20, 2), Bar("fc2", 10, 10))))
    full, left, full_too, whole = places(svg, "rect", "width")
    assert left == pytest.approx(full / 10, rel=0.01)
    assert whole == full_too == full
    assert "2 of 20" in svg


def test_a_histogram_stacks_what_went_on_what_stayed() -> None:
    chart = Histogram("k", "t", "x", (0.0, 1.0, 2.0), (4, 0), (4, 2))
    heights = places(draw(chart), "rect", "height")
    assert heights[0] == pytest.approx(heights[1], abs=0.1)
    assert heights[2] == pytest.approx(heights[0] / 2, abs=0.1)
    assert "kept (4)" in legend(chart)
    assert "removed (6)" in legend(chart)
    assert legend(Histogram("k", "t", "x", (0.0, 1.0), (4,), None)) == ""


def test_a_reliability_diagram_shows_every_bin_that_is_not_empty() -> None:
    """Up to the lower of accuracy and confidence, then the gap between them, in a colour for its sign."""
    chart = ReliabilityChart("sure", "Sure <&>", (0, 5, 20, 5), (0.0, 0.3, 0.6, 0.9), (0.0, 0.5, 0.5, 0.9))
    pieces = [(piece.left, piece.bottom, piece.top, piece.colour) for piece in chart.pieces()]
    assert pieces == [
        (0.25, 0.0, 0.3, 0), (0.25, 0.3, 0.5, 2), (0.5, 0.0, 0.5, 0), (0.5, 0.5, 0.6, 1),
        (0.75, 0.0, 0.9, 0), (0.75, 0.9, 0.9, 2),
    ]  # fmt: skip
    assert [piece.strength for piece in chart.pieces()[2:4]] == [1.0, 1.0]  # the fullest bin is the darkest
    drawn = ElementTree.fromstring(draw(chart))
    rectangles = list(drawn.iter("rect"))
    assert len(rectangles) == 6
    assert all(float(each.get("height", "-1")) >= 0 for each in rectangles)
    assert "more sure than right" in legend(chart)
    assert "less sure than right" in legend(chart)
