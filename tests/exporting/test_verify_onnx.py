"""A file that does what the model does passes; each way in which it may not is found, and named."""

from __future__ import annotations

import copy
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper
from tiny import tiny_images, tiny_run

from snncompress.data.dataset import TensorImages
from snncompress.errors import DataError, ExportError, UsageError
from snncompress.exporting.onnx import export_onnx
from snncompress.exporting.onnx_file import Precision, read_onnx
from snncompress.exporting.runtime import Runtime
from snncompress.exporting.verify import Check, Verification, verify_onnx
from snncompress.run import Run


@pytest.fixture(scope="module")
def run() -> Run:
    return tiny_run()


@pytest.fixture(scope="module")
def images(run: Run) -> TensorImages:
    return tiny_images(run)


@pytest.fixture(scope="module")
def exported(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_onnx(run, tmp_path_factory.mktemp("plain") / "model.onnx").path


def find(result: Verification, name: str) -> Check:
    return next(check for check in result.checks if check.name == name)


def test_its_own_file_passes(run: Run, images: TensorImages, exported: Path) -> None:
    before = copy.deepcopy(run.model.state_dict())
    result = verify_onnx(exported, run, images)
    assert result.passed
    assert result.failed == []
    names = ["checker", "shapes", *(f"parity at batch {size}" for size in (1, 7, 256)), "error", "latency"]
    assert [check.name for check in result.checks] == names
    assert find(result, "parity at batch 256").values["relative"] <= 1e-5
    error = find(result, "error").values
    assert error == {"onnxruntime": 20.0, "torch": 20.0, "slack": 0.02, "samples": 40}
    assert find(result, "latency").passed is None
    assert find(result, "latency").values["times_faster"] > 0
    assert all(torch.equal(value, before[key]) for key, value in run.model.state_dict().items())


def test_an_error_may_differ_by_just_what_is_allowed(
    run: Run, images: TensorImages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = export_onnx(run, tmp_path / "half.onnx", precision=Precision.FLOAT16).path
    for got, passed in ((56.00000000000001, True), (56.0001, False)):  # of 40 answers, one is 2.5 points
        errors = {"onnxruntime": got, "torch": 53.5}
        monkeypatch.setattr("snncompress.exporting.verify.measure_errors", lambda *_, errors=errors: errors)
        assert find(verify_onnx(file, run, images, batches=[1]), "error").passed == passed


def test_json(run: Run, images: TensorImages, exported: Path) -> None:
    content = verify_onnx(exported, run, images, batches=[3]).to_json()
    assert content.keys() == {"path", "opset", "precision", "passed", "checks"}
    assert content["precision"] == "float32"
    assert [check["passed"] for check in content["checks"]] == [True, True, True, True, None]


def test_normalization_and_softmax_inside(run: Run, images: TensorImages, tmp_path: Path) -> None:
    out = tmp_path / "model.onnx"
    export_onnx(run, out, with_softmax=True, with_normalization=True)
    file = read_onnx(out)
    assert (file.normalizes, file.probabilities, file.precision) == (True, True, Precision.FLOAT32)
    assert verify_onnx(out, run, images).passed


def test_other_weights_fail_by_their_outputs(run: Run, images: TensorImages, exported: Path) -> None:
    other = copy.deepcopy(run.model)
    with torch.no_grad():
        other.head.bias[2] += 0.001  # too little to change an answer
    result = verify_onnx(exported, replace(run, model=other), images)
    assert result.failed == [f"parity at batch {size}" for size in (1, 7, 256)]
    assert find(result, "parity at batch 7").values["difference"] == pytest.approx(0.001, rel=0.01)
    assert find(result, "error").passed


def test_other_answers_fail_by_their_error(run: Run, images: TensorImages, exported: Path) -> None:
    other = copy.deepcopy(run.model)
    with torch.no_grad():
        other.head.bias[2] += 100
    assert "error" in verify_onnx(exported, replace(run, model=other), images).failed


def test_nan_outputs_fail(run: Run, images: TensorImages, exported: Path, tmp_path: Path) -> None:
    proto = onnx.load(exported)
    (bias,) = (tensor for tensor in proto.graph.initializer if tensor.name.endswith("head.bias"))
    bias.CopyFrom(numpy_helper.from_array(np.full(4, np.nan, np.float32), bias.name))
    onnx.save(proto, tmp_path / "nan.onnx")
    result = verify_onnx(tmp_path / "nan.onnx", run, images)
    assert result.failed == [f"parity at batch {size}" for size in (1, 7, 256)]
    assert "NaN" in result.checks[-1].detail


def test_a_fixed_batch_size_fails(run: Run, images: TensorImages, exported: Path, tmp_path: Path) -> None:
    proto = onnx.load(exported)
    for entry in (proto.graph.input[0], proto.graph.output[0]):
        entry.type.tensor_type.shape.dim[0].dim_value = 1
    del proto.graph.value_info[:]
    onnx.save(proto, tmp_path / "one.onnx")
    result = verify_onnx(tmp_path / "one.onnx", run, images)
    assert {"shapes", "parity at batch 7", "parity at batch 256"} <= set(result.failed)
    assert "fixed" in find(result, "shapes").detail
    assert find(result, "parity at batch 1").passed
    assert not any(check.name == "error" for check in result.checks)  # it could not be measured


def test_a_file_that_no_runtime_loads(run: Run, images: TensorImages, exported: Path, tmp_path: Path) -> None:
    proto = onnx.load(exported)
    proto.graph.node[0].op_type = "Unheard"
    onnx.save(proto, tmp_path / "odd.onnx")
    result = verify_onnx(tmp_path / "odd.onnx", run, images)
    assert "checker" in result.failed
    assert "\n" not in result.checks[-1].detail


def test_another_models_file_is_refused(run: Run, images: TensorImages, exported: Path, tmp_path: Path) -> None:
    proto = onnx.load(exported)
    proto.graph.input[0].type.tensor_type.shape.dim[2].dim_value = 28
    onnx.save(proto, tmp_path / "larger.onnx")
    with pytest.raises(ExportError, match="reads 3×28×12, but model 3×12×12"):
        verify_onnx(tmp_path / "larger.onnx", run, images)
    proto = onnx.load(exported)
    proto.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 10
    onnx.save(proto, tmp_path / "more.onnx")
    with pytest.raises(ExportError, match="10 outputs an image, but model 4"):
        verify_onnx(tmp_path / "more.onnx", run, images)
    proto.graph.input.append(helper.make_tensor_value_info("second", onnx.TensorProto.FLOAT, [1]))
    onnx.save(proto, tmp_path / "two.onnx")
    with pytest.raises(ExportError, match="2 inputs"):
        verify_onnx(tmp_path / "two.onnx", run, images)


@pytest.mark.parametrize("content", [b"", b"not a model", bytes(100), b"\x08\x08"])
def test_no_onnx_file(run: Run, images: TensorImages, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.onnx").write_bytes(content)
    with pytest.raises(ExportError, match="not an ONNX file"):
        verify_onnx(tmp_path / "a.onnx", run, images)


def test_nothing_to_compare(run: Run, images: TensorImages, exported: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a file"):
        verify_onnx(tmp_path / "missing.onnx", run, images)
    with pytest.raises(DataError, match="no images"):
        verify_onnx(exported, run, images.subset(torch.arange(0)))


def test_openvino(run: Run, images: TensorImages, exported: Path) -> None:
    pytest.importorskip("openvino")
    result = verify_onnx(exported, run, images, runtime=Runtime.OPENVINO)
    assert result.passed
    assert find(result, "error").values["openvino"] == 20.0


def test_a_runtime_that_is_not_installed(
    run: Run, images: TensorImages, exported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(UsageError, match="pip install openvino"):
        verify_onnx(exported, run, images, runtime=Runtime.OPENVINO)
