"""ONNX models of fewer bits: float16, and int8 by onnxruntime's static quantization, measured against float32.

int8 is in the QDQ format, a scale a channel for weights, activations by the largest and smallest values that training
images give. Weights take 7 of the 8 bits: processors without VNNI instructions add pairs of products in 16 bits, which
8 bits overflow, and the file should do the same everywhere. The outputs of linear layers stay float: the logits beyond
the range of the calibration images would be cut off.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from snncompress.data.dataset import Images, to_float
from snncompress.errors import ExportError
from snncompress.exporting.answers import CHUNK, measure_errors
from snncompress.exporting.onnx_file import Precision, opset_of
from snncompress.exporting.runtime import first_cause, open_session, run_session
from snncompress.exporting.subject import silence
from snncompress.measure.timing import time_in_turn
from snncompress.run import Run

CALIBRATION_IMAGES = 1000


@dataclass(frozen=True)
class Reduction:
    """A model of fewer bits beside the float32 model that it was made from, both in onnxruntime.

    Attributes:
        float_bytes: The size of the float32 model.
        error: The error of the smaller one on validation data, in the unit of the run's task; None without such data.
        float_error: That of the float32 model.
        samples: On how many images.
        times_faster: The time of the float32 model over that of the smaller one; batch 1, one thread, in turn.
    """

    float_bytes: int
    error: float | None
    float_error: float | None
    samples: int
    times_faster: float


def reduce_precision(proto: Any, precision: Precision, calibration: Sequence[Tensor]) -> Any:
    """The same model with fewer bits; inputs and outputs stay float32.

    Args:
        proto: A float32 model; it is not touched.
        precision: ``float16`` or ``int8``.
        calibration: Batches as the model reads them, for int8.

    Raises:
        ExportError: If onnxruntime cannot convert it, or changes its opset.
    """
    import onnx

    copied = onnx.ModelProto()
    copied.CopyFrom(proto)
    try:
        with silence():
            made = _to_float16(copied) if precision is Precision.FLOAT16 else _to_int8(copied, calibration)
            onnx.checker.check_model(made, full_check=True)
    except Exception as error:  # the converters raise whatever a graph makes them raise
        raise ExportError(f"onnxruntime cannot convert this model to {precision}: {first_cause(error)}") from error
    if opset_of(made) != opset_of(proto):
        raise ExportError(
            f"the conversion to {precision} needs opset {opset_of(made)}, not {opset_of(proto)}; "
            f"use --opset {opset_of(made)}"
        )
    return made


def _to_float16(proto: Any) -> Any:
    from onnxruntime.transformers.float16 import convert_float_to_float16

    made = convert_float_to_float16(proto, keep_io_types=True)
    _sort(made.graph)
    return made


def _sort(graph: Any) -> None:
    """Puts operators behind those whose outputs they read: the converter appends its casts."""
    makers = {name: index for index, node in enumerate(graph.node) for name in node.output}
    sorter = TopologicalSorter(
        {index: {makers[name] for name in node.input if name in makers} for index, node in enumerate(graph.node)}
    )
    order = [graph.node[index] for index in sorter.static_order()]
    del graph.node[:]
    graph.node.extend(order)


def _to_int8(proto: Any, batches: Sequence[Tensor]) -> Any:
    import onnx
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.batches: Iterator[Tensor] = iter(batches)

        def get_next(self) -> dict[str, Any] | None:
            batch = next(self.batches, None)
            return None if batch is None else {proto.graph.input[0].name: batch.numpy()}

    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "int8.onnx"
        quantize_static(
            proto,
            str(out),
            Reader(),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            reduce_range=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            extra_options={"OpTypesToExcludeOutputQuantization": ["Gemm"]},
        )
        return onnx.load(out)


def calibration_batches(images: Images, run: Run, normalizes: bool) -> list[Tensor]:
    """Some images of a data set, the same each time, as a file reads them.

    Args:
        images: Training images.
        run: Whose normalization is meant.
        normalizes: Whether the file normalizes images itself.
    """
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))[:CALIBRATION_IMAGES].sort().values
    chunks = [to_float(images.batch(indices)[0]).cpu() for indices in order.split(CHUNK)]
    return [chunk if normalizes else run.normalization(chunk) for chunk in chunks]


def measure_reduction(data: bytes, plain: bytes, run: Run, images: Images | None, normalizes: bool) -> Reduction:
    """Measures a model of fewer bits beside the float32 model.

    Args:
        data: The smaller model.
        plain: The float32 model.
        run: Whose models they are.
        images: Labelled validation images, if there are any.
        normalizes: Whether both normalize images themselves.
    """
    one = torch.rand(1, *run.input_shape, generator=torch.Generator().manual_seed(0))
    small, large = (open_session(content, threads=1) for content in (data, plain))
    calls = {"small": lambda: run_session(small, one), "large": lambda: run_session(large, one)}
    times = time_in_turn(calls, budget_seconds=2, one_thread=True)
    errors: dict[str, float] = {}
    if images is not None:

        def reads(batch: Tensor) -> Tensor:
            return batch if normalizes else run.normalization(batch)

        errors = measure_errors(
            {"small": lambda batch: run_session(small, reads(batch)), "large": lambda b: run_session(large, reads(b))},
            images,
        )
    return Reduction(
        float_bytes=len(plain),
        error=errors.get("small"),
        float_error=errors.get("large"),
        samples=0 if images is None else len(images),
        times_faster=times["small"].times_faster(times["large"]),
    )
