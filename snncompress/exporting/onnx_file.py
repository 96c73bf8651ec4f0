"""What an ONNX file says about itself: what it reads, what it gives, how its numbers are held."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from torch import Tensor

from snncompress.data.dataset import Normalization
from snncompress.errors import ExportError, UsageError
from snncompress.exporting.runtime import first_cause

Dimension = int | str | None


class Precision(StrEnum):
    """How a file holds its weights."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    INT8 = "int8"


# How far outputs may be from torch's, of the largest. float32: some 1000 roundings; float16: as many of its coarser
# ones; int8: 255 steps a tensor leave logits a tenth of the largest away in deep networks, and the error tells whether
# that matters.
TOLERANCES = {Precision.FLOAT32: 1e-4, Precision.FLOAT16: 1e-2, Precision.INT8: 0.25}


@dataclass(frozen=True)
class OnnxFile:
    """A file that was read and has one input of images and at least one output.

    Attributes:
        path: The file.
        opset: The version of ONNX's operators.
        precision: How it holds its weights.
        input_shape: Batch, channels, height, width; a name or None where any size is taken.
        output_shape: The same of its first output.
        normalizes: Whether it takes images of 0..1 and normalizes them itself.
        probabilities: Whether its output is behind a softmax.
        calibration: The scaling and temperature that are in it; None for plain logits.
    """

    path: Path
    opset: int
    precision: Precision
    input_shape: tuple[Dimension, ...]
    output_shape: tuple[Dimension, ...]
    normalizes: bool
    probabilities: bool
    calibration: dict[str, Any] | None = None

    def reads(self, images: Tensor, normalization: Normalization) -> Tensor:
        """Images of 0..1 as the file takes them."""
        return images if self.normalizes else normalization(images)


def read_onnx(path: str | Path) -> OnnxFile:
    """Reads what a file says about itself.

    Raises:
        UsageError: If there is no such file.
        ExportError: If it is no ONNX file of a model with one input.
    """
    import onnx

    path = Path(path)
    if not path.is_file():
        raise UsageError(f"{path} is not a file; give the ONNX file that `snncompress export` wrote")
    try:
        proto = onnx.load(path)
    except Exception as error:  # protobuf's and the system's errors have no class in common
        raise ExportError(f"{path} is not an ONNX file ({first_cause(error)})") from error
    if not proto.graph.node:
        raise ExportError(f"{path} is not an ONNX file (it holds no operators)")
    weights = {tensor.name for tensor in proto.graph.initializer}
    inputs = [entry for entry in proto.graph.input if entry.name not in weights]  # old files list weights there too
    if len(inputs) != 1 or not proto.graph.output:
        raise ExportError(f"{path} has {len(inputs)} inputs; one batch of images is what a model of a run reads")
    notes = {entry.key: entry.value for entry in proto.metadata_props}
    return OnnxFile(
        path=path,
        opset=opset_of(proto),
        precision=_precision(proto),
        input_shape=_shape(inputs[0]),
        output_shape=_shape(proto.graph.output[0]),
        normalizes=_normalizes(notes.get("normalization", "")),
        probabilities=proto.graph.output[0].name == "probabilities",
        calibration=_calibration(notes.get("calibration", "")),
    )


def opset_of(proto: Any) -> int:
    """The version of ONNX's own operators that a model uses; 0 if it uses none of them."""
    return next((int(entry.version) for entry in proto.opset_import if entry.domain in ("", "ai.onnx")), 0)


def _shape(entry: Any) -> tuple[Dimension, ...]:
    return tuple(
        dimension.dim_value if dimension.HasField("dim_value") else dimension.dim_param or None
        for dimension in entry.type.tensor_type.shape.dim
    )


def _precision(proto: Any) -> Precision:
    import onnx

    if any(node.op_type in ("DequantizeLinear", "QLinearConv", "QLinearMatMul") for node in proto.graph.node):
        return Precision.INT8
    kinds = {tensor.data_type for tensor in proto.graph.initializer}
    return Precision.FLOAT16 if onnx.TensorProto.FLOAT16 in kinds else Precision.FLOAT32


def _calibration(note: str) -> dict[str, Any] | None:
    try:
        content = json.loads(note)
    except ValueError:  # a file of another program, or an older one
        return None
    return content if isinstance(content, dict) else None


def _normalizes(note: str) -> bool:
    try:
        content = json.loads(note)
    except ValueError:  # a file of another program
        return False
    return isinstance(content, dict) and content.get("inside") is True
