"""Exports the tensors of a compact model under its own names, and its widths as JSON beside them."""

from __future__ import annotations

from pathlib import Path

import safetensors.torch
import torch

from snncompress import __version__
from snncompress.errors import ExportError
from snncompress.exporting.subject import ExportResult, check_place
from snncompress.files import write_bytes, write_json
from snncompress.models.shapes import record_shapes
from snncompress.run import Run


def export_state_dict(run: Run, out: str | Path, *, force: bool = False) -> ExportResult:
    """Writes ``NAME.safetensors`` with the names of the architecture, and ``NAME.json`` with the shapes of its layers.

    Args:
        run: What to export.
        out: The file.
        force: Replace existing files.

    Raises:
        UsageError: If the run is no mean network, or there is no such folder, or a file exists.
        ExportError: If what was written is not what was meant.
        RunError: If a file cannot be written.
    """
    out = Path(out)
    run.need_mean("exported")
    beside = out.with_suffix(".json")
    for place in (out, beside):
        check_place(place, force)
    # Each tensor by itself: safetensors holds no two names of one storage.
    tensors = {name: value.detach().cpu().clone().contiguous() for name, value in run.model.state_dict().items()}
    data = safetensors.torch.save(tensors, metadata={"format": "pt"})
    again = safetensors.torch.load(data)
    if again.keys() != tensors.keys() or not all(torch.equal(again[name], tensors[name]) for name in tensors):
        raise ExportError("the tensors that were written are not those of the model; no file was left")
    write_bytes(out, data)
    write_json(
        beside,
        {
            "snncompress_version": __version__,
            "name": run.name,
            "source": None if run.source is None else {"name": run.source.name, "arguments": run.source.arguments},
            "input_shape": list(run.input_shape),
            "classes": list(run.classes),
            "normalization": {"mean": list(run.normalization.mean), "std": list(run.normalization.std)},
            "layers": record_shapes(run.model),
            "tensors": {name: list(value.shape) for name, value in tensors.items()},
        },
    )
    return ExportResult(out, len(data), None, 0.0, 0.0, 0, False, (beside,))
