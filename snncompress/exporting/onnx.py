"""Exports a model to one ONNX file, and leaves it only if onnxruntime gives the same outputs as torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from snncompress import __version__
from snncompress.errors import ExportError, UsageError
from snncompress.exporting.onnx_file import opset_of
from snncompress.exporting.runtime import FIXED_BATCH, first_cause, open_session, run_session
from snncompress.exporting.subject import ExportResult, prepare, silence
from snncompress.files import write_bytes
from snncompress.run import Run

OPSETS = range(18, 26)  # below, torch's exporter has no operators; above, it has no converter


def export_onnx(
    run: Run,
    out: str | Path,
    *,
    opset: int | None = None,
    with_softmax: bool = False,
    with_normalization: bool = False,
    images: Tensor | None = None,
    force: bool = False,
) -> ExportResult:
    """Writes a model with a free batch size to one ONNX file; the run's model is not touched.

    Batch norms are folded into the convolutions before them, dropout is gone.

    Args:
        run: What to export.
        out: The file.
        opset: The version of ONNX's operators; None is torch's own choice.
        with_softmax: The output is ``probabilities``, not ``logits``; that of a regression is always ``predictions``.
        with_normalization: The input ``images`` is scaled to 0..1 only; the file normalizes it.
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
    subject = prepare(
        run, out, with_softmax=with_softmax, with_normalization=with_normalization, images=images, force=force
    )
    proto = to_onnx(subject.model, subject.inputs, opset, subject.output)
    describe(proto, run, with_normalization)
    data = proto.SerializeToString()
    difference, relative = subject.compare(in_onnxruntime(data))
    write_bytes(out, data)
    return ExportResult(
        path=out,
        size_bytes=len(data),
        opset=opset_of(proto),
        largest_difference=difference,
        relative_difference=relative,
        samples=len(subject.inputs),
        real_images=subject.real_images,
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
        "metrics": json.dumps(dict(run.metrics)),
        "snncompress_version": __version__,
    }
    proto.producer_name, proto.producer_version = "snncompress", __version__
    for key, value in values.items():
        proto.metadata_props.add(key=key, value=value)
