"""``snncompress report`` as a page, as the user types it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from snncompress.cli import run as run_command

QUICK = ["--finetune-steps", "2", "--final-epochs", "1", "--step", "4", "--quiet"]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory, noisy: str) -> str:
    out = str(tmp_path_factory.mktemp("runs") / "small")
    assert run_command(["prune", noisy, "--target-flops", "40%", *QUICK, "--out", out]) == 0
    return out


def test_the_page_has_the_numbers_of_the_report(small: str, noisy: str, call: Any, tmp_path: Path) -> None:
    rows = json.loads(call("report", noisy, small, "--html", tmp_path / "a.html", "--json"))
    page = (tmp_path / "a.html").read_text(encoding="utf-8")
    for row in rows:
        assert f"{row['weights']:,} ({row['weights_percent']:.2f}%)" in page
        assert f"{row['memory']:,} ({row['memory_percent']:.2f}%)" in page
    assert f"{rows[1]['error']:.2f}%" in page
    assert f"snncompress prune {noisy}" in page
    assert "What neurons were worth" in page
    call("report", small, "--html", tmp_path / "b.html")
    assert "original mlp" in (tmp_path / "b.html").read_text(encoding="utf-8")


def test_a_page_of_a_model_that_is_no_run(call: Any, tmp_path: Path) -> None:
    call("report", "lenet5", "--html", tmp_path / "a.html")
    page = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert "Nothing is removed yet" in page
    assert "2.293M (100.00%)" in page


def test_a_page_says_what_it_lacks(small: str, call: Any, tmp_path: Path) -> None:
    shutil.copytree(small, tmp_path / "<i>small")
    run = tmp_path / "<i>small" / "run.json"
    run.write_text(json.dumps(json.loads(run.read_text()) | {"parent": str(tmp_path / "gone")}))
    call("report", tmp_path / "<i>small", "--html", tmp_path / "a.html")
    page = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert f"the run that pruning began with, {tmp_path / 'gone'}, is gone" in page
    assert "<i>small" not in page
    assert "&lt;i&gt;small" in page


def test_a_page_that_cannot_be_written(small: str, refused: Any, elsewhere: None) -> None:
    assert "cannot write" in refused("report", small, "--quiet", "--html", "nowhere/a.html", code=1)


def test_compare_sorts_and_marks(small: str, noisy: str, call: Any) -> None:
    rows = json.loads(call("report", noisy, small, "--compare", "--json"))
    assert [row["name"] for row in rows] == ["small", "noisy"]
    assert "flops" in rows[0]["front"]  # the cheapest
    text = call("report", noisy, small, "--compare")
    assert text.splitlines()[0].endswith("Front")
    assert "original" not in text.splitlines()[2]


def test_compare_says_when_data_differ(small: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["report", small, "lenet5", "--compare"]) == 0
    assert "different data" in capsys.readouterr().err


def test_only_text_has_bars(small: str, noisy: str, call: Any) -> None:
    assert "█" in call("report", noisy, small)
    assert "█" not in call("report", noisy)  # nothing is gone
    for words in (["--format", "markdown"], ["--format", "csv"], ["--json"], ["--compare"]):
        assert "█" not in call("report", noisy, small, *words)


def test_pictures_of_the_page(small: str, call: Any, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    call("report", small, "--png", tmp_path / "pictures")
    names = {file.name for file in (tmp_path / "pictures").iterdir()}
    assert {"tradeoff-flops.png", "widths.png", "loss.png", "error.png", "log_sigma_50.png"} <= names
    assert "spread-1-1-entropy.png" in names
