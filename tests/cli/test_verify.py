"""``snncompress verify`` as a user types it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import numpy_helper
from small_data import write_npz, write_table
from words import train

from snncompress.cli import run as run_command


@pytest.fixture(scope="module")
def exported(noisy: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("files") / "noisy.onnx"
    assert run_command(["export", noisy, "--out", str(out), "--quiet"]) == 0
    return out


def test_a_line_a_check(noisy: str, exported: Path, call: Any) -> None:
    lines = call("verify", exported, noisy, "--quiet").splitlines()
    assert [line[:4] for line in lines] == ["PASS"] * 6 + ["    "]
    assert "parity at batch 256" in lines[4]
    assert "54 images" in lines[5]


def test_json_and_other_images(noisy: str, exported: Path, data: str, call: Any) -> None:
    result = json.loads(call("verify", exported, noisy, "--split", "test", "--data", data, "--json"))
    assert result["passed"] is True
    (error,) = (check for check in result["checks"] if check["name"] == "error")
    assert error["samples"] == 60
    assert error["onnxruntime"] == error["torch"]


def test_a_failure_is_shown_and_exits_with_1(
    noisy: str, exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    proto = onnx.load(exported)
    weight = proto.graph.initializer[0]
    weight.CopyFrom(numpy_helper.from_array(2 * numpy_helper.to_array(weight), weight.name))
    onnx.save(proto, tmp_path / "other.onnx")
    words = ["verify", str(tmp_path / "other.onnx"), noisy, "--quiet"]
    assert run_command(words) == 1
    out, err = capsys.readouterr()
    assert "FAIL parity at batch 1 " in out
    assert err.count("\n") == 1
    assert "parity at batch 7" in err
    assert run_command([*words, "--json"]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["passed"] is False
    assert "does not do what" in json.loads(err)["failure"]


def test_a_regression(call: Any, tmp_path: Path) -> None:
    data = write_table(tmp_path / "table.npz")
    words = ["mlp", "--model-arg", "widths=5", "--data", data, "--method", "none", "--epochs", "1"]
    call("train", *words, "--quiet", "--out", tmp_path / "run")
    call("export", tmp_path / "run", "--out", tmp_path / "a.onnx")
    out = call("verify", tmp_path / "a.onnx", tmp_path / "run")
    assert "PASS RMSE" in out
    assert "samples" in out


@pytest.mark.usefixtures("elsewhere")
def test_bad_input(noisy: str, exported: Path, data: str, refused: Any) -> None:
    assert "not a file" in refused("verify", "missing.onnx", noisy, code=2)
    assert "known: onnxruntime, openvino" in refused("verify", str(exported), noisy, "--runtime", "openvno", code=2)
    Path("text.onnx").write_text("hello")
    assert "not an ONNX file" in refused("verify", "text.onnx", noisy, code=1)
    assert "lenet5 1×28×28" in refused("verify", str(exported), "lenet5", "--data", "mnist-sample", code=1)
    assert "gone.npz" in refused("verify", str(exported), noisy, "--data", "npz:gone.npz", code=1)
    Path("five.py").write_text(
        "from torch import nn\ndef build(): return nn.Sequential(nn.Flatten(), nn.Linear(64, 5))"
    )
    assert "4 outputs an image, but" in refused("verify", str(exported), "five.py:build", "--data", data, code=1)


@pytest.mark.usefixtures("elsewhere")
def test_missing_data(refused: Any, call: Any) -> None:
    data = write_npz(Path("gone.npz"))
    call(*train(data), "--quiet")
    call("export", "out", "--out", "a.onnx")
    Path("gone.npz").unlink()
    assert "gone.npz" in refused("verify", "a.onnx", "out", code=1)
    assert "which data?" in refused("verify", "a.onnx", "mlp", "--model-arg", "image_shape=[1,8,8]", code=2)
