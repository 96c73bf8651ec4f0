"""The few lines with bars below a report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from snncompress.cli.report import _original
from snncompress.reporting.essentials import MOST_LAYERS, render_essentials
from snncompress.reporting.rows import make_row
from snncompress.reporting.story import Story, tell
from snncompress.run_files import load


def story_of(folder: Path, error: float | None) -> Story:
    run = load(folder)
    row = make_row("small", run.model, run.input_shape, run.original, error, run.original["neurons"])
    return tell(run, [row], replace(_original(run), error=None if error is None else 2.0))


def test_what_is_left_is_shown(family: Path) -> None:
    story = story_of(family / "small", 1.5)
    lines = [" ".join(line.split()) for line in render_essentials(story).splitlines()]
    assert lines[0].startswith("small: ")
    assert lines[0].endswith("with 0.50 points less test error")
    names = [line.split()[0] for line in lines[1:]]
    assert names == ["FLOPs", "weights", "memory", "file", "1", "3", "5", "test", "while"]
    assert f" {story.row.flops_percent:.2f}% " in lines[1]
    assert lines[7].endswith("4 of 4 neurons")
    assert lines[8] == "test error 2.00% → 1.50% (−0.50 points)"


def test_without_test_images_the_errors_are_those_of_validation(family: Path) -> None:
    text = render_essentials(story_of(family / "small", None))
    points = (load(family / "small").plan or {})["points"]
    assert f"validation error  {points[0]['error']:.2f}% → {points[-1]['error']:.2f}%" in text


def test_many_layers_are_left_to_the_table(family: Path) -> None:
    story = story_of(family / "small", 1.5)
    row = replace(story.row, layers=story.row.layers * MOST_LAYERS)
    assert "neurons" not in render_essentials(replace(story, rows=(row,)))
