"""The formats that a run is exported to."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snncompress.errors import UsageError

if TYPE_CHECKING:  # the CLI asks for names only
    from torch import Tensor

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
        images: Images (N, C, H, W) in 0..1, to compare on; None takes random ones.
        force: Replace existing files.
    """
    from snncompress.exporting.onnx import export_onnx
    from snncompress.exporting.pt2 import export_pt2
    from snncompress.exporting.python_file import export_python
    from snncompress.exporting.state_dict import export_state_dict

    format = ExportFormat(format)
    if opset is not None and format is not ExportFormat.ONNX:
        raise UsageError(f"--opset is ONNX's; leave it out with --format {format}")
    inside: dict[str, Any] = {"with_softmax": with_softmax, "with_normalization": with_normalization}
    if format is ExportFormat.STATE_DICT:
        if any(inside.values()):
            raise UsageError("a state dict holds tensors only; leave --with-softmax and --with-normalization out")
        return export_state_dict(run, out, force=force)
    if format is ExportFormat.ONNX:
        return export_onnx(run, out, opset=opset, images=images, force=force, **inside)
    write = export_pt2 if format is ExportFormat.PT2 else export_python
    return write(run, out, images=images, force=force, **inside)
