"""The page: it needs nothing but itself, its numbers are those of the report, and names cannot break out of it."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from html import escape, unescape
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from small_data import small_data

from snncompress.cli.report import _original
from snncompress.pruning.spread import neuron_spreads, weight_spreads
from snncompress.reporting.headline import cards, format_fold, headline
from snncompress.reporting.lineage import read_lineage
from snncompress.reporting.page import render_page
from snncompress.reporting.published import find_published
from snncompress.reporting.rows import make_row
from snncompress.reporting.story import Gain, Story, draw_up, tell
from snncompress.run import Run
from snncompress.run_files import load

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
VOID = {"meta", "br", "hr", "img", "input", "link"}


def story_of(run: Run, name: str = "small", error: float | None = 3.0, **more: object) -> Story:
    row = make_row(name, run.model, run.input_shape, run.original, error, run.original["neurons"])
    assert run.path is not None
    original = replace(_original(run), error=None if error is None else 1.0)
    return tell(run, [row], original, read_lineage(run.path), **more)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def story(family: Path) -> Story:
    run, before = load(family / "small"), load(family / "noisy")
    return story_of(run, spreads=neuron_spreads(before, run.plan, small_data(family)))


class Reader(HTMLParser):
    """Elements, attributes and words; complains about what is not closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data


def test_it_needs_nothing_but_itself(story: Story) -> None:
    page = render_page(story)
    for tag, attributes in Reader(page).seen:
        assert tag not in ("script", "link", "img", "iframe", "object", "embed", "base", "form")
        assert not {"src", "href", "xlink:href", "srcset", "data", "action", "onload"} & set(attributes)
    assert "http:" not in page
    assert "https:" not in page
    assert "url(" not in page
    assert "@import" not in page


def test_the_pictures_are_well_formed(story: Story) -> None:
    pictures = re.findall(r"<svg.*?</svg>", render_page(story), re.DOTALL)
    assert len(pictures) > 8
    for picture in pictures:
        ElementTree.fromstring(picture)
    large = [p for p in pictures if 'role="img"' in p]
    assert len(large) == len(draw_up(story).all())
    assert all("<title>" in picture for picture in large)


def test_its_numbers_are_those_of_the_report(story: Story) -> None:
    words, row = Reader(render_page(story)).words, story.row
    for number in (f"{row.weights:,} ({row.weights_percent:.2f}%)", f"{row.memory:,} ({row.memory_percent:.2f}%)"):
        assert number in words
    for layer in row.layers:
        assert f"{layer['neurons']} of {layer['original_neurons']}" in words
        assert f"{layer['weights']:,}" in words
    assert f"{format_fold(story.original.flops / row.flops)} fewer FLOPs" in headline(story)
    assert "2.00 points more test error" in headline(story)
    assert [card.number for card in cards(story)][-1] == "3.00%"
    assert cards(story)[0].share == row.flops_percent


def test_names_cannot_break_out(family: Path) -> None:
    evil = "<script>alert('&')</script>"
    run = replace(load(family / "small"), name=evil)
    page = render_page(story_of(run, evil, notes=[evil]))
    Reader(page)
    assert "<script" not in page
    assert escape(evil) in page
    assert "--name '<b>'" in unescape(page)  # the command of its parent


def test_every_part_is_there(story: Story) -> None:
    words = Reader(render_page(story)).words
    for part in ("The way down", "Layer by layer", "What neurons were worth", "Training", "Do it again"):
        assert part in words
    assert "snncompress prune 'a run'" in words
    assert "Configuration of noisy" in words
    titles = [chart.title for chart in draw_up(story).all()]
    assert titles[:4] == ["Against FLOPs", "Against Weights", "Against Memory", "Neurons that are left"]
    assert titles[-3:] == ["Loss", "Error (%)", "Noise of each layer"]


def test_spreads_mark_what_went(story: Story) -> None:
    assert story.run.plan is not None
    kept = {name: len(channels) for name, channels in story.run.plan["kept"].items()}
    assert {spread.layer for spread in story.spreads} == set(kept)
    for spread in story.spreads:
        assert spread.removed is not None
        assert sum(spread.kept) == kept[spread.layer]
        assert sum(spread.kept) + sum(spread.removed) == story.run.original["neurons"][spread.layer]
        assert len(spread.edges) == len(spread.kept) + 1


def test_spreads_of_a_run_that_was_not_pruned(family: Path) -> None:
    run = load(family / "noisy")
    spreads = neuron_spreads(run, None, small_data(family))
    assert [spread.removed for spread in spreads] == [None] * len(spreads)
    assert sum(spreads[0].kept) == 12
    weights = weight_spreads(run, {"criterion": "magnitude", "threshold": 0.05, "points": [{"round": 1}]})
    for spread, layer in zip(weights, ("1", "3", "5"), strict=True):
        weight = run.model.get_submodule(layer).weight  # type: ignore[union-attr]
        assert sum(spread.kept) == int((weight.abs() >= 0.05).sum())  # type: ignore[operator, union-attr]
        assert sum(spread.removed or ()) == int((weight.abs() < 0.05).sum())  # type: ignore[operator, union-attr]


def test_a_run_that_is_not_compressed_says_so(family: Path) -> None:
    run = load(family / "noisy")
    story = story_of(run, "noisy", error=None)
    assert not story.compressed
    assert headline(story).startswith("Nothing is removed yet")
    assert story.split == "validation"
    page = render_page(story)
    assert "The way down" not in page
    assert "Beside published" not in page
    assert "100%" in page


def test_a_lost_parent_is_said(family: Path, tmp_path: Path) -> None:
    shutil.copytree(family, tmp_path / "a")
    header = (tmp_path / "a" / "small" / "run.json").read_text().replace(str(family), str(tmp_path / "gone"))
    (tmp_path / "a" / "small" / "run.json").write_text(header)
    words = Reader(render_page(story_of(load(tmp_path / "a" / "small")))).words
    assert "gone/noisy came first; it is not there any more" in words


def test_published_rows() -> None:
    table = find_published("lenet5")
    assert table is not None
    (row,) = [row for row in table.rows if row.method == "SE-SNN"]
    assert (row.error, row.size, row.flops, row.memory) == (0.9, 2.35, 0.061, 11.08)
    assert "AAAI 2021" in table.source
    assert find_published("resnet20") is None


def test_published_rows_stand_beside_ours(family: Path) -> None:
    run = load(family / "small")
    assert run.source is not None
    story = story_of(replace(run, source=replace(run.source, name="lenet5")))
    words = Reader(render_page(story)).words
    assert "SE-SNN0.9%0.061M2.35%11.08%" in words
    assert "its error does not compare" in words


def test_what_was_not_counted_is_named(story: Story) -> None:
    odd = replace(story.row, uncounted=({"module": "a.b", "operator": "my.op", "calls": 1},))
    assert "more FLOPs: my.op in a.b (once)." in render_page(replace(story, rows=(odd,)))


def test_gains() -> None:
    assert Gain("flops", 100, 4).fold == 25
    assert [format_fold(fold) for fold in (1.84, 9.2, 37.6, 1234)] == ["1.8×", "9.2×", "38×", "1,234×"]


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: apt-get install chromium")
def test_a_browser_shows_it_at_a_phones_width(story: Story, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(render_page(story), encoding="utf-8")
    (tmp_path / "frame.html").write_text(
        '<iframe id="f" src="page.html" style="width:390px;height:800px"></iframe><script>'
        "onload = () => { const d = document.getElementById('f').contentDocument;"
        "const late = [...d.querySelectorAll('svg[role=img]')].filter(s => s.getBoundingClientRect().height < 20);"
        "document.title = [d.documentElement.scrollWidth, d.querySelectorAll('figure').length, late.length,"
        "d.querySelector('h1').textContent].join('|'); }</script>",
        encoding="utf-8",
    )
    assert CHROMIUM is not None
    words = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files"]
    words += [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=5000", "--dump-dom"]
    shown = subprocess.run(
        [*words, (tmp_path / "frame.html").as_uri()], capture_output=True, text=True, timeout=120, check=True
    )
    title = re.search(r"<title>(.*?)</title>", shown.stdout)
    assert title is not None, shown.stdout[:500]
    width, figures, flat, first = unescape(title[1]).split("|")
    assert int(width) <= 390  # nothing sticks out
    assert int(figures) == len(draw_up(story).all())
    assert int(flat) == 0
    assert first == headline(story)
