"""Tables say what was measured, in every format, and the picture is whole or not there."""

from __future__ import annotations

import csv
import dataclasses
import json
import sys
from pathlib import Path

import pytest
from PIL import Image
from torch import nn

from snncompress.data.task import Task
from snncompress.errors import RunError, UsageError
from snncompress.measure.cost import measure_cost, state_bytes
from snncompress.reporting.rows import Row, make_row, original_row
from snncompress.reporting.table import Format, format_bytes, format_flops, render, rows_json
from snncompress.reporting.tradeoff import plot_tradeoff

KEYS = [
    *("name", "error", "weights", "weights_percent", "flops", "flops_percent"),
    *("memory", "memory_percent", "bytes", "flops_sparse", "stored_bytes", "uncounted", "layers"),
]
ORIGINAL = {
    "weights": 431_080,
    "weights_only": 430_500,
    "flops": 2_293_000,
    "memory": 16_020,
    "bytes": 1_724_320,
}


def small() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 2, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(2, 7, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(112, 79), nn.ReLU(), nn.Linear(79, 10)),
    )


@pytest.fixture
def rows() -> list[Row]:
    pruned = make_row("runs/pruned", small(), (1, 28, 28), ORIGINAL, 0.9, {"0": 20, "3": 50, "7": 500})
    return [original_row("lenet5", ORIGINAL), pruned]


def test_make_row_is_the_measurement() -> None:
    model = small()
    row, cost = make_row("m", model, (1, 28, 28), ORIGINAL, None), measure_cost(model, (1, 28, 28))
    assert (row.weights, row.flops, row.memory) == (cost.weights, cost.flops, cost.memory)
    assert row.flops_percent == pytest.approx(100 * 60_838 / 2_293_000)
    assert row.bytes == state_bytes(model)
    assert [layer["flops"] for layer in row.layers] == [layer.flops for layer in cost.layers]
    assert row.error is None


def test_json(rows: list[Row]) -> None:
    read = json.loads(render(rows, Format.JSON))
    assert read == rows_json(rows)
    assert all(list(model) == KEYS for model in read)
    assert read[0]["error"] is None
    assert read[0]["layers"] == []
    assert read[1]["error"] == 0.9
    assert read[1]["flops"] == sum(layer["flops"] for layer in read[1]["layers"]) == 60_838
    assert read[1]["layers"][0]["output_shape"] == [2, 24, 24]


def squeezed(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


def test_text(rows: list[Row]) -> None:
    lines = squeezed(render(rows, Format.TEXT))
    assert lines[2] == "lenet5 – 431,080 (100.00%) 2.293M (100.00%) 16,020 (100.00%) 1.7 MB"
    assert lines[3] == "runs/pruned 0.90% 10,136 (2.35%) 0.061M (2.65%) 1,791 (11.18%) 40.5 kB"
    conventions = " ".join(lines[4:])
    for statement in ("multiplications only", "non-zero", "hidden feature maps", "of the original model"):
        assert statement in conventions


def test_layers_in_text(rows: list[Row]) -> None:
    lines = squeezed(render(rows, Format.TEXT, layers=True))
    assert "0 Conv2d 2×24×24 2 of 20 52 0.029M 1,152" in lines
    assert "9 Linear 10 10 800 0.001M 0" in lines  # how many it had is not known
    assert "runs/pruned" in lines
    assert "lenet5" not in lines  # its layers were not measured


def test_markdown(rows: list[Row]) -> None:
    piped = dataclasses.replace(rows[1], name="a|b")
    lines = render([rows[0], piped], Format.MARKDOWN).splitlines()
    cells = [[cell.strip() for cell in line.replace("\\|", "/").strip("|").split("|")] for line in lines[:4]]
    assert {len(line) for line in cells} == {6}
    assert cells[0] == ["Model", "Error", "Weights", "FLOPs", "Memory", "File"]
    assert cells[3][0] == "a/b"
    assert "multiplications only" in lines[-1]
    assert "| 7       | Linear |" in render(rows, Format.MARKDOWN, layers=True)


def test_csv_holds_every_digit(rows: list[Row]) -> None:
    read = list(csv.DictReader(render(rows, Format.CSV).splitlines()))
    assert list(read[0]) == KEYS[:-2]
    assert read[0]["error"] == ""
    assert float(read[1]["flops_percent"]) == rows[1].flops_percent
    layers = list(csv.DictReader(render(rows, Format.CSV, layers=True).splitlines()))
    assert [layer["output_shape"] for layer in layers] == ["2x24x24", "7x8x8", "79", "10"]
    assert sum(int(layer["memory"]) for layer in layers) == rows[1].memory
    assert {layer["model"] for layer in layers} == {"runs/pruned"}


def test_a_regression_says_rmse(rows: list[Row]) -> None:
    number = dataclasses.replace(rows[1], name="number", task=Task.REGRESSION)
    assert squeezed(render([number], Format.TEXT))[0].startswith("Model RMSE Weights")
    assert squeezed(render([number], Format.TEXT))[2].startswith("number 0.9000 10,136")
    mixed = squeezed(render([rows[1], number], Format.TEXT))
    assert mixed[0].startswith("Model Error")
    assert mixed[2].startswith("runs/pruned 0.90%")
    assert mixed[3].startswith("number RMSE 0.9000")
    assert [list(row)[:3] for row in rows_json([rows[1], number])] == [KEYS[:3], ["name", "error", "rmse"]]
    read = list(csv.DictReader(render([rows[1], number], Format.CSV).splitlines()))
    assert [row["rmse"] for row in read] == ["", "0.9"]


def test_what_was_not_counted_is_named(rows: list[Row]) -> None:
    odd = dataclasses.replace(rows[1], uncounted=({"module": "a.b", "operator": "my.op", "calls": 2},))
    for format in (Format.TEXT, Format.MARKDOWN):
        assert "more FLOPs: my.op in a.b (2 times)" in render([rows[0], odd], format)
        assert "not counted" not in render(rows, format)
    assert rows_json([odd])[0]["uncounted"] == list(odd.uncounted)


def test_no_rows() -> None:
    assert json.loads(render([], Format.JSON)) == []
    assert "Model" in render([], Format.TEXT)


def test_units() -> None:
    assert [format_flops(n) for n in (60_838, 2_293_000, 1_814_073_344)] == ["0.061M", "2.293M", "1.814G"]
    assert [format_bytes(n) for n in (999, 40_544, 1_724_320)] == ["999 B", "40.5 kB", "1.7 MB"]


POINTS = [{"flops": 2.293e6, "error": 0.8}, {"flops": 5e5, "error": 0.85}, {"flops": 60_838.0, "error": 1.0}]


def test_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "tradeoff.png"
    plot_tradeoff(POINTS, out, original_error=0.8, title="lenet5")
    with Image.open(out) as picture:
        assert picture.format == "PNG"
        assert len(picture.convert("RGB").getcolors(10**6) or []) > 10  # something is drawn
    assert list(tmp_path.iterdir()) == [out]
    plot_tradeoff(POINTS[:1], tmp_path / "one.svg", original_error=None, title="one point")
    assert b"<svg" in (tmp_path / "one.svg").read_bytes()
    plot_tradeoff(POINTS, tmp_path / "number.svg", original_error=0.8, title="number", task=Task.REGRESSION)
    picture = (tmp_path / "number.svg").read_text()
    assert "<!-- RMSE -->" in picture
    assert "%" not in picture.split("<!-- number -->")[1]
    assert "<!-- Error (%) -->" in (tmp_path / "one.svg").read_text()


def test_picture_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(UsageError, match=r"none of .*png"):
        plot_tradeoff(POINTS, tmp_path / "picture.docx", original_error=None, title="")
    with pytest.raises(UsageError, match="no points"):
        plot_tradeoff([], tmp_path / "picture.png", original_error=None, title="")
    with pytest.raises(RunError, match="cannot write"):
        plot_tradeoff(POINTS, tmp_path / "nowhere" / "picture.png", original_error=None, title="")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UsageError, match=r"pip install snncompress\[plots\]"):
        plot_tradeoff(POINTS, tmp_path / "picture.png", original_error=None, title="")
    assert not list(tmp_path.iterdir())
