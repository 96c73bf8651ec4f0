"""Exports a model to a program of torch.export (``.pt2``) that torch runs without the model's Python."""

from __future__ import annotations

import io
from pathlib import Path

import torch
from torch import Tensor

from snncompress.exporting.graph import to_graph, to_program
from snncompress.exporting.subject import ExportResult, prepare, silence
from snncompress.files import write_bytes
from snncompress.run import Run


def export_pt2(
    run: Run,
    out: str | Path,
    *,
    with_softmax: bool = False,
    with_normalization: bool = False,
    images: Tensor | None = None,
    force: bool = False,
) -> ExportResult:
    """Writes a program with a free batch size, for ``torch.export.load(path).module()``; see ``export_onnx``."""
    out = Path(out)
    subject = prepare(
        run, out, with_softmax=with_softmax, with_normalization=with_normalization, images=images, force=force
    )
    program = to_program(to_graph(subject.model, run.input_shape), run.input_shape)
    for node in program.graph.nodes:
        for key in ("stack_trace", "nn_module_stack", "source_fn_stack", "from_node"):
            node.meta.pop(key, None)  # paths on the machine that exported it
    written = io.BytesIO()
    with silence():
        torch.export.save(program, written)
        written.seek(0)
        again = torch.export.load(written).module()
    difference, relative = subject.compare(again)
    write_bytes(out, written.getvalue())
    return ExportResult(
        out, len(written.getvalue()), None, difference, relative, len(subject.inputs), subject.real_images
    )
