"""Exports a model to one Python file of plain torch, its weights beside it: used without snncompress."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor, nn

from snncompress import __version__
from snncompress.errors import UsageError
from snncompress.exporting.graph import to_graph
from snncompress.exporting.python_code import Code, to_code
from snncompress.exporting.subject import ExportResult, check_place, prepare
from snncompress.files import write_bytes
from snncompress.measure.cost import measure_cost
from snncompress.run import Run

TEMPLATE = '''"""{name}, compressed and written by snncompress {version}. Needs torch and safetensors, not snncompress.

    from {module} import load{and_normalize}
    model = load()
    {output} = model({example})  # images: (N, {shape}), values of 0..1
"""

from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

CLASSES = {classes}
{normalize}

class Model(nn.Module):
    """{flops:,} multiplications an image, {parameters:,} numbers."""

    def __init__(self) -> None:
        super().__init__()
        {layers}

    def forward(self, x: Tensor) -> Tensor:
        {lines}


def load(weights: str | Path = Path(__file__).with_suffix(".safetensors")) -> Model:
    """The model with its weights, in evaluation mode."""
    model = Model()
    model.load_state_dict(load_file(weights))
    return model.eval().requires_grad_(False)
'''
NORMALIZE = '''MEAN = {mean}
STD = {std}


def normalize(images: Tensor) -> Tensor:
    """Images of 0..1 as the model reads them."""
    mean, std = (torch.tensor(values, dtype=images.dtype, device=images.device) for values in (MEAN, STD))
    return (images - mean.view(-1, 1, 1)) / std.view(-1, 1, 1)
'''
INDENT = "\n        "


def export_python(
    run: Run,
    out: str | Path,
    *,
    with_softmax: bool = False,
    with_normalization: bool = False,
    images: Tensor | None = None,
    force: bool = False,
) -> ExportResult:
    """Writes ``NAME.py`` and ``NAME.safetensors``; see ``export_onnx`` for the options and errors."""
    out = Path(out)
    if out.suffix != ".py" or not out.stem.isidentifier():
        raise UsageError(f"--out {out.name}: a Python file is imported by its name, so call it like small_net.py")
    subject = prepare(
        run, out, with_softmax=with_softmax, with_normalization=with_normalization, images=images, force=force
    )
    beside = out.with_suffix(".safetensors")
    check_place(beside, force)
    code = to_code(to_graph(subject.model, run.input_shape))
    text = _fill(run, out, code, subject.output, with_normalization)
    weights = {name: value.detach().clone().contiguous() for name, value in code.weights.items()}
    difference, relative = subject.compare(_built(text, out, weights))
    data = safetensors.torch.save(weights)
    write_bytes(beside, data)
    write_bytes(out, text.encode())
    return ExportResult(
        path=out,
        size_bytes=len(text.encode()) + len(data),
        opset=None,
        largest_difference=difference,
        relative_difference=relative,
        samples=len(subject.inputs),
        real_images=subject.real_images,
        beside=(beside,),
    )


def _built(text: str, out: Path, weights: dict[str, Tensor]) -> Any:
    """A function that runs the written model; it is built at the first call."""
    models: list[nn.Module] = []

    def call(images: Tensor) -> Tensor:
        if not models:
            namespace: dict[str, Any] = {"__name__": out.stem, "__file__": str(out)}
            exec(compile(text, str(out), "exec"), namespace)
            model: nn.Module = namespace["Model"]()
            model.load_state_dict(weights)
            models.append(model.eval())
        result: Tensor = models[0](images)
        return result

    return call


def _fill(run: Run, out: Path, code: Code, output: str, normalizes: bool) -> str:
    normalize = "" if normalizes else NORMALIZE.format(mean=run.normalization.mean, std=run.normalization.std)
    return TEMPLATE.format(
        name=run.name.replace("\\", "/").replace('"', "'"),
        version=__version__,
        module=out.stem,
        and_normalize="" if normalizes else ", normalize",
        output=output,
        example="images" if normalizes else "normalize(images)",
        shape=", ".join(map(str, run.input_shape)),
        classes=list(run.classes),
        normalize=normalize,
        flops=measure_cost(run.model, run.input_shape).flops,
        parameters=sum(value.numel() for value in code.weights.values()),
        layers=INDENT.join(code.layers),
        lines=INDENT.join(code.lines),
    )
