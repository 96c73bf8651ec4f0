"""What goes beside an ONNX file: a card that says what it is, and a program that uses it."""

from __future__ import annotations

import math
import platform
import shlex
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from snncompress import __version__
from snncompress.data.dataset import MOST_CHANNELS, has_pixels
from snncompress.data.task import Task
from snncompress.evaluation.calibration import Scaling
from snncompress.exporting.onnx import OnnxResult
from snncompress.exporting.onnx_file import OnnxFile, read_onnx
from snncompress.exporting.subject import check_place
from snncompress.files import write_bytes
from snncompress.measure.cost import measure_cost
from snncompress.reporting.calibration import before_and_after
from snncompress.run import Run
from snncompress.run_files import read_header

CARD, PROGRAM = "MODEL_CARD.md", "predict.py"
SHOWN_CLASSES = 20

PREDICT = '''"""Predicts with {file}. Needs numpy, onnxruntime{and_pillow}.

    python {program} {example}
"""

import sys
from pathlib import Path

import numpy as np
import onnxruntime
{imports}
MODEL = Path(__file__).with_name("{file}")
SESSION = onnxruntime.InferenceSession(str(MODEL), providers=["CPUExecutionProvider"])
CLASSES = {classes}
SHAPE = {shape}  # channels, height, width
MEAN = np.array({mean}, np.float32).reshape(-1, 1, 1)
STD = np.array({std}, np.float32).reshape(-1, 1, 1)

{read}

def predict(inputs: np.ndarray) -> np.ndarray:
    """{returns} for inputs (N, channels, height, width){of_range}."""
    {outputs} = SESSION.run(None, {{"images": {inputs}}})[0]
    {result}


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    for path in sys.argv[1:]:
        try:
            samples = read(path)
        except (OSError, ValueError) as error:
            sys.exit(f"cannot read {{path}} ({{type(error).__name__}}): {kind}")
        for row in predict(samples):
            {show}
'''
SOFTMAX = """exponents = np.exp(logits - logits.max(1, keepdims=True))
    return exponents / exponents.sum(1, keepdims=True)"""
READ_IMAGE = '''
def read(path: str) -> np.ndarray:
    """An image file as (1, channels, height, width) of 0..1: shorter side scaled, centre cut out."""
    channels, height, width = SHAPE
    image = Image.open(path).convert("L" if channels == 1 else "RGB")
    if image.size != (width, height):
        scale = max(height / image.height, width / image.width)
        scaled = (max(width, round(image.width * scale)), max(height, round(image.height * scale)))
        image = image.resize(scaled, Image.Resampling.BILINEAR)
        left, top = (image.width - width) // 2, (image.height - height) // 2
        image = image.crop((left, top, left + width, top + height))
    pixels = np.asarray(image, np.float32).reshape(height, width, channels) / 255
    return pixels.transpose(2, 0, 1)[None]
'''
READ_ARRAY = '''
def read(path: str) -> np.ndarray:
    """A .npy file of samples as (N, channels, height, width)."""
    return np.load(path).astype(np.float32).reshape(-1, *SHAPE)
'''


def write_card(run: Run, result: OnnxResult, command: Sequence[str] = (), *, force: bool = False) -> tuple[Path, Path]:
    """Writes ``MODEL_CARD.md`` and ``predict.py`` beside an exported ONNX file.

    Args:
        run: What was exported.
        result: What ``export_onnx`` gave.
        command: The command that exported it, for the record.
        force: Replace existing files.

    Raises:
        UsageError: If a file is there already.
        RunError: If a file cannot be written.
    """
    card, program = places(result.path)
    for place in (card, program):
        check_place(place, force)
    write_bytes(card, _card(run, result, command).encode())
    write_bytes(program, _program(run, result).encode())
    return card, program


def places(out: Path) -> tuple[Path, Path]:
    """Where the card and the program of an exported file are written."""
    return out.with_name(CARD), out.with_name(PROGRAM)


def _program(run: Run, result: OnnxResult) -> str:
    file = read_onnx(result.path)
    pixels = has_pixels(run.input_shape) and run.input_shape[0] in (1, 3)
    classes, probabilities = run.task is Task.CLASSIFICATION, "outputs" if file.probabilities else "logits"
    best = 'f"{path}: {CLASSES[row.argmax()] if CLASSES else row.argmax()} ({row.max():.1%})"'
    return PREDICT.format(
        file=result.path.name,
        program=PROGRAM,
        and_pillow=" and Pillow" if pixels else "",
        example="image.png ..." if pixels else "samples.npy ...",
        imports="from PIL import Image\n" if pixels else "",
        classes=list(run.classes),
        shape=tuple(run.input_shape),
        mean=list(run.normalization.mean),
        std=list(run.normalization.std),
        read=READ_IMAGE if pixels else READ_ARRAY,
        returns="Probabilities" if classes else "Numbers",
        of_range=" of 0..1" if pixels else "",
        outputs=probabilities if classes else "outputs",
        inputs="inputs" if file.normalizes else "(inputs - MEAN) / STD",
        result=SOFTMAX if classes and not file.probabilities else "return outputs",
        kind="give image files" if pixels else f"give .npy files of samples of {math.prod(run.input_shape)} numbers",
        show=f"print({best})" if classes else 'print(f"{path}: {row[0]:.6g}")',
    )


def _card(run: Run, result: OnnxResult, command: Sequence[str]) -> str:
    cost, original = measure_cost(run.model, run.input_shape), run.original
    name = "a model" if run.source is None else f"`{Path(run.source.name).name}`"
    kind = "an image classifier" if run.task is Task.CLASSIFICATION else "a regression"
    lines = [
        f"# {run.label}",
        "",
        f"{kind[0].upper()}{kind[1:]}: {name}, compressed with snncompress {__version__} and written as ONNX.",
        "",
        "| | this model | of the original |",
        "|---|---:|---:|",
        *(
            f"| {word} | {value:,} | {100 * value / original[key]:.2f}% |"
            for word, value, key in (
                ("multiplications for one image", cost.flops, "flops"),
                ("non-zero weights", cost.weights, "weights"),
                ("floats of hidden feature maps", cost.memory, "memory"),
            )
        ),
        f"| file ({result.precision}, opset {result.opset}) | {result.size_bytes:,} bytes | |",
        *_errors(run, result),
        "",
        *_interface(run, result),
        "## How it was made",
        "",
        "```sh",
        *_commands(run, command),
        "```",
        "",
        ", ".join(f"{package} {version(package)}" for package in ("torch", "onnx", "onnxruntime"))
        + f", Python {platform.python_version()}.",
    ]
    return "\n".join(lines) + "\n"


def _errors(run: Run, result: OnnxResult) -> list[str]:
    task = run.task
    known = [
        f"| {split} {task.measure} (torch, float32) | {task.show(run.metrics[split]['error'])} | |"
        for split in ("validation", "test")
        if "error" in run.metrics.get(split, {})
    ]
    if result.reduction is not None and result.reduction.error is not None:
        known.append(f"| validation {task.measure} ({result.precision}) | {task.show(result.reduction.error)} | |")
    return known


def _interface(run: Run, result: OnnxResult) -> list[str]:
    file = read_onnx(result.path)
    channels, height, width = run.input_shape
    image = has_pixels(run.input_shape)
    values = "pixels of 0..1" if image and channels <= MOST_CHANNELS else "features"
    ways = f"(x − mean) / std with mean {list(run.normalization.mean)} and std {list(run.normalization.std)}"
    normalized = f"{values}; the model itself normalizes them: {ways}" if file.normalizes else f"{values}, then {ways}"
    output = {True: "probabilities", False: "logits"}[file.probabilities]
    output = output if run.task is Task.CLASSIFICATION else "predictions"
    width_out = file.output_shape[-1]
    data, _, place = run.data.get("name", "").partition(":")
    shown = ", ".join(run.classes[:SHOWN_CLASSES]) + (", ..." if len(run.classes) > SHOWN_CLASSES else "")
    return [
        "## Use",
        "",
        f"- Input `images`: float32, N×{channels}×{height}×{width}: {normalized}.",
        f"- Output `{output}`: float32, N×{width_out}{'' if not shown else f', in this order: {shown}'}.",
        *_calibration(run, file),
        f"- Trained on: {f'{data}:{Path(place).name}' if place else data or 'not recorded'}.",
        f"- `python {PROGRAM} FILE...` shows how.",
        "",
    ]


def _calibration(run: Run, file: OnnxFile) -> list[str]:
    """How far the confidence of what is in the file can be trusted."""
    record, baked = run.metrics.get("calibration"), file.calibration
    if record is None or baked is None:
        return []
    before, after = before_and_after({**record, "chosen": baked["scaling"]})
    divisor = f"{baked['temperature']:.4g}"
    if baked["scaling"] == Scaling.SAMPLE_WISE:
        divisor += f"·Σσ, the noise that layer {record['sigma_layer']} predicts for the image"
    return [
        f"- Calibrated: the logits are divided by {divisor}, fitted on validation images. Confidence is off by "
        f"{after['ece']:.2f}% (expected calibration error on {record['images']:,} {record['split']} images; "
        f"{before['ece']:.2f}% without)."
    ]


def _commands(run: Run, command: Sequence[str]) -> list[str]:
    """The commands of the run and of those it was made from, the oldest first."""
    found = [shlex.join(command)] if command else []
    folder = run.path
    while folder is not None and (folder / "run.json").is_file():
        header = read_header(folder)
        if header.get("command"):
            found.append(shlex.join(header["command"]))
        folder = None if header.get("parent") is None else Path(header["parent"])
    return found[::-1] or ["# in Python, not recorded"]
