"""``snncompress calibrate``."""

from __future__ import annotations

from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from snncompress.cli import options as o
from snncompress.errors import RunError, UsageError

if TYPE_CHECKING:
    from snncompress.cli.opening import Opened
    from snncompress.cli.screen import Screen
    from snncompress.evaluation.calibration import Calibration
    from snncompress.run import Run

DRAWS = 20  # from ten on, the paper's curve is flat


class Split(StrEnum):
    """What calibration is measured on."""

    TEST = "test"
    VALIDATION = "validation"


class Use(StrEnum):
    """What ``export --calibrated`` takes."""

    AUTO = "auto"
    TEMPERATURE = "temperature"
    SAMPLE_WISE = "sample-wise"


def calibrate(
    source: o.Source,
    data: o.Data = None,
    split: Annotated[
        Split, typer.Option(help="What is measured; temperatures are fitted on validation images always.")
    ] = Split.TEST,
    samples: Annotated[
        int | None,
        typer.Option(
            help="Average this many samples of a stochastic run; 0 for its mean alone.",
            show_default=f"{DRAWS} where there is noise",
        ),
    ] = None,
    use: Annotated[
        Use, typer.Option(help="What export --calibrated takes; auto: the lower NLL on validation images.")
    ] = Use.AUTO,
    out: Annotated[
        Path | None, typer.Option(help="A folder for calibration.json and pictures.", show_default=False)
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the samples.")] = 0,
    checkpoint: o.Checkpoint = None,
    model_arg: o.ModelArg = None,
    normalize: o.Normalize = None,
    trust_source: o.TrustSource = False,
    data_root: o.DataRoot = None,
    download: o.Download = False,
    holdout: o.HoldoutOf = None,
    image_size: o.ImageSize = None,
    device: o.Device = "auto",
    config: o.Config = None,
    json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
) -> None:
    """Measures how far confidence is from accuracy, and fits temperatures that bring them together.

    The expected calibration error (15 bins), negative log-likelihood and Brier score, before and after a temperature
    that is fitted on validation images; of a stochastic run by its mean and by averaged samples; after --method se-snn
    also with a temperature for each image, T·Σσ. The answers stay as they are. What was fitted is kept in the run, for
    export --calibrated and report --html.

    \b
    Examples:
      snncompress calibrate runs/small
      snncompress train runs/plain --method se-snn -o place=input --aggregate sample --out runs/sure
      snncompress calibrate runs/sure --samples 100 --out pictures
      snncompress export runs/sure --calibrated --with-softmax --out sure.onnx
    """
    from snncompress.cli.opening import Request, open_run
    from snncompress.cli.render import print_json
    from snncompress.cli.screen import Screen
    from snncompress.evaluation.calibration import Scaling
    from snncompress.evaluation.calibration import calibrate as calibrate_run
    from snncompress.training.feed import pick_device

    request = Request(
        source, checkpoint, o.pairs(model_arg, "--model-arg"), None, normalize, trust_source,
        data, data_root, download, image_size, device, holdout=holdout,
    )  # fmt: skip
    opened = open_run(request)
    run = opened.run
    if opened.need_data().validation is None:
        raise UsageError(
            f"{source} keeps no validation {opened.need_data().noun} (--holdout none), and temperatures are fitted on "
            "them; calibrate a run that keeps some"
        )
    draws = samples if samples is not None else 0 if run.noise is None else DRAWS
    if out is not None and out.exists() and not out.is_dir():
        raise UsageError(f"--out {out} is a file; give a folder")
    with Screen(quiet, json) as screen:
        result = calibrate_run(
            run,
            opened.batches("validation", device),
            None if split is Split.VALIDATION else opened.batches(split, device),
            split=str(split), draws=draws, use=None if use is Use.AUTO else Scaling(use), seed=seed,
            device=pick_device(device), progress=screen,
        )  # fmt: skip
        stored = _store(opened, result, screen)
        if run.hollow:
            screen.message(f"the mean of layer {run.hollow[0]} carries nothing: only averaged samples are calibrated")
    if out is not None:
        _keep(out, result)
    if json:
        print_json({"run": source, "stored": stored, **result.to_json()})
    else:
        _print(run, result, f"{split} {opened.need_data().noun} of {opened.need_data().name}")


def _store(opened: Opened, result: Calibration, screen: Screen) -> bool:
    """Keeps what was fitted in the run; says why where that cannot be."""
    from snncompress.run_files import store_metrics
    from snncompress.zoo.entries import in_zoo

    if opened.run.path is None:
        screen.message("nothing is kept: this is a model and no run (snncompress train --epochs 0 makes one)")
    elif not opened.own:
        screen.message("nothing is kept in the run: these are not its own data and normalization")
    elif in_zoo(opened.run.path):
        screen.message("nothing is kept: the zoo is not written to (snncompress train --epochs 0 makes a run of yours)")
    else:
        try:
            store_metrics(opened.run, {"calibration": result.to_json()})
        except RunError as error:  # a run that others own may be looked at, too
            screen.message(f"nothing is kept in the run: {error}")
        else:
            return True
    return False


def _keep(out: Path, result: Calibration) -> None:
    """Writes the numbers and, where matplotlib is there, the pictures."""
    from snncompress.files import make_folder, write_json
    from snncompress.reporting.calibration import calibration_charts
    from snncompress.reporting.png import write_pictures

    make_folder(out)
    write_json(out / "calibration.json", result.to_json())
    if find_spec("matplotlib"):
        write_pictures(calibration_charts(result.to_json()), out)


def _print(run: Run, result: Calibration, images: str) -> None:
    from tabulate import tabulate

    from snncompress.reporting.calibration import HEADER, table_lines

    record = result.to_json()
    print(f"{run.name} on {result.images:,} {images}\n")
    columns = ("left", *["right"] * (len(HEADER) - 1))
    print(tabulate(table_lines(record), HEADER, disable_numparse=True, colalign=columns))
    if result.sigma_layer is not None:
        print(f"\nΣσ is that of the noise on layer {result.sigma_layer}.")
    if result.split == "validation":
        print("\nTemperatures were fitted on these very images: others will look a little worse.")
