"""Every format gives the run's outputs at any batch size, in a process that knows nothing of snncompress."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from networks_for_code import ODD
from safetensors.torch import load_file, save_file
from tiny import CLASSES, SHAPE, tiny_images, tiny_run
from torch import Tensor, nn

from snncompress.data.task import Task
from snncompress.errors import ExportError, UsageError
from snncompress.exporting.formats import export_model
from snncompress.exporting.graph import to_graph
from snncompress.exporting.python_code import to_code
from snncompress.run import Run, wrap

BLOCK = "import sys\nsys.modules['snncompress'] = None  # any import of it fails\nimport torch\n"


@pytest.fixture(scope="module")
def run() -> Run:
    return tiny_run()


@pytest.fixture(scope="module")
def images(run: Run) -> Tensor:
    return tiny_images(run, 9).images


def elsewhere(folder: Path, program: str, images: Tensor) -> Tensor:
    """What a program in another process makes of images."""
    save_file({"images": images}, folder / "in.st")
    ends = (
        "from safetensors.torch import load_file, save_file\nimages = load_file('in.st')['images']\n",
        ("\nsave_file({'out': out.contiguous()}, 'out.st')\n"),
    )
    subprocess.run([sys.executable, "-c", BLOCK + ends[0] + program + ends[1]], cwd=folder, check=True)
    return load_file(folder / "out.st")["out"]


def wanted(run: Run, images: Tensor) -> Tensor:
    with torch.no_grad():
        return run.model.eval()(run.normalization(images))


def test_python(run: Run, images: Tensor, tmp_path: Path) -> None:
    result = export_model(run, tmp_path / "small_net.py", "python", images=images)
    assert result.beside == (tmp_path / "small_net.safetensors",)
    assert result.size_bytes == sum(file.stat().st_size for file in tmp_path.iterdir())
    assert result.relative_difference < 1e-5
    text = result.path.read_text(encoding="utf-8")
    assert "self.conv = nn.Conv2d(3, 8, 3, padding=1)\n" in text
    assert "self.hidden = nn.Linear(32, 16)\n" in text
    assert "norm(" not in text
    assert "torch.ops" not in text
    program = (
        "from small_net import load, normalize, CLASSES\nassert CLASSES[2] == 'Öre'\nmodel = load()\n"
        "out = torch.cat([model(normalize(part)) for part in images.split([1, 3, 5])])"
    )
    assert torch.allclose(elsewhere(tmp_path, program, images), wanted(run, images), atol=1e-5)


def test_pt2(run: Run, images: Tensor, tmp_path: Path) -> None:
    result = export_model(run, tmp_path / "a.pt2", "pt2", images=images, with_softmax=True, with_normalization=True)
    assert result.opset is None
    data = result.path.read_bytes()
    assert str(Path(__file__).parent).encode() not in data
    assert images[0].numpy().tobytes() not in data
    program = "model = torch.export.load('a.pt2').module()\nout = torch.cat([model(images[:1]), model(images[1:])])"
    assert torch.allclose(elsewhere(tmp_path, program, images), wanted(run, images).softmax(1), atol=1e-5)
    targets = {str(node.target) for node in torch.export.load(result.path).graph.nodes}
    assert not any("batch_norm" in name or "dropout" in name for name in targets)


def test_state_dict(run: Run, tmp_path: Path) -> None:
    result = export_model(run, tmp_path / "a.safetensors", "state-dict")
    tensors, model = load_file(result.path), run.model
    assert tensors.keys() == model.state_dict().keys()
    assert all(torch.equal(value, tensors[name]) for name, value in model.state_dict().items())
    content = json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))
    assert content["layers"]["conv"] == {"in_channels": 3, "out_channels": 8, "groups": 1}
    assert content["tensors"]["head.weight"] == [4, 16]
    assert (content["classes"], content["input_shape"]) == (list(CLASSES), list(SHAPE))


@pytest.mark.parametrize("name", ODD)
def test_python_of_odd_networks(name: str) -> None:
    torch.manual_seed(0)
    model, shape = ODD[name]().eval(), (4, 6, 6)
    code = to_code(to_graph(model, shape))
    lines = [f"    {line}\n" for line in code.lines]
    program = "class Model(nn.Module):\n  def __init__(self):\n    super().__init__()\n"
    program += "".join(f"    {line}\n" for line in code.layers) + "  def forward(self, x):\n" + "".join(lines)
    namespace = {"torch": torch, "nn": nn, "F": nn.functional}
    exec(program, namespace)
    built = namespace["Model"]()  # type: ignore[operator]
    built.load_state_dict(code.weights)
    for size in (1, 3):
        images = torch.randn(size, *shape)
        with torch.no_grad():
            assert torch.allclose(built.eval()(images), model(images), atol=1e-6), program


def test_names_are_used_again() -> None:
    """A long chain holds one tensor at a time."""
    code = to_code(to_graph(nn.Sequential(nn.Flatten(), *[nn.Linear(8, 8) for _ in range(9)]).eval(), (8, 1, 1)))
    assert {line.partition(" = ")[0] for line in code.lines[:-1]} == {"x"}


def test_refused(run: Run, images: Tensor, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="like small_net"):
        export_model(run, tmp_path / "my-net.py", "python", images=images)
    with pytest.raises(UsageError, match="--opset is ONNX's"):
        export_model(run, tmp_path / "a.pt2", "pt2", opset=20)
    with pytest.raises(UsageError, match="holds tensors only"):
        export_model(run, tmp_path / "a.safetensors", "state-dict", with_softmax=True)
    with pytest.raises(UsageError, match="predicts a number"):
        export_model(replace(run, task=Task.REGRESSION), tmp_path / "a.pt2", "pt2", with_softmax=True)
    (tmp_path / "small.safetensors").write_text("mine")
    with pytest.raises(UsageError, match=r"small\.safetensors exists already"):
        export_model(run, tmp_path / "small.py", "python", images=images)
    assert [file.name for file in tmp_path.iterdir()] == ["small.safetensors"]


@pytest.mark.parametrize(("format", "name"), [("onnx", "a.onnx"), ("pt2", "a.pt2"), ("python", "a.py")])
def test_a_model_that_cannot_be_exported(tmp_path: Path, format: str, name: str) -> None:
    class Peeks(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.flatten(1)[:, : 2 if float(x.sum()) > 0 else 3]

    class Counts(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.reshape(len(x), -1)

    for model, reason in ((Peeks(), "torch cannot export"), (Counts(), r"fixes the batch size.*x\.shape\[0\]")):
        with pytest.raises(ExportError, match=reason) as caught:
            export_model(wrap(model, SHAPE), tmp_path / name, format)
        assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())
