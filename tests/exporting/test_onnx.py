"""The exported file does what the model does, says what it is, and is whole or not there."""

from __future__ import annotations

import copy
import errno
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

from snncompress import __version__
from snncompress.data.dataset import Normalization
from snncompress.errors import ExportError, RunError, UsageError
from snncompress.exporting import onnx as export
from snncompress.exporting.onnx import export_onnx
from snncompress.exporting.subject import RANDOM_IMAGES, ExportResult
from snncompress.run import Run, wrap


class Net(nn.Module):
    """Batch norm, a residual addition, adaptive pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.inner = nn.Conv2d(8, 8, 3, padding=1)
        self.pool = nn.AdaptiveAvgPool2d(2)
        self.head = nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x)).relu()
        return self.head(self.pool((x + self.inner(x)).relu()).flatten(1))


@pytest.fixture(scope="module")
def run() -> Run:
    torch.manual_seed(0)
    model = Net()
    model(torch.randn(50, 3, 12, 12))  # gives the batch norm statistics of its own
    normalization = Normalization((0.4, 0.5, 0.6), (0.2, 0.3, 0.4))
    found = wrap(model, (3, 12, 12), classes=("cat", "dog", "Öre", "ü"), normalization=normalization)
    return replace(found, metrics={"error": 1.25, "split": "test"})


@pytest.fixture(scope="module")
def images() -> Tensor:
    return torch.rand(9, 3, 12, 12, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def exported(run: Run, images: Tensor, tmp_path_factory: pytest.TempPathFactory) -> ExportResult:
    return export_onnx(run, tmp_path_factory.mktemp("plain") / "model.onnx", images=images)


def predict(path: Path, images: Tensor) -> np.ndarray[Any, Any]:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(None, {"images": images.numpy()})[0]  # type: ignore[no-any-return]


def metadata(path: Path) -> dict[str, str]:
    return {entry.key: entry.value for entry in onnx.load(path).metadata_props}


@pytest.mark.parametrize("size", [1, 2, 5, 9])
def test_outputs_are_torchs_at_any_batch_size(run: Run, images: Tensor, exported: ExportResult, size: int) -> None:
    inputs = run.normalization(images[:size])
    with torch.no_grad():
        wanted = run.model(inputs)
    assert np.abs(predict(exported.path, inputs) - wanted.numpy()).max() <= 1e-5 * float(wanted.abs().max())


def test_result(exported: ExportResult) -> None:
    assert exported.size_bytes == exported.path.stat().st_size
    assert list(exported.path.parent.iterdir()) == [exported.path]  # one file, no side file for the weights
    assert (exported.samples, exported.real_images) == (9, True)
    assert 0 <= exported.relative_difference <= 1e-4
    proto = onnx.load(exported.path)
    assert exported.opset == proto.opset_import[0].version
    assert ([node.name for node in proto.graph.input], [node.name for node in proto.graph.output]) == (
        ["images"],
        ["logits"],
    )


def test_metadata(run: Run, exported: ExportResult) -> None:
    values, proto = metadata(exported.path), onnx.load(exported.path)
    assert json.loads(values["classes"]) == list(run.classes)
    assert json.loads(values["input_size"]) == [3, 12, 12]
    assert json.loads(values["normalization"]) == {
        "mean": [0.4, 0.5, 0.6],
        "std": [0.2, 0.3, 0.4],
        "inside": False,
    }
    assert json.loads(values["metrics"]) == run.metrics
    assert values["snncompress_version"] == __version__
    assert (proto.producer_name, proto.producer_version) == ("snncompress", __version__)
    assert str(Path(__file__).parent).encode() not in exported.path.read_bytes()


def test_softmax_normalization_and_opset(
    run: Run,
    images: Tensor,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    recwarn: pytest.WarningsRecorder,
) -> None:
    model = copy.deepcopy(run.model).train()
    before = copy.deepcopy(model.state_dict())
    out = tmp_path / "model.onnx"
    result = export_onnx(
        replace(run, model=model), out, opset=18, with_softmax=True, with_normalization=True, images=images
    )
    assert capfd.readouterr() == ("", "")
    assert not recwarn.list
    assert result.opset == onnx.load(out).opset_import[0].version == 18
    with torch.no_grad():
        wanted = run.model(run.normalization(images)).softmax(1)
    np.testing.assert_allclose(predict(out, images), wanted.numpy(), atol=1e-5)
    assert onnx.load(out).graph.output[0].name == "probabilities"
    assert json.loads(metadata(out)["normalization"])["inside"] is True
    assert model.training  # the run's own model is untouched
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_highest_opset_and_random_images(run: Run, tmp_path: Path) -> None:
    result = export_onnx(run, tmp_path / "model.onnx", opset=export.OPSETS[-1])
    assert result.opset == export.OPSETS[-1]
    assert not result.real_images
    assert result.samples == RANDOM_IMAGES


@pytest.fixture
def exporter(run: Run, exported: ExportResult, monkeypatch: pytest.MonkeyPatch) -> None:
    """The slow part done once: torch's exporter gives the file that is already there."""
    monkeypatch.setattr(export, "to_onnx", lambda *_: onnx.load(exported.path))


@pytest.mark.usefixtures("exporter")
def test_other_outputs_leave_no_file(run: Run, images: Tensor, tmp_path: Path) -> None:
    other = copy.deepcopy(run.model)
    with torch.no_grad():
        other.head.bias[2] += 0.01
    out = tmp_path / "model.onnx"
    out.write_text("the old one")
    with pytest.raises(ExportError, match=r"differ from torch's by 1\.00e-02"):
        export_onnx(replace(run, model=other), out, images=images, force=True)
    assert [file.read_text() for file in tmp_path.iterdir()] == ["the old one"]


@pytest.mark.usefixtures("exporter")
def test_nan_weights(run: Run, images: Tensor, tmp_path: Path) -> None:
    broken = copy.deepcopy(run.model)
    with torch.no_grad():
        broken.head.bias[0] = torch.nan
    with pytest.raises(ExportError, match="NaN or infinite"):
        export_onnx(replace(run, model=broken), tmp_path / "model.onnx", images=images)
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("exporter")
def test_full_disk(run: Run, images: Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match="disk is full"):
        export_onnx(run, tmp_path / "model.onnx", images=images)
    assert not list(tmp_path.iterdir())


def test_refused_before_any_work(run: Run, images: Tensor, exported: ExportResult, tmp_path: Path) -> None:
    size = exported.path.stat().st_size
    with pytest.raises(UsageError, match="exists already"):
        export_onnx(run, exported.path, images=images)
    assert exported.path.stat().st_size == size
    with pytest.raises(UsageError, match="is a folder"):
        export_onnx(run, tmp_path, images=images)
    with pytest.raises(UsageError, match="there is no folder"):
        export_onnx(run, tmp_path / "nowhere" / "model.onnx", images=images)
    for opset in (9, 17, 99):
        with pytest.raises(UsageError, match=f"opset {opset} .* 18 to"):
            export_onnx(run, tmp_path / "model.onnx", opset=opset, images=images)
    for bad in (images[:, :1], images[:0], images[0]):
        with pytest.raises(UsageError, match="must be N×3×12×12"):
            export_onnx(run, tmp_path / "model.onnx", images=bad)
    assert not list(tmp_path.iterdir())


def test_a_silent_change_of_the_opset_is_an_error(
    run: Run, images: Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch's exporter leaves the opset that it began with where its converter fails, and says nothing."""
    made = torch.onnx.export
    monkeypatch.setattr(torch.onnx, "export", lambda *words, **more: made(*words, **more | {"opset_version": 18}))
    with pytest.raises(ExportError, match="opset 21, only to 18; use --opset 18"):
        export_onnx(run, tmp_path / "model.onnx", opset=21, images=images)
    assert not list(tmp_path.iterdir())


def test_how_fast_it_was_elsewhere_is_not_in_the_file(run: Run, images: Tensor, tmp_path: Path) -> None:
    metrics = {**run.metrics, "latency": {"machine": "mine"}}
    export_onnx(replace(run, metrics=metrics), tmp_path / "model.onnx", images=images)
    notes = {entry.key: entry.value for entry in onnx.load(tmp_path / "model.onnx").metadata_props}
    assert json.loads(notes["metrics"]) == run.metrics


def test_model_that_cannot_be_exported(run: Run, images: Tensor, tmp_path: Path) -> None:
    class Peeks(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.flatten(1)[:, : 2 if float(x.sum()) > 0 else 3]

    with pytest.raises(ExportError, match="torch cannot export") as caught:
        export_onnx(replace(run, model=Peeks()), tmp_path / "model.onnx", images=images)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())
