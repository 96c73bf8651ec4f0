"""``snncompress export --format`` as a user types it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from small_data import make_images, write_npz
from words import train

import snncompress


def wanted(folder: str) -> torch.Tensor:
    run = snncompress.load(folder)
    with torch.no_grad():
        return run.model(run.normalization(make_images(5)[0].float() / 255))


def test_python_and_its_weights(noisy: str, call: Any, tmp_path: Path) -> None:
    out = call("export", noisy, "--format", "python", "--out", tmp_path / "small_net.py")
    assert "small_net.safetensors" in out
    assert "54 real images" in out
    torch.save(make_images(5)[0].float() / 255, tmp_path / "images.pt")
    program = (
        "import sys, torch\nsys.modules['snncompress'] = None\nfrom small_net import load, normalize\n"
        "torch.save(load()(normalize(torch.load('images.pt'))), 'out.pt')"
    )
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)
    assert torch.allclose(torch.load(tmp_path / "out.pt"), wanted(noisy), atol=1e-5)


def test_pt2_json(noisy: str, call: Any, tmp_path: Path) -> None:
    words = ["--format", "pt2", "--with-normalization", "--json"]
    result = json.loads(call("export", noisy, *words, "--out", tmp_path / "a.pt2"))
    assert (result["format"], result["opset"], result["beside"]) == ("pt2", None, [])
    assert result["size_bytes"] == (tmp_path / "a.pt2").stat().st_size
    got = torch.export.load(tmp_path / "a.pt2").module()(make_images(5)[0].float() / 255)
    assert torch.allclose(got, wanted(noisy), atol=1e-5)


@pytest.mark.usefixtures("elsewhere")
def test_a_state_dict_needs_no_data(call: Any) -> None:
    call(*train(write_npz(Path("gone.npz"))), "--quiet")
    Path("gone.npz").unlink()
    out = call("export", "out", "--format", "state-dict", "--out", "a.safetensors")
    assert "bit for bit" in out
    assert load_file("a.safetensors").keys() == snncompress.load("out").model.state_dict().keys()
    assert json.loads(Path("a.json").read_text())["layers"]["1"] == {"in_features": 64, "out_features": 12}


@pytest.mark.usefixtures("elsewhere")
def test_bad_input(noisy: str, refused: Any) -> None:
    def export(*words: str) -> str:
        return str(refused("export", noisy, *words, code=2))

    assert "onnx" in export("--format", "tflite", "--out", "a")
    assert "small_net.py" in export("--format", "python", "--out", "a.txt")
    assert "--opset" in export("--format", "pt2", "--opset", "18", "--out", "a.pt2")
    assert "tensors only" in export("--format", "state-dict", "--with-softmax", "--out", "a.safetensors")
    Path("a.json").write_text("{}")
    assert "a.json exists already" in export("--format", "state-dict", "--out", "a.safetensors")


@pytest.mark.parametrize("flag", ["--fp16", "--int8"])
def test_fewer_bits(noisy: str, flag: str, call: Any, tmp_path: Path) -> None:
    out = call("export", noisy, flag, "--out", tmp_path / "a.onnx")
    assert "in float32) on 54 images" in out
    result = json.loads(call("export", noisy, flag, "--out", tmp_path / "a.onnx", "--force", "--json"))
    assert result["precision"] == {"--fp16": "float16", "--int8": "int8"}[flag]
    assert result["reduction"].keys() == {"float_bytes", "error", "float_error", "samples", "times_faster"}
    assert result["reduction"]["samples"] == 54


@pytest.mark.usefixtures("elsewhere")
def test_fewer_bits_need_data(noisy: str, call: Any, refused: Any) -> None:
    assert "choose one" in refused("export", noisy, "--fp16", "--int8", "--out", "a.onnx", code=2)
    assert "for ONNX" in refused("export", noisy, "--int8", "--format", "pt2", "--out", "a.pt2", code=2)
    assert "which data?" in refused("export", "lenet5", "--int8", "--out", "a.onnx", code=2)
    call(*train(write_npz(Path("gone.npz"))), "--quiet")
    Path("gone.npz").unlink()
    assert "gone.npz" in refused("export", "out", "--int8", "--out", "a.onnx", code=1)


@pytest.mark.usefixtures("elsewhere")
def test_a_card_beside_the_file(noisy: str, call: Any, refused: Any) -> None:
    Path("release").mkdir()
    result = json.loads(call("export", noisy, "--card", "--out", "release/a.onnx", "--json"))
    assert result["beside"] == ["release/MODEL_CARD.md", "release/predict.py"]
    text = Path("release/MODEL_CARD.md").read_text(encoding="utf-8")
    assert "snncompress train mlp" in text
    assert f"snncompress export {noisy} --card" in text
    assert "release/MODEL_CARD.md exists" in refused("export", noisy, "--card", "--out", "release/b.onnx", code=2)
    assert "--card is for ONNX" in refused("export", noisy, "--card", "--format", "pt2", "--out", "a.pt2", code=2)
    call("export", noisy, "--no-card", "--out", "alone.onnx")
    assert not Path("predict.py").exists()
