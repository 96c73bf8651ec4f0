"""The papers' tables: every one prints, what is missing is said, and what is stored has its form."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import results, tables
from snncompress.reporting.published import published_tables
from snncompress.zoo.entries import list_zoo
from snncompress.zoo.measuring import verify_zoo

PUBLISHED = published_tables()
STORED = sorted(results.FOLDER.glob("*.json"))


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_rows_have_the_columns_of_their_table(name: str) -> None:
    table = PUBLISHED[name]
    assert set(table["columns"]) <= set(tables.COLUMNS)
    for row in table["rows"]:
        assert set(row) <= {"method", *table["columns"]}
        assert any(column in row for column in table["columns"])


def test_numbers_are_shown_as_printed() -> None:
    (row,) = [row for row in PUBLISHED["lenet5-neurons"]["rows"] if row["method"] == "VIBNet"]
    assert [str(row[column]) for column in ("size", "flops", "memory", "error")] == ["0.83", "0.094", "15.55", "1.0"]
    (row,) = [row for row in PUBLISHED["sparse-vd"]["rows"] if row["method"] == "LeNet-5-Caffe, original"]
    assert str(row["error"]) == "0.80"


def test_every_entry_names_tables_that_there_are() -> None:
    assert {name for entry in list_zoo() for name in entry.recipe.tables} <= set(PUBLISHED)


def test_all_tables_without_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tables.main(["all", "--quick", "--data-root", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    for table in PUBLISHED.values():
        assert f"### {table['title']}\n" in text
    assert "| SE-SNN " in text
    assert tables.main(["all", "--quick", "--data-root", str(tmp_path), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert list(shown) == list(PUBLISHED)
    for table in shown.values():
        for line in table["ours"]:
            assert line["state"] in ("verified", "stored", "missing")
            numbers = set(line) - {"method", "from", "state"}
            assert bool(numbers) == (line["state"] != "missing")


def test_an_entry_is_verified_or_failed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (entry,) = [entry for entry in list_zoo() if entry.name == "lenet5-sample"]
    figures = entry.recipe.figures
    assert figures is not None
    line = tables.check(entry, "nowhere")
    assert line.state == "verified"
    assert line.values["flops"] == pytest.approx(figures.flops / 1e6)
    assert line.values["accuracy"] == pytest.approx(100 - figures.error)
    result = verify_zoo(entry.name)
    wrong = replace(result, checks=(replace(result.checks[0], passed=False),))
    monkeypatch.setattr(tables, "verify_zoo", lambda *_, **__: wrong)
    recipe = replace(entry.recipe, tables=("fashion-mnist",))
    entry.__dict__["recipe"] = recipe
    monkeypatch.setattr(tables, "list_zoo", lambda: [entry])
    assert tables.main(["fashion-mnist", "--quick"]) == 1
    assert "FAILED to have their figures: zoo:lenet5-sample: error." in capsys.readouterr().out


def test_a_result_is_stored_and_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(results, "FOLDER", tmp_path / "results")
    assert results.read("variance-layers") is None
    monkeypatch.setattr("sys.argv", ["/x/benchmarks/variance_layers.py", "--data-root", "/x/data", "--store"])
    rows = [{"method": "Gaussian", "accuracy_mean": 11.35, "accuracy_averaged": 99.31}]
    results.write("variance-layers", rows)
    kept = results.read("variance-layers")
    assert kept is not None
    assert kept["rows"] == rows
    assert kept["command"] == "python -m benchmarks.variance_layers --data-root data --store"
    assert tables.main(["variance-layers", "--quick"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "ours" in line]
    assert [cell.strip() for cell in line.split("|")][3:6] == ["11.35", "–", "99.31"]
    assert "| benchmarks.variance_layers at" in line


@pytest.mark.parametrize("file", STORED, ids=lambda file: file.stem)
def test_stored_results_have_their_form(file: Path) -> None:
    result = json.loads(file.read_text(encoding="utf-8"))
    assert result["table"] == file.stem
    assert file.stem in tables.BENCHMARKS
    assert result["command"].startswith(f"python -m benchmarks.{tables.BENCHMARKS[file.stem]}")
    assert len(result["commit"]) == 40
    assert result["seeds"]
    assert result["rows"]
    for row in result["rows"]:
        assert set(row) <= {"method", "spread", *PUBLISHED[file.stem]["columns"]}


def test_every_benchmark_that_stores_is_there() -> None:
    for table, module in tables.BENCHMARKS.items():
        assert table in PUBLISHED
        text = (Path(tables.__file__).parent / f"{module}.py").read_text(encoding="utf-8")
        assert "if arguments.store:" in text
        assert "--store" in text or "stores=True" in text


def test_the_same_shape_from_new_weights_stands_beside() -> None:
    entry = next(entry for entry in list_zoo() if entry.recipe.figures is not None and entry.recipe.scratch is not None)
    recipe, figures = entry.recipe, entry.recipe.figures
    assert figures is not None
    entry.__dict__["recipe"] = replace(recipe, figures=None)
    assert tables.beside(entry) == []
    entry.__dict__["recipe"] = replace(recipe, figures=replace(figures, scratch_errors=(6.0, 7.0)))
    (line,) = tables.beside(entry)
    assert (line.values["error"], line.values["spread"], line.values["accuracy"]) == (6.5, 0.5, 93.5)
    assert line.values["flops"] == figures.flops / 1e6
