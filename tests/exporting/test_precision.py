"""Models of fewer bits: what they are made of, what they cost, and that ``verify`` agrees."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
import torch
from onnx import TensorProto
from tiny import tiny_images, tiny_run

from snncompress.data.dataset import TensorImages
from snncompress.errors import ExportError, UsageError
from snncompress.exporting import precision as precision_module
from snncompress.exporting.formats import export_model
from snncompress.exporting.onnx import OnnxResult, export_onnx, to_onnx
from snncompress.exporting.onnx_file import Precision, read_onnx
from snncompress.exporting.precision import calibration_batches, reduce_precision
from snncompress.exporting.verify import verify_onnx
from snncompress.run import Run


@pytest.fixture(scope="module")
def run() -> Run:
    return tiny_run()


@pytest.fixture(scope="module")
def images(run: Run) -> TensorImages:
    return tiny_images(run, 200)


def export(run: Run, images: TensorImages, out: Path, precision: Precision, **options: bool) -> OnnxResult:
    return export_onnx(
        run, out, precision=precision, calibration=images, validation=images, images=images.images, **options
    )


@pytest.fixture(scope="module", params=[Precision.FLOAT16, Precision.INT8])
def exported(
    run: Run, images: TensorImages, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> OnnxResult:
    return export(run, images, tmp_path_factory.mktemp("small") / "model.onnx", request.param)


def test_the_file_is_smaller_and_says_so(exported: OnnxResult) -> None:
    reduction = exported.reduction
    assert reduction is not None
    file = read_onnx(exported.path)
    assert file.precision is exported.precision
    assert file.opset == exported.opset
    assert exported.size_bytes == exported.path.stat().st_size
    proto = onnx.load(exported.path)
    onnx.checker.check_model(proto, full_check=True)
    assert proto.producer_name == "snncompress"
    assert {entry.key for entry in proto.metadata_props} >= {"classes", "normalization"}
    for entry in (proto.graph.input[0], proto.graph.output[0]):
        assert entry.type.tensor_type.elem_type == TensorProto.FLOAT
    kinds = {tensor.data_type for tensor in proto.graph.initializer if tensor.dims}
    assert {Precision.FLOAT16: TensorProto.FLOAT16, Precision.INT8: TensorProto.INT8}[exported.precision] in kinds


def test_its_error_stands_beside_the_float_models(run: Run, images: TensorImages, exported: OnnxResult) -> None:
    reduction = exported.reduction
    assert reduction is not None
    assert reduction.float_error == 20.0  # one label in five is wrong on purpose
    assert reduction.error == pytest.approx(20.0, abs=5)
    assert reduction.samples == 200
    assert reduction.times_faster > 0
    # What was measured is what verify finds in the file.
    result = verify_onnx(exported.path, run, images, batches=[7])
    (error,) = (check for check in result.checks if check.name == "error")
    assert error.values["onnxruntime"] == reduction.error
    assert result.checks[2].passed


def test_normalization_inside_and_a_given_opset(run: Run, images: TensorImages, tmp_path: Path) -> None:
    result = export_onnx(
        run, tmp_path / "a.onnx", opset=18, with_normalization=True, with_softmax=True,
        precision=Precision.INT8, calibration=images, images=images.images,
    )  # fmt: skip
    assert result.opset == read_onnx(tmp_path / "a.onnx").opset == 18
    assert result.reduction is not None
    assert result.reduction.error is None  # no validation images were given
    assert verify_onnx(tmp_path / "a.onnx", run, images, batches=[7]).checks[2].passed


def test_calibration_images_are_the_same_each_time(run: Run, images: TensorImages) -> None:
    first, second = (torch.cat(calibration_batches(images, run, True)) for _ in range(2))
    assert torch.equal(first, second)
    assert torch.allclose(torch.cat(calibration_batches(images, run, False)), run.normalization(first))


def test_refused(run: Run, images: TensorImages, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="needs training images"):
        export_onnx(run, tmp_path / "a.onnx", precision=Precision.INT8)
    with pytest.raises(UsageError, match="are for ONNX"):
        export_model(run, tmp_path / "a.pt2", "pt2", precision="float16")
    assert not list(tmp_path.iterdir())


def test_a_change_of_the_opset_or_a_failure_is_an_error(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    proto = to_onnx(run.model, torch.zeros(1, *run.input_shape), 20, "logits")

    def other(copied: onnx.ModelProto) -> onnx.ModelProto:
        copied.opset_import[0].version = 19
        return copied

    monkeypatch.setattr(precision_module, "_to_float16", other)
    with pytest.raises(ExportError, match="opset 19, not 20"):
        reduce_precision(proto, Precision.FLOAT16, [])

    def broken(copied: onnx.ModelProto) -> onnx.ModelProto:
        raise ValueError("no such thing\nand pages of advice")

    monkeypatch.setattr(precision_module, "_to_float16", broken)
    with pytest.raises(ExportError, match=r"to float16: no such thing$"):
        reduce_precision(proto, Precision.FLOAT16, [])
