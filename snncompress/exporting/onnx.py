"""Exports a model to one ONNX file, and leaves it only if onnxruntime gives the same outputs as torch."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import logging
import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from snncompress import __version__
from snncompress.data.dataset import Normalization
from snncompress.data.task import Task
from snncompress.errors import ExportError, UsageError
from snncompress.exporting.onnx_file import opset_of
from snncompress.exporting.runtime import first_cause, open_session, run_session
from snncompress.files import write_bytes
from snncompress.run import Run

OPSETS = range(18, 26)  # below, torch's exporter has no operators; above, it has no converter
TOLERANCE = 1e-4  # of the largest output: some 1000 roundings of float32
SMALL_BATCHES = (1, 7)  # compared too: an exporter may have fixed the batch size it saw
RANDOM_IMAGES = 16


@dataclass(frozen=True)
class ExportResult:
    """An exported file and how far its outputs are from torch's.

    Attributes:
        path: The file.
        size_bytes: Its size.
        opset: The version of ONNX's operators it uses.
        largest_difference: Between an output of onnxruntime and one of torch.
        relative_difference: The same, of the largest output.
        samples: How many images were compared.
        real_images: Whether these were given, or random.
    """

    path: Path
    size_bytes: int
    opset: int
    largest_difference: float
    relative_difference: float
    samples: int
    real_images: bool


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
    run.need_mean("exported")
    if with_softmax and run.task is Task.REGRESSION:
        raise UsageError(f"--with-softmax: {run.name} predicts a number, not classes; leave it out")
    _check_request(run, out, opset, images, force)
    real_images = images is not None
    if images is None:
        images = torch.rand(RANDOM_IMAGES, *run.input_shape, generator=torch.Generator().manual_seed(0))
    images = images.detach().cpu().float()
    normalize = run.normalization if with_normalization else None
    inputs = images if with_normalization else run.normalization(images)
    model = _Exported(copy.deepcopy(run.model).cpu(), normalize, with_softmax).eval()
    output = "predictions" if run.task is Task.REGRESSION else "probabilities" if with_softmax else "logits"
    proto = to_onnx(model, inputs, opset, output)
    _describe(proto, run, with_normalization)
    data = proto.SerializeToString()
    difference, largest = _compare(data, model, inputs)
    write_bytes(out, data)
    return ExportResult(
        path=out,
        size_bytes=len(data),
        opset=opset_of(proto),
        largest_difference=difference,
        relative_difference=difference / largest if largest else difference,
        samples=len(images),
        real_images=real_images,
    )


class _Exported(nn.Module):
    """The model with what the file is asked to contain around it."""

    def __init__(self, model: nn.Module, normalization: Normalization | None, softmax: bool) -> None:
        super().__init__()
        self.model, self.normalization, self.softmax = model, normalization, softmax

    def forward(self, images: Tensor) -> Tensor:
        if self.normalization is not None:
            images = self.normalization(images)
        outputs: Tensor = self.model(images)
        return outputs.softmax(dim=1) if self.softmax else outputs


def _check_request(run: Run, out: Path, opset: int | None, images: Tensor | None, force: bool) -> None:
    if opset is not None and opset not in OPSETS:
        raise UsageError(f"opset {opset} cannot be exported; choose one of {OPSETS[0]} to {OPSETS[-1]}")
    if out.is_dir():
        raise UsageError(f"{out} is a folder; name a file in it, such as {out / 'model.onnx'}")
    if out.exists() and not force:
        raise UsageError(f"{out} exists already; choose another name, or replace it with --force")
    if not out.parent.is_dir():
        raise UsageError(f"there is no folder {out.parent} to write {out.name} in; make it first")
    if images is not None and (not len(images) or tuple(images.shape[1:]) != tuple(run.input_shape)):
        wanted, got = ("×".join(map(str, shape)) for shape in (run.input_shape, images.shape))
        raise UsageError(f"the images to compare on must be N×{wanted}, at least one, not {got}")


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
        with _silence():
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
    made = opset_of(proto)
    if opset not in (None, made):
        raise ExportError(f"this model cannot be converted to opset {opset}, only to {made}; use --opset {made}")
    for part in (proto, proto.graph, *proto.graph.node, *proto.graph.input, *proto.graph.output):
        del part.metadata_props[:]  # the exporter's notes to its developers, source paths among them
    return proto


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """The exporter prints, warns and logs, on success too."""
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            with contextlib.redirect_stderr(io.StringIO()):
                yield
    finally:
        logging.disable(disabled)


def _describe(proto: Any, run: Run, with_normalization: bool) -> None:
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


def _compare(data: bytes, model: nn.Module, inputs: Tensor) -> tuple[float, float]:
    """The largest difference of outputs and the largest output; an error if they are too far apart."""
    difference = largest = 0.0
    try:
        session = open_session(data)
        for size in sorted({min(size, len(inputs)) for size in (*SMALL_BATCHES, len(inputs))}):
            batch = inputs[:size]
            got = run_session(session, batch)
            with torch.no_grad():
                wanted = model(batch)
            difference = _larger(difference, (got - wanted).abs().max())
            largest = _larger(largest, wanted.abs().max())
    except Exception as error:  # onnxruntime's errors have no class of their own
        raise ExportError(f"onnxruntime cannot run the exported model: {first_cause(error)}") from error
    if not math.isfinite(largest):
        raise ExportError("the model's own outputs are NaN or infinite; check its weights and its normalization")
    if not difference <= TOLERANCE * largest:  # also if it is NaN
        raise ExportError(
            f"the exported model's outputs differ from torch's by {difference:.2e}, more than {TOLERANCE:g} "
            f"of the largest ({largest:.2e}), so no file was left; try another --opset"
        )
    return difference, largest


def _larger(value: float, other: Tensor) -> float:
    return float(torch.maximum(torch.tensor(value), other))  # unlike Python's max, it keeps a NaN
