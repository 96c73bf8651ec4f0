"""``snncompress export``."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from snncompress.cli import options as o
from snncompress.errors import DataError, UsageError
from snncompress.exporting.formats import ExportFormat

if TYPE_CHECKING:
    from snncompress.cli.opening import Opened, Request
    from snncompress.cli.screen import Screen
    from snncompress.exporting.calibrated import Baked
    from snncompress.exporting.subject import ExportResult
    from snncompress.run import Run

PARITY_IMAGES = 256


def export(
    ctx: typer.Context,
    source: o.Source,
    out: Annotated[Path, typer.Option(help="The file.", show_default=False)],
    format: Annotated[
        ExportFormat,
        typer.Option(help="pt2: a program of torch.export; python: plain torch; state-dict: tensors and shapes."),
    ] = ExportFormat.ONNX,
    opset: Annotated[int | None, typer.Option(help="ONNX operator set; torch's choice when absent.")] = None,
    with_softmax: Annotated[bool, typer.Option("--with-softmax", help="Probabilities in place of logits.")] = False,
    with_normalization: Annotated[
        bool, typer.Option("--with-normalization", help="Take images of 0..1: normalize inside the model.")
    ] = False,
    fp16: Annotated[bool, typer.Option("--fp16", help="Weights of float16: half the ONNX file.")] = False,
    int8: Annotated[
        bool, typer.Option("--int8", help="Weights and activations of int8, ranges from training images.")
    ] = False,
    calibrated: Annotated[
        bool, typer.Option("--calibrated", help="Put the temperature that calibrate fitted into the model.")
    ] = False,
    card: Annotated[
        bool, typer.Option("--card/--no-card", help="Write MODEL_CARD.md and predict.py beside an ONNX file.")
    ] = False,
    data: o.Data = None,
    checkpoint: o.Checkpoint = None,
    model_arg: o.ModelArg = None,
    input_shape: o.InputShape = None,
    normalize: o.Normalize = None,
    trust_source: o.TrustSource = False,
    data_root: o.DataRoot = None,
    image_size: o.ImageSize = None,
    config: o.Config = None,
    force: o.Force = False,
    json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
) -> None:
    """Writes the compact model for other programs, compared with torch on real images.

    One ONNX file, checked; or a program of torch.export (pt2); or a Python file of plain torch with its weights beside
    it (python); or the tensors under the model's own names with their shapes as JSON (state-dict). Batch norms are
    folded into the layers before them, dropout is gone.

    \b
    Examples:
      snncompress export runs/small --out small.onnx
      snncompress export runs/small --with-normalization --with-softmax --out small.onnx
      snncompress export runs/small --card --out release/small.onnx
      snncompress export runs/small --int8 --out small-int8.onnx
      snncompress export runs/small --format python --out small_net.py
      snncompress export runs/small --calibrated --with-softmax --out small.onnx
    """
    from snncompress.cli.opening import Request
    from snncompress.cli.render import print_json
    from snncompress.cli.screen import Screen
    from snncompress.exporting.formats import export_model

    request = Request(
        source, checkpoint, o.pairs(model_arg, "--model-arg"), o.shape(input_shape), normalize, trust_source,
        data, data_root, False, image_size, "cpu",
    )  # fmt: skip
    if fp16 and int8:
        raise UsageError("--fp16 and --int8 are two formats; choose one of them")
    fewer_bits = fp16 or int8
    if card:
        _check_card(out, format, force)
    with Screen(quiet, json) as screen:
        screen.start("export", 1)
        opened = _open(request, screen, format, need_data=fewer_bits)
        baked = _bake(opened.run, format) if calibrated else None
        run = opened.run if baked is None else baked.run
        result = export_model(
            run,
            out,
            format,
            opset=opset,
            with_softmax=with_softmax,
            with_normalization=with_normalization,
            precision="float16" if fp16 else "int8" if int8 else "float32",
            calibration=opened.split("train") if fewer_bits else None,
            validation=opened.need_data().validation if fewer_bits else None,
            images=opened.images(PARITY_IMAGES),
            force=force,
        )
        if card:
            result = _add_card(run, result, o.typed(ctx), force)
    if json:
        print_json(result_json(result, format, baked))
    else:
        _show(result, opened.run)
        if baked is not None:
            _show_baked(baked)
        if opened.run.sparse:
            print("The file is dense: it holds the zero weights, too, and they are multiplied by.")


def _open(request: Request, screen: Screen, format: ExportFormat, need_data: bool) -> Opened:
    """The run with its data, if these are there or needed."""
    from snncompress.cli.opening import open_run

    try:
        opened = open_run(request, with_data=request.data is not None or format is not ExportFormat.STATE_DICT)
    except DataError as error:
        if request.data is not None or need_data:
            raise
        screen.message(f"compared on random images, since the run's data are missing ({error})")
        return open_run(request, with_data=False)
    if need_data:
        opened.need_data()
    return opened


def _check_card(out: Path, format: ExportFormat, force: bool) -> None:
    """Refuses a card that cannot be written, before the work is done."""
    from snncompress.exporting.card import places
    from snncompress.exporting.subject import check_place

    if format is not ExportFormat.ONNX:
        raise UsageError(f"--card is for ONNX; leave it out with --format {format}")
    for place in places(out):
        check_place(place, force)


def _add_card(run: Run, result: ExportResult, command: list[str], force: bool) -> ExportResult:
    from snncompress.exporting.card import write_card
    from snncompress.exporting.onnx import OnnxResult

    assert isinstance(result, OnnxResult)
    return replace(result, beside=write_card(run, result, command, force=force))


def _bake(run: Run, format: ExportFormat) -> Baked:
    from snncompress.exporting.calibrated import bake

    baked = bake(run)
    if format is ExportFormat.STATE_DICT and not baked.folded:
        raise UsageError(
            f"--calibrated: this {baked.scaling} scaling is no part of the model's own tensors, which is all that a "
            "state dict holds; choose another --format"
        )
    return baked


def _show_baked(baked: Baked) -> None:
    if baked.folded:
        print(f"calibrated: the temperature {baked.temperature:.4g} is in the classifier's weights and costs nothing")
        return
    what = "the logits are divided by it" if not baked.weights else "Σσ of the image's own noise is computed, too"
    print(
        f"calibrated: temperature {baked.temperature:.4g}, {baked.scaling}; {what}: {baked.weights:,} weights and "
        f"{baked.flops:,} multiplications more"
    )


def result_json(result: ExportResult, format: ExportFormat, baked: Baked | None = None) -> dict[str, Any]:
    """What was written, for scripts."""
    paths = {"path": str(result.path), "beside": [str(path) for path in result.beside]}
    added = None
    if baked is not None:
        added = {key: getattr(baked, key) for key in ("scaling", "temperature", "folded", "weights", "flops")}
    return {**asdict(result), **paths, "format": str(format), "calibration": added}


def _show(result: ExportResult, run: Run) -> None:
    from snncompress.data.dataset import noun
    from snncompress.reporting.table import format_bytes

    files = ", ".join(map(str, (result.path, *result.beside)))
    opset = "" if result.opset is None else f", opset {result.opset}"
    compared = "read back, bit for bit"
    if result.samples:
        compared = (
            f"largest difference to torch {result.largest_difference:.1e} ({result.relative_difference:.1e} of the "
            f"largest output) on {result.samples} {'real' if result.real_images else 'random'} images"
        )
    reduction = getattr(result, "reduction", None)
    size = format_bytes(result.size_bytes)
    if reduction is None:
        print(f"{files}: {size}{opset}; {compared}")
        return
    print(f"{files}: {size} ({format_bytes(reduction.float_bytes)} in float32), {result.precision}{opset}; {compared}")
    task, faster = run.task, f"{reduction.times_faster:.2f} times as fast (batch 1, one thread)"
    if reduction.error is None:
        print(f"{faster}; there are no validation {noun(run.input_shape)} to measure the {task.measure} on")
        return
    print(
        f"validation {task.word(reduction.error)} ({task.show(reduction.float_error)} in float32) on "
        f"{reduction.samples:,} {noun(run.input_shape)}; {faster}"
    )
