"""Exports a model to one ONNX file, and leaves it only if onnxruntime gives the same outputs as torch."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from snncompress import __version__
from snncompress.data.dataset import Images
from snncompress.errors import ExportError, UsageError
from snncompress.exporting.onnx_file import Precision, opset_of
from snncompress.exporting.operators import name_operators
from snncompress.exporting.precision import Reduction, calibration_batches, measure_reduction, reduce_precision
from snncompress.exporting.runtime import FIXED_BATCH, first_cause, open_session, run_session
from snncompress.exporting.subject import ExportResult, prepare, silence
from snncompress.files import write_bytes
from snncompress.run import Run

OPSETS = range(18, 26)  # below, torch's exporter has no operators; above, it has no converter
# Bins of reliability diagrams, a temperature that is told by itself where it is in the file, and speed elsewhere.
NOT_OF_THE_FILE = ("calibration", "baked", "latency")


@dataclass(frozen=True)
class OnnxResult(ExportResult):
    """An exported ONNX file.

    Attributes:
        reduction: What fewer bits cost and gain; None for float32.
    """

    reduction: Reduction | None = None


def export_onnx(
    run: Run,
    out: str | Path,
    *,
    opset: int | None = None,
    with_softmax: bool = False,
    with_normalization: bool = False,
    precision: Precision = Precision.FLOAT32,
    calibration: Images | None = None,
    validation: Images | None = None,
    images: Tensor | None = None,
    force: bool = False,
) -> OnnxResult:
    """Writes a model with a free batch size to one ONNX file; the run's model is not touched.

    Batch norms are folded into the convolutions before them, dropout is gone.

    Args:
        run: What to export.
        out: The file.
        opset: The version of ONNX's operators; None is torch's own choice.
        with_softmax: The output is ``probabilities``, not ``logits``; that of a regression is always ``predictions``.
        with_normalization: The input ``images`` is scaled to 0..1 only; the file normalizes it.
        precision: ``float16`` halves the file, ``int8`` quarters it; inputs and outputs stay float32.
        calibration: Training images, by which int8 chooses its ranges.
        validation: Labelled images, to measure the error of a model of fewer bits on.
        images: Images (N, C, H, W) in 0..1, to compare on; None takes random ones.
        force: Replace an existing file.

    Raises:
        UsageError: If the run is no mean network, or has no classes for a softmax, or there is no such opset, or no
            such folder, or the file exists.
        ExportError: If the model cannot be exported, or its file gives other outputs; no file is left.
        RunError: If the file cannot be written.
    """
    out = Path(out)
    if opset is not None and opset not in OPSETS:
        raise UsageError(f"opset {opset} cannot be exported; choose one of {OPSETS[0]} to {OPSETS[-1]}")
    if precision is Precision.INT8 and calibration is None:
        raise UsageError("int8 needs training images, by which it chooses its ranges; give --data")
    subject = prepare(
        run, out, with_softmax=with_softmax, with_normalization=with_normalization, images=images, force=force
    )
    proto = to_onnx(subject.model, subject.inputs, opset, subject.output)
    describe(proto, run, with_normalization)
    plain = data = proto.SerializeToString()
    difference, relative = subject.compare(in_onnxruntime(plain))
    reduction = None
    if precision is not Precision.FLOAT32:
        batches = [] if calibration is None else calibration_batches(calibration, run, with_normalization)
        smaller = reduce_precision(proto, precision, batches)
        describe(smaller, run, with_normalization)
        data = smaller.SerializeToString()
        difference, relative = subject.compare(in_onnxruntime(data), precision)
        reduction = measure_reduction(data, plain, run, validation, with_normalization)
    write_bytes(out, data)
    return OnnxResult(
        path=out,
        size_bytes=len(data),
        opset=opset_of(proto),
        largest_difference=difference,
        relative_difference=relative,
        samples=len(subject.inputs),
        real_images=subject.real_images,
        precision=precision,
        reduction=reduction,
    )


def in_onnxruntime(data: bytes) -> Any:
    """A function that runs a model in onnxruntime; it is loaded at the first call."""
    sessions: list[Any] = []

    def call(images: Tensor) -> Tensor:
        if not sessions:
            sessions.append(open_session(data))
        return run_session(sessions[0], images)

    return call


def to_onnx(model: nn.Module, inputs: Tensor, opset: int | None, output_name: str) -> Any:
    """The model as an ONNX graph with a free batch size.

    Args:
        model: in evaluation mode, on the CPU.
        inputs: an example, (N, C, H, W).
        opset: the version of ONNX's operators; None is torch's own choice.
        output_name: what the output is called; the input is ``images``.

    Raises:
        ExportError: If torch cannot export it.
    """
    import onnx

    # Two images: a batch of one would be taken for a fixed size.
    example = inputs[:1].expand(2, -1, -1, -1).contiguous()
    try:
        with silence():
            program = torch.onnx.export(
                model,
                (example,),
                input_names=["images"],
                output_names=[output_name],
                opset_version=opset,
                dynamic_shapes=({0: torch.export.Dim("batch")},),
                dynamo=True,
                external_data=False,
                verbose=False,
            )
            assert program is not None  # only the old exporter returns nothing
            proto = program.model_proto
            onnx.checker.check_model(proto, full_check=True)
    except Exception as error:  # the exporter raises whatever the model's operators make it raise
        raise ExportError(f"torch cannot export this model to ONNX: {first_cause(error)}") from error
    if proto.graph.input[0].type.tensor_type.shape.dim[0].HasField("dim_value"):  # the exporter says nothing of it
        raise ExportError(f"torch cannot export this model to ONNX: {FIXED_BATCH}")
    made = opset_of(proto)
    if opset not in (None, made):
        raise ExportError(f"this model cannot be converted to opset {opset}, only to {made}; use --opset {made}")
    name_operators(proto)
    for part in (proto, proto.graph, *proto.graph.node, *proto.graph.input, *proto.graph.output):
        del part.metadata_props[:]  # the exporter's notes to its developers, source paths among them
    return proto


def describe(proto: Any, run: Run, with_normalization: bool) -> None:
    """Writes into a model what one needs to know to use it."""
    normalization = {
        "mean": list(run.normalization.mean),
        "std": list(run.normalization.std),
        "inside": with_normalization,
    }
    values = {
        "classes": json.dumps(list(run.classes), ensure_ascii=False),
        "input_size": json.dumps(list(run.input_shape)),
        "normalization": json.dumps(normalization),
        "metrics": json.dumps({name: value for name, value in run.metrics.items() if name not in NOT_OF_THE_FILE}),
        "calibration": json.dumps(run.metrics.get("baked")),
        "snncompress_version": __version__,
    }
    del proto.metadata_props[:]
    proto.producer_name, proto.producer_version = "snncompress", __version__
    for key, value in values.items():
        proto.metadata_props.add(key=key, value=value)
