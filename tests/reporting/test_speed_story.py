"""What is said of speed: numbers of the record, the sentence about calls by its formula, bars by time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_page import Reader, story_of

from snncompress.reporting.essentials import render_essentials
from snncompress.reporting.headline import block_words, cards, longer_words
from snncompress.reporting.page import render_page
from snncompress.reporting.speed_story import (
    BETWEEN,
    call_words,
    file_lines,
    format_time,
    layer_time_chart,
    operator_lines,
    speed_lines,
)
from snncompress.reporting.story import Story, draw_up
from snncompress.run_files import load


def speed(alone_ms: float, batch_ms: float, faster: float, layers: dict[str, float]) -> dict[str, Any]:
    timings = [
        {"runtime": "onnxruntime", "batch": batch, "median_ms": time, "low_ms": time, "high_ms": time,
         "times_faster": faster}
        for batch, time in ((1, alone_ms), (101, batch_ms))
    ]  # fmt: skip
    between = 1 - sum(layers.values())
    return {
        "threads": 1, "timings": timings, "load_ms": 2.0, "file_bytes": 1200, "gzip_bytes": 900,
        "peak_bytes": {"1": 64, "101": 6464}, "operators": {"Gemm": 1 - between, "MaxPool": between},
        "layers": layers, "between_layers": {"MaxPool": between},
    }  # fmt: skip


@pytest.fixture
def record() -> dict[str, Any]:
    before = speed(1.0, 101.0, 1.0, {"1": 0.5, "3": 0.25, "5": 0.15})
    own = speed(0.5, 10.5, 9.6, {"1": 0.25, "3": 0.25, "5": 0.25})
    return {"machine": "a <i>machine", "against": "original mlp", "original": before, "own": own}


@pytest.fixture
def story(family: Path, record: dict[str, Any]) -> Story:
    run = load(family / "small")
    return story_of(replace(run, metrics={**run.metrics, "latency": record}))


def test_what_a_call_costs(record: dict[str, Any]) -> None:
    """0.5 ms = c + a and 10.5 ms = c + 101 a: a = 0.1 ms, c = 0.4 ms, 80% of a call with one image."""
    assert call_words(record["own"]) == [
        "At batch 1, 80% of the 500 µs are what any call costs, however small its batch is; an image more takes 100 µs."
    ]
    assert call_words(record["original"]) == []  # all is arithmetic
    assert call_words(record["own"] | {"timings": record["own"]["timings"][:1]}) == []


def test_lines(record: dict[str, Any]) -> None:
    assert list(speed_lines(record)) == [
        ("Runtime", "Batch", "Times faster", "Original", "Now", "Images/s"),
        ("onnxruntime", "1", "9.6×", "1 ms", "500 µs", "2,000"),
        ("onnxruntime", "101", "9.6×", "101 ms", "10.5 ms", "9,619"),
    ]
    assert list(operator_lines(record)) == [
        ("Operators, batch 101", "Original", "Now"),
        ("Gemm", "90%", "75%"),
        ("MaxPool", "10%", "25%"),
    ]
    assert ("peak memory, batch 101", "6.5 kB", "6.5 kB") in list(file_lines(record))
    alone = record | {"original": None}
    assert list(speed_lines(alone))[:2] == [
        ("Runtime", "Batch", "Now", "Images/s"),
        ("onnxruntime", "1", "500 µs", "2,000"),
    ]
    assert {len(line) for line in [*operator_lines(alone), *file_lines(alone)]} == {2}
    assert layer_time_chart(alone) is None
    assert (format_time(0.0284), format_time(1.5)) == ("28.4 µs", "1.5 ms")


def test_bars_are_as_long_as_times(record: dict[str, Any]) -> None:
    chart = layer_time_chart(record)
    assert chart is not None
    each, left = 1.0, 10.5 / 101
    assert [bar.name for bar in chart.bars] == ["1", "3", "5", BETWEEN]
    assert [bar.before for bar in chart.bars] == pytest.approx([0.5 * each, 0.25 * each, 0.15 * each, 0.1 * each])
    assert [bar.after for bar in chart.bars] == pytest.approx([0.25 * left] * 4)
    assert chart.shares()[0] == pytest.approx((1.0, 0.5 * left))
    assert chart.bars[0].told == "500 → 26 µs"


def test_the_page_shows_it(story: Story, family: Path) -> None:
    page = render_page(story)
    words = Reader(page).words
    for part in ("Speed", "a <i>machine", "9.6×", "10.5 ms", "80% of the 500 µs", "An image's time by layer"):
        assert part in words
    (card,) = [card for card in cards(story) if card.what == "faster"]
    assert (card.number, card.how) == ("9.6×", "batch 101 in onnxruntime; 9.6× at batch 1")
    assert [chart.key for chart in draw_up(story).speed] == ["latency-layers"]
    assert "25.0%" in words  # a layer's share
    plain = render_page(story_of(load(family / "small")))
    assert "Speed" not in Reader(plain).words


def test_a_model_without_its_original_beside_it(story: Story, record: dict[str, Any]) -> None:
    run = replace(story.run, metrics={"latency": record | {"original": None, "against": None}})
    alone = replace(story, run=run)
    assert "faster" not in [card.what for card in cards(alone)]
    assert "10.5 ms" in Reader(render_page(alone)).words


def test_widths_that_fill_no_block_are_named(story: Story) -> None:
    """Only where speed falls behind FLOPs, and most wide convolutions are uneven."""

    def with_widths(*widths: int, fold: float = 20.0) -> Story:
        layers = tuple({**story.row.layers[0], "kind": "Conv2d", "neurons": width} for width in widths)
        gain = replace(story.gains[0], before=int(fold * 1000), after=1000)
        return replace(story, rows=(replace(story.row, layers=layers),), gains=(gain, *story.gains[1:]))

    words = block_words(with_widths(11, 16, 23, 2))  # 9.6 times faster
    assert words is not None
    assert words.startswith("20× fewer FLOPs, but 9.6× the speed")
    assert "2 of 3 convolutions" in words
    assert words in Reader(render_page(with_widths(11, 16, 23, 2))).words
    assert block_words(with_widths(8, 16, 24)) is None
    assert block_words(with_widths(2, 7)) is None  # too narrow for any block
    assert block_words(with_widths(11, 23, fold=10.0)) is None


def test_a_smaller_error_is_explained_by_longer_training(family: Path) -> None:
    run = load(family / "small")
    assert longer_words(story_of(run, error=3.0)) is None  # its original has 1.0
    better = story_of(run, error=0.5)
    words = longer_words(better)
    assert words is not None
    assert words.startswith("The original was trained for 2 epochs, this model for ")
    assert words in Reader(render_page(better)).words
    assert [card.cost for card in cards(better)][-1] is False


def test_the_terminal_has_a_bar_for_time(story: Story, record: dict[str, Any]) -> None:
    (line,) = [line for line in render_essentials(story).splitlines() if "time, batch 101" in line]
    assert line.endswith(" 10.42%  9.6× faster")
    record["own"]["timings"][-1]["times_faster"] = 0.9
    (line,) = [line for line in render_essentials(story).splitlines() if "time, batch 101" in line]
    assert line.endswith("111.11%  no faster")
