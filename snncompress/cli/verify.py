"""``snncompress verify``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from snncompress.cli import options as o
from snncompress.cli.evaluate import Split
from snncompress.errors import ExportError, unknown_name


def verify(
    file: Annotated[Path, typer.Argument(metavar="FILE", show_default=False, help="An ONNX file.")],
    source: o.Source,
    data: o.Data = None,
    split: Annotated[Split, typer.Option(help="Which images.")] = Split.VALIDATION,
    runtime: Annotated[str, typer.Option(help="onnxruntime, or openvino where that is installed.")] = "onnxruntime",
    checkpoint: o.Checkpoint = None,
    model_arg: o.ModelArg = None,
    normalize: o.Normalize = None,
    trust_source: o.TrustSource = False,
    data_root: o.DataRoot = None,
    download: o.Download = False,
    image_size: o.ImageSize = None,
    config: o.Config = None,
    json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
) -> None:
    """Checks that an ONNX file does what a run's model does.

    ONNX's checker, shapes, outputs at batch 1, 7 and 256, the error on labelled images: onnxruntime against torch. How
    far outputs may be apart is scaled to the largest one, and looser for files of float16 and int8. Ends with exit code
    1 if anything fails.

    \b
    Examples:
      snncompress verify small.onnx runs/small
      snncompress verify small.onnx runs/small --data folder:photos --split test
    """
    from snncompress.cli.opening import Request, open_run
    from snncompress.cli.render import print_json, show_checks
    from snncompress.cli.screen import Screen
    from snncompress.exporting.onnx_file import read_onnx
    from snncompress.exporting.runtime import Runtime
    from snncompress.exporting.verify import verify_onnx

    if runtime not in list(Runtime):
        raise unknown_name("runtime", runtime, Runtime)
    read_onnx(file)  # a wrong name is told before data are loaded
    request = Request(
        source, checkpoint, o.pairs(model_arg, "--model-arg"), None, normalize, trust_source,
        data, data_root, download, image_size, "cpu",
    )  # fmt: skip
    with Screen(quiet, json) as screen:
        opened = open_run(request)
        result = verify_onnx(file, opened.run, opened.split(split), runtime=Runtime(runtime), progress=screen)
    if json:
        print_json(result.to_json())
    else:
        show_checks(result.checks)
    if not result.passed:
        raise ExportError(f"{file} does not do what {source} does: {', '.join(result.failed)}; export it again")
