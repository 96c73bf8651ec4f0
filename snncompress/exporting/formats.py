"""The formats that a run is exported to."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snncompress.errors import UsageError

if TYPE_CHECKING:  # the CLI asks for names only
    from torch import Tensor

    from snncompress.data.dataset import Images
    from snncompress.exporting.onnx_file import Precision
    from snncompress.exporting.subject import ExportResult
    from snncompress.run import Run


class ExportFormat(StrEnum):
    """What a model is written as."""

    ONNX = "onnx"
    PT2 = "pt2"
    STATE_DICT = "state-dict"
    PYTHON = "python"


def export_model(
    run: Run,
    out: str | Path,
    format: ExportFormat | str = ExportFormat.ONNX,
    *,
    opset: int | None = None,
    with_softmax: bool = False,
    with_normalization: bool = False,
    precision: Precision | str = "float32",
    calibration: Images | None = None,
    validation: Images | None = None,
    images: Tensor | None = None,
    force: bool = False,
) -> ExportResult:
    """Writes a run's model, and leaves a file only if that does what the model does.

    Args:
        run: What to export.
        out: The file.
        format: ``onnx``; ``pt2``, a program of torch.export; ``python``, a file of plain torch with its weights beside
            it; ``state-dict``, the tensors under the architecture's own names and their shapes as JSON.
        opset: The version of ONNX's operators; None is torch's own choice.
        with_softmax: Probabilities in place of logits.
        with_normalization: The input is scaled to 0..1 only, and normalized inside.
        precision: Of an ONNX file: ``float32``, ``float16`` or ``int8``.
        calibration: Training images, by which int8 chooses its ranges.
        validation: Labelled images, to measure the error of a model of fewer bits on.
        images: Images (N, C, H, W) in 0..1, to compare on; None takes random ones.
        force: Replace existing files.
    """
    from snncompress.exporting.onnx import export_onnx
    from snncompress.exporting.onnx_file import Precision
    from snncompress.exporting.pt2 import export_pt2
    from snncompress.exporting.python_file import export_python
    from snncompress.exporting.state_dict import export_state_dict

    format = ExportFormat(format)
    if opset is not None and format is not ExportFormat.ONNX:
        raise UsageError(f"--opset is ONNX's; leave it out with --format {format}")
    if precision != "float32" and format is not ExportFormat.ONNX:
        raise UsageError(f"--fp16 and --int8 are for ONNX; leave them out with --format {format}")
    inside: dict[str, Any] = {"with_softmax": with_softmax, "with_normalization": with_normalization}
    if format is ExportFormat.STATE_DICT:
        if any(inside.values()):
            raise UsageError("a state dict holds tensors only; leave --with-softmax and --with-normalization out")
        return export_state_dict(run, out, force=force)
    if format is ExportFormat.ONNX:
        fewer: dict[str, Any] = {"calibration": calibration, "validation": validation}
        chosen = Precision(precision)
        return export_onnx(run, out, opset=opset, precision=chosen, images=images, force=force, **fewer, **inside)
    write = export_pt2 if format is ExportFormat.PT2 else export_python
    return write(run, out, images=images, force=force, **inside)
