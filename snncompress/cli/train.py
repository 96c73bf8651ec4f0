"""``snncompress train``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from snncompress.cli import options as o
from snncompress.training.options import OptimizerName, Schedule, TrainOptions


def train(
    ctx: typer.Context,
    source: o.Source,
    out: Annotated[Path, typer.Option(help="The folder for the run.", show_default=False)],
    data: o.Data = None,
    method: Annotated[str, typer.Option(help="none, or a method of snncompress list methods.")] = "se-snn",
    epochs: Annotated[int, typer.Option(help="Passes through the training images.")] = TrainOptions.epochs,
    lr: Annotated[float, typer.Option(help="Learning rate at the start.")] = TrainOptions.lr,
    batch_size: o.BatchSize = TrainOptions.batch_size,
    omega: Annotated[float | None, typer.Option(help="SE-SNN: weight of the entropy penalty.  [default: 0.01]")] = None,
    margin: Annotated[float | None, typer.Option(help="SE-SNN: margin of the entropy.  [default: 4]")] = None,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", "-o", metavar="KEY=VALUE", help="An option of the method; repeatable."),
    ] = None,
    layers: Annotated[
        list[str] | None, typer.Option(help="Names or globs of the layers to make stochastic; repeatable.")
    ] = None,
    optimizer: Annotated[OptimizerName, typer.Option(help="SGD has Nesterov momentum 0.9.")] = TrainOptions.optimizer,
    schedule: Annotated[Schedule, typer.Option(help="How the learning rate falls.")] = TrainOptions.schedule,
    weight_decay: o.WeightDecay = TrainOptions.weight_decay,
    augment: Annotated[str, typer.Option(help="none, shift or crop-flip.")] = TrainOptions.augment,
    from_scratch: Annotated[
        bool, typer.Option("--from-scratch", help="Forget the weights: the shape of a run with new ones.")
    ] = False,
    seed: Annotated[
        int, typer.Option(help="Of the weights, the order of the images, the noise, the split.")
    ] = TrainOptions.seed,
    device: o.Device = "auto",
    config: o.Config = None,
    checkpoint: o.Checkpoint = None,
    model_arg: o.ModelArg = None,
    input_shape: o.InputShape = None,
    normalize: o.Normalize = None,
    trust_source: o.TrustSource = False,
    data_root: o.DataRoot = None,
    download: o.Download = False,
    image_size: o.ImageSize = None,
    resume: o.Resume = False,
    force: o.Force = False,
    save_every: o.SaveEvery = TrainOptions.save_every,
    json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
) -> None:
    """Trains a model, plainly or with noise that learns which neurons matter.

    \b
    Examples:
      snncompress train lenet5 --data mnist --method none --epochs 6 --out runs/plain
      snncompress train runs/plain --method se-snn --epochs 12 --out runs/noisy
      snncompress train my_net.py:build --checkpoint net.pth --data folder:photos --out runs/mine
    """
    from dataclasses import replace

    import torch

    from snncompress.cli.opening import Request, open_run
    from snncompress.cli.render import show_run
    from snncompress.cli.screen import Screen
    from snncompress.models.initial import reinitialize
    from snncompress.training.loop import train as train_run

    training = TrainOptions(
        epochs=epochs,
        lr=lr,
        batch_size=batch_size,
        optimizer=optimizer,
        schedule=schedule,
        weight_decay=weight_decay,
        augment=augment,
        seed=seed,
        save_every=save_every,
    )
    method_options = o.pairs(option, "--option")
    method_options |= {key: value for key, value in (("omega", omega), ("margin", margin)) if value is not None}
    request = Request(
        source, checkpoint, o.pairs(model_arg, "--model-arg"), o.shape(input_shape), normalize, trust_source,
        data, data_root, download, image_size, device, seed,
    )  # fmt: skip
    torch.manual_seed(seed)  # a model that is built anew starts from the seed, too
    opened = open_run(request)
    start = opened.run
    if from_scratch:
        reinitialize(start.model)
        start = replace(start, noise=None)
    with Screen(quiet, json) as screen:
        run = train_run(
            start, opened.need_data(), training, method=method, method_options=method_options, layers=layers,
            out=out, resume=resume, force=force, device=device, command=o.typed(ctx), progress=screen,
        )  # fmt: skip
    show_run(run, json)
