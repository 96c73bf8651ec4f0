"""``snncompress curve``."""

from __future__ import annotations

from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from snncompress.cli import options as o
from snncompress.cli.evaluate import Split
from snncompress.data.task import Task
from snncompress.errors import UsageError
from snncompress.training.options import TrainOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from snncompress.pruning.curves import Curve
    from snncompress.run import Run


class Retrain(StrEnum):
    """What smaller networks learn from."""

    SOFT_TARGETS = "soft-targets"


def curve(
    source: o.Source,
    criteria: Annotated[
        str | None,
        typer.Option(
            help="Of snncompress list weight-criteria, commas between.",
            show_default="snr,spr,magnitude,random, or those that the run allows",
        ),
    ] = None,
    split: Annotated[Split, typer.Option(help="What errors are measured on.")] = Split.VALIDATION,
    out: Annotated[
        Path | None,
        typer.Option(help="A folder for curve.json, curve.png and retrained networks.", show_default=False),
    ] = None,
    beside: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Draw this run's moments, too.", show_default=False)
    ] = None,
    retrain: Annotated[
        Retrain | None,
        typer.Option(help="Networks with as many weights, trained on the whole one's outputs.", show_default=False),
    ] = None,
    retrain_epochs: Annotated[int, typer.Option(help="Epochs of each of them.")] = TrainOptions.epochs,
    lr: Annotated[float, typer.Option(help="Their learning rate.")] = TrainOptions.lr,
    batch_size: o.BatchSize = TrainOptions.batch_size,
    distill_temperature: o.DistillTemperature = 4.0,
    distill_weight: o.DistillWeight = 0.9,
    data: o.Data = None,
    data_root: o.DataRoot = None,
    checkpoint: o.Checkpoint = None,
    model_arg: o.ModelArg = None,
    normalize: o.Normalize = None,
    trust_source: o.TrustSource = False,
    image_size: o.ImageSize = None,
    seed: Annotated[int, typer.Option(help="Of the random criterion, and of retraining.")] = TrainOptions.seed,
    device: o.Device = "auto",
    config: o.Config = None,
    json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
) -> None:
    """Shows the error as weights are removed by one criterion and another, without retraining.

    \b
    Examples:
      snncompress curve runs/posterior --criteria snr,spr,magnitude,random --out curves
      snncompress curve runs/posterior --retrain soft-targets --retrain-epochs 20 --out curves
    """
    from dataclasses import replace

    from snncompress.cli.opening import Request, open_run
    from snncompress.cli.render import print_json
    from snncompress.cli.screen import Screen
    from snncompress.pruning.curves import retrain_smaller, sample_moments, weight_curves
    from snncompress.training.distillation import DistillOptions

    if retrain is not None and out is None:
        raise UsageError("--retrain trains networks; give --out FOLDER to keep them in")
    training = TrainOptions(epochs=retrain_epochs, lr=lr, batch_size=batch_size, seed=seed)
    request = Request(
        source, checkpoint, o.pairs(model_arg, "--model-arg"), None, normalize, trust_source, data, data_root, False,
        image_size, device, seed,
    )  # fmt: skip
    opened = open_run(request)
    run, loaded = opened.run, opened.need_data()
    if retrain is not None and run.task is Task.REGRESSION:
        raise UsageError(f"--retrain learns from probabilities of classes, but {run.name} predicts a number; omit it")
    other = None if beside is None else open_run(replace(request, source=str(beside)), with_data=False).run
    names = _names(criteria, distributed=sample_moments(run) is not None, hollow=bool(run.hollow))
    with Screen(quiet, json) as screen:
        curves = weight_curves(run, loaded, names, split=split, device=device, seed=seed, progress=screen)
        if retrain is not None and out is not None:
            distill = DistillOptions(distill_temperature, distill_weight)
            curves.append(
                retrain_smaller(run, loaded, out, training, distill, split=split, device=device, progress=screen)
            )
    other = None if beside is None else open_run(replace(request, source=str(beside)), with_data=False).run
    measured = {"split": str(split), "measure": run.task.measure}
    result = {"run": source, **measured, "curves": [each.to_json() for each in curves]}
    if out is not None:
        _keep(out, result, curves, [run] if other is None else [run, other], run.task.axis(split))
    if json:
        print_json(result)
    else:
        _print(curves, run.task)


def _names(criteria: str | None, *, distributed: bool, hollow: bool) -> list[str]:
    """The criteria that were asked for, or those that make sense."""
    if criteria is not None:
        return [name.strip() for name in criteria.split(",")]
    if hollow:
        return ["sigma"]
    return ["snr", "spr", "magnitude", "random"] if distributed else ["magnitude", "random"]


def _keep(out: Path, result: dict[str, Any], curves: Sequence[Curve], runs: Sequence[Run], label: str) -> None:
    """Writes the numbers and, where matplotlib is there, the picture."""
    from snncompress.files import make_folder, write_json
    from snncompress.pruning.curves import sample_moments
    from snncompress.reporting.weight_curves import plot_curves

    make_folder(out)
    write_json(out / "curve.json", result)
    if find_spec("matplotlib"):
        moments = {run.label: found for run in runs if (found := sample_moments(run)) is not None}
        plot_curves(curves, out / "curve.png", title=runs[0].label, label=label, moments=moments)


def _print(curves: Sequence[Curve], task: Task) -> None:
    from tabulate import tabulate

    shares = sorted({share for curve in curves for share in curve.shares})
    found = [dict(zip(curve.shares, curve.errors, strict=True)) for curve in curves]
    rows = [[f"{share:g}%", *(task.show(each[share]) if share in each else "" for each in found)] for share in shares]
    header = ["removed", *(curve.name for curve in curves)]
    print(tabulate(rows, header, disable_numparse=True, colalign=("right",) * len(header)))
    print()
    for curve in curves:
        if curve.name != "retrained":
            doubles = "never" if curve.doubles is None else f"at {curve.doubles:.1f}% removed"
            print(f"{curve.name}: the {task.measure} doubles {doubles}")
