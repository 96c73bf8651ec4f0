"""``snncompress export``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from snncompress.cli import options as o
from snncompress.errors import DataError

PARITY_IMAGES = 256


def export(
    source: o.Source,
    out: Annotated[Path, typer.Option(help="The ONNX file.", show_default=False)],
    opset: Annotated[int | None, typer.Option(help="ONNX operator set; torch's choice when absent.")] = None,
    with_softmax: Annotated[bool, typer.Option("--with-softmax", help="Probabilities in place of logits.")] = False,
    with_normalization: Annotated[
        bool, typer.Option("--with-normalization", help="Take images of 0..1: normalize inside the model.")
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
    """Writes one ONNX file, checked, and compared with torch on real images.

    \b
    Examples:
      snncompress export runs/small --out small.onnx
      snncompress export runs/small --with-normalization --with-softmax --out small.onnx
    """
    from snncompress.cli.opening import Request, open_run
    from snncompress.cli.render import print_json
    from snncompress.cli.screen import Screen
    from snncompress.exporting.onnx import export_onnx
    from snncompress.reporting.table import format_bytes

    request = Request(
        source, checkpoint, o.pairs(model_arg, "--model-arg"), o.shape(input_shape), normalize, trust_source,
        data, data_root, False, image_size, "cpu",
    )  # fmt: skip
    with Screen(quiet, json) as screen:
        screen.start("export", 1)
        try:
            opened = open_run(request)
        except DataError as error:
            if data is not None:
                raise
            screen.message(f"compared on random images, since the run's data are missing ({error})")
            opened = open_run(request, with_data=False)
        result = export_onnx(
            opened.run,
            out,
            opset=opset,
            with_softmax=with_softmax,
            with_normalization=with_normalization,
            images=opened.images(PARITY_IMAGES),
            force=force,
        )
    if json:
        print_json({**asdict(result), "path": str(result.path)})
        return
    kind = "real" if result.real_images else "random"
    print(
        f"{result.path}: {format_bytes(result.size_bytes)}, opset {result.opset}; largest difference to torch "
        f"{result.largest_difference:.1e} ({result.relative_difference:.1e} of the largest output) "
        f"on {result.samples} {kind} images"
    )
    if opened.run.sparse:
        print("The file is dense: it holds the zero weights, too, and onnxruntime multiplies by them.")
