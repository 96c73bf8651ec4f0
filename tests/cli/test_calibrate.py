"""``snncompress calibrate`` and ``export --calibrated`` as a user types them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from small_data import make_images, write_npz, write_table
from words import MODEL

import snncompress
from snncompress.cli import run as run_command

KINDS = {
    "plain": ["--method", "none"],
    "sure": ["--method", "se-snn", "-o", "place=input", "--aggregate", "sample"],
    "dropped": ["--method", "dropout", "-o", "rate=0.2"],
    "hollow": ["--method", "variance"],
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of each kind, on data with test images."""
    folder = tmp_path_factory.mktemp("calibrated")
    images, labels = make_images(500)
    parts = {"train": slice(0, 400), "test": slice(400, 500)}
    arrays = {f"{part}_images": images[span].numpy() for part, span in parts.items()}
    np.savez(folder / "data.npz", **arrays, **{f"{part}_labels": labels[span].numpy() for part, span in parts.items()})
    data = ["--data", f"npz:{folder / 'data.npz'}", "--epochs", "2", "--lr", "0.01", "--batch-size", "50"]
    for name, words in KINDS.items():
        assert run_command(["train", *MODEL, *data, *words, "--quiet", "--out", str(folder / name)]) == 0
    return folder


def images() -> Any:
    return make_images(9, seed=5)[0].float() / 255


def run_onnx(file: Path, inputs: torch.Tensor) -> torch.Tensor:
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(None, {"images": inputs.numpy()})[0])


def test_the_table_and_what_the_run_keeps(runs: Path, call: Any, tmp_path: Path) -> None:
    text = call("calibrate", runs / "sure", "--samples", "4", "--out", tmp_path / "pictures")
    lines = text.splitlines()
    assert lines[0].startswith("mlp on 100 test images of npz:")
    scalings = ("as it is", "temperature", "temperature · Σσ")
    assert [line[:28].strip() for line in lines[4:10]] == [
        f"{way}, {scaling}" for way in ("mean", "4 averaged") for scaling in scalings
    ]
    assert "Σσ is that of the noise on layer 5." in text
    kept = snncompress.load(runs / "sure").metrics["calibration"]
    assert json.loads((tmp_path / "pictures" / "calibration.json").read_text()) == kept
    names = {file.name for file in (tmp_path / "pictures").iterdir()}
    assert names == {"calibration.json", "reliability-before.png", "reliability-after.png", "ece-samples.png"}
    result = json.loads(call("calibrate", runs / "sure", "--samples", "4", "--json"))
    assert (result.pop("stored"), result.pop("run")) == (True, str(runs / "sure"))
    assert result == kept
    assert {row["temperature"] is None for row in result["rows"] if row["scaling"] == "none"} == {True}


@pytest.mark.parametrize(("name", "ways"), [("plain", 2), ("dropped", 4), ("hollow", 2)])
def test_other_runs(runs: Path, call: Any, name: str, ways: int) -> None:
    words = [] if name == "plain" else ["--samples", "3"]
    result = json.loads(call("calibrate", runs / name, *words, "--split", "validation", "--json"))
    assert len(result["rows"]) == ways
    assert (result["split"], result["images"]) == ("validation", 40)
    assert result["chosen"] == (None if name == "hollow" else "temperature")
    assert "fitted on these very images" in call("calibrate", runs / name, *words, "--split", "validation")


def test_a_temperature_in_the_classifier(runs: Path, call: Any, tmp_path: Path) -> None:
    call("calibrate", runs / "plain")
    text = call("export", runs / "plain", "--calibrated", "--out", tmp_path / "a.onnx")
    assert "is in the classifier's weights and costs nothing" in text
    run = snncompress.load(runs / "plain")
    temperature = run.metrics["calibration"]["rows"][1]["temperature"]
    inputs = run.normalization(images())
    with torch.no_grad():
        wanted = run.model(inputs) / temperature
    torch.testing.assert_close(run_onnx(tmp_path / "a.onnx", inputs), wanted, rtol=1e-4, atol=1e-5)
    assert "FAIL" not in call("verify", tmp_path / "a.onnx", runs / "plain")
    call("export", runs / "plain", "--calibrated", "--format", "state-dict", "--out", tmp_path / "a.safetensors")


def test_a_temperature_for_each_image(runs: Path, call: Any, tmp_path: Path) -> None:
    """Eq. 8, from the tensors of the run."""
    call("calibrate", runs / "sure", "--samples", "0", "--use", "sample-wise")
    words = ["--calibrated", "--with-softmax", "--card"]
    text = call("export", runs / "sure", *words, "--out", tmp_path / "a.onnx")
    assert "72 weights and 64 multiplications more" in text  # 8 hidden neurons: 8·8 + 8
    run = snncompress.load(runs / "sure")
    assert run.noise is not None
    temperature = next(
        row["temperature"] for row in run.metrics["calibration"]["rows"] if row["scaling"] == "sample-wise"
    )
    inputs = run.normalization(images())
    with torch.no_grad():
        h = run.model[:5](inputs)  # type: ignore[index]
        spread = F.softplus(h @ run.noise.tensors["5.weight"].T + run.noise.tensors["5.bias"]).sum(1, keepdim=True)
        wanted = (run.model(inputs) / (temperature * spread)).softmax(1)
    torch.testing.assert_close(run_onnx(tmp_path / "a.onnx", inputs), wanted, rtol=1e-3, atol=1e-5)
    card = (tmp_path / "MODEL_CARD.md").read_text(encoding="utf-8")
    assert "Calibrated: the logits are divided by" in card
    assert "noise that layer 5 predicts" in card
    assert "FAIL" not in call("verify", tmp_path / "a.onnx", runs / "sure")
    call("export", runs / "sure", "--calibrated", "--format", "python", "--out", tmp_path / "net.py")
    result = json.loads(call("export", runs / "sure", "--calibrated", "--json", "--out", tmp_path / "b.onnx"))
    assert result["calibration"]["scaling"] == "sample-wise"


def test_the_page_shows_it(runs: Path, call: Any, tmp_path: Path) -> None:
    call("calibrate", runs / "sure", "--samples", "3")
    call("report", runs / "sure", "--html", tmp_path / "a.html", "--png", tmp_path)
    page = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert "How sure it is" in page
    assert "3 averaged, temperature · Σσ" in page
    assert page.count("accuracy over confidence") >= 2
    assert "ECE (%) over Samples averaged" in page
    assert (tmp_path / "reliability-after.png").exists()


@pytest.mark.usefixtures("elsewhere")
def test_bad_input(runs: Path, refused: Any, call: Any) -> None:
    assert "was not trained with noise" in refused("calibrate", str(runs / "plain"), "--samples", "3", code=2)
    assert "give --samples 20" in refused("calibrate", str(runs / "hollow"), "--samples", "0", code=2)
    assert "--method se-snn" in refused("calibrate", str(runs / "plain"), "--use", "sample-wise", code=2)
    assert "which data?" in refused("calibrate", "lenet5", code=2)
    Path("file").touch()
    assert "give a folder" in refused("calibrate", str(runs / "plain"), "--out", "file", code=2)
    refusal = refused("export", "lenet5", "--calibrated", "--out", "a.onnx", code=2)
    assert "run `snncompress calibrate RUN` first, or leave --calibrated out" in refusal
    table = write_table(Path("table.npz"))
    call("train", *MODEL, "--data", table, "--method", "none", "--epochs", "1", "--out", "numbers", "--quiet")
    assert "predicts a number" in refused("calibrate", "numbers", "--split", "validation", code=2)


@pytest.mark.usefixtures("elsewhere")
def test_what_is_not_the_runs_own_is_not_kept(runs: Path, call: Any, capsys: pytest.CaptureFixture[str]) -> None:
    before = (runs / "plain" / "run.json").read_text()
    data = write_npz(Path("other.npz"))
    result = json.loads(call("calibrate", runs / "plain", "--data", data, "--split", "validation", "--json"))
    assert result["stored"] is False
    assert (runs / "plain" / "run.json").read_text() == before
