"""``snncompress train``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from snncompress.cli import options as o
from snncompress.errors import UsageError
from snncompress.training.options import TrainOptions


def train(
    ctx: typer.Context,
    source: o.Source,
    out: Annotated[Path, typer.Option(help="The folder for the run.", show_default=False)],
    data: o.Data = None,
    method: Annotated[str, typer.Option(help="none, or a method of snncompress list methods.")] = "se-snn",
    epochs: Annotated[int, typer.Option(help="Passes through the training images.")] = TrainOptions.epochs,
    lr: Annotated[float, typer.Option(help="Learning rate at the start.")] = TrainOptions.lr,
    noise_lr: Annotated[
        float | None,
        typer.Option(help="Learning rate of the noise's parameters.  [default: the method's share of --lr]"),
    ] = None,
    batch_size: o.BatchSize = TrainOptions.batch_size,
    omega: Annotated[float | None, typer.Option(help="se-snn: weight of the entropy penalty.  [default: 0.01]")] = None,
    margin: Annotated[float | None, typer.Option(help="se-snn: margin of the entropy.  [default: 4]")] = None,
    aggregate: Annotated[
        str | None, typer.Option(help="se-snn: neuron, sample or both get the margin.  [default: neuron]")
    ] = None,
    alpha: Annotated[
        str | None, typer.Option(help="vd: layer, neuron or weight has a noise level.  [default: layer]")
    ] = None,
    prior: Annotated[str | None, typer.Option(help="vd: log-uniform, student or ard.  [default: log-uniform]")] = None,
    noise: Annotated[
        str | None,
        typer.Option(help="variance: gaussian, bernoulli, uniform; dropout: bernoulli, gaussian, beta."),
    ] = None,
    kl_scale: Annotated[float | None, typer.Option(help="sparse-vd, vd: weight of the KL term.  [default: 1]")] = None,
    kl_warmup: Annotated[
        str | None, typer.Option(metavar="EPOCHS", help="sparse-vd, vd: 20, or 5:20 to begin at epoch 5.")
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", "-o", metavar="KEY=VALUE", help="An option of the method; repeatable."),
    ] = None,
    layers: Annotated[
        list[str] | None,
        typer.Option(
            help="Layers to make stochastic: names, globs, all, hidden, inner, last-hidden, first-linear, classifier; "
            "repeatable."
        ),
    ] = None,
    distill: Annotated[
        str | None, typer.Option(metavar="RUN", help="Learn from this run's probabilities, too.", show_default=False)
    ] = None,
    distill_temperature: o.DistillTemperature = 4.0,
    distill_weight: o.DistillWeight = 0.9,
    distill_layers: o.DistillLayers = None,
    correction: Annotated[
        str, typer.Option(help="For wrong labels: none, bootstrap-hard, bootstrap-soft or forward.")
    ] = "none",
    correction_from: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="forward: a run on the same labels, without correction.", show_default=False),
    ] = None,
    label_noise: o.LabelNoise = None,
    random_labels: o.RandomLabels = False,
    limit_train: o.LimitTrain = None,
    posterior: Annotated[
        str | None,
        typer.Option(
            metavar="sgld:N", help="Then draw N samples of the weights by Langevin dynamics; keeps their moments."
        ),
    ] = None,
    posterior_lr: Annotated[float | None, typer.Option(help="Of Langevin dynamics.  [default: 0.04/images]")] = None,
    prior_std: Annotated[float, typer.Option(help="Of the weights' Gaussian prior, for --posterior.")] = 1.0,
    posterior_temperature: Annotated[
        float,
        typer.Option(help="Of Langevin dynamics: 1 samples the posterior, 0 adds no noise to that of the batches."),
    ] = 1.0,
    adversarial: Annotated[
        str | None,
        typer.Option(metavar="fgs:EPS", help="Half of the loss on attacked images; fgs:0.3 moves pixels by 0.3."),
    ] = None,
    optimizer: o.Optimizer = TrainOptions.optimizer,
    schedule: o.LearningSchedule = TrainOptions.schedule,
    weight_decay: o.WeightDecay = TrainOptions.weight_decay,
    augment: o.Augment = TrainOptions.augment,
    views: o.Views = TrainOptions.views,
    mixup: o.Mixup = TrainOptions.mixup,
    average: Annotated[
        int | None,
        typer.Option(metavar="EPOCHS", help="The result is the mean of the weights over so many last epochs."),
    ] = TrainOptions.average,
    precision: o.ComputedIn = TrainOptions.precision,
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
    holdout: o.HoldoutOf = None,
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
      snncompress train runs/plain --method sparse-vd --epochs 60 --schedule linear --out runs/sparse
      snncompress train mlp --data mnist --label-noise patterned:0.3 --aggregate sample --out runs/spoilt
      snncompress train my_net.py:build --checkpoint net.pth --data folder:photos --out runs/mine
    """
    from dataclasses import replace

    import torch

    from snncompress.cli.opening import Request, open_run, open_teacher
    from snncompress.cli.render import show_run, warn_hollow, warn_labels
    from snncompress.cli.screen import Screen
    from snncompress.models.initial import reinitialize
    from snncompress.training.adversarial import AdversarialOptions
    from snncompress.training.langevin import PosteriorOptions
    from snncompress.training.loop import train as train_run

    training = TrainOptions(
        epochs=epochs,
        lr=lr,
        noise_lr=noise_lr,
        batch_size=batch_size,
        optimizer=optimizer,
        schedule=schedule,
        weight_decay=weight_decay,
        augment=augment,
        views=views,
        mixup=mixup,
        average=average,
        precision=precision,
        seed=seed,
        save_every=save_every,
    )
    method_options = o.pairs(option, "--option")
    flags = {
        "omega": omega, "margin": margin, "aggregate": aggregate, "alpha": alpha, "prior": prior, "noise": noise,
        "kl_scale": kl_scale, "kl_warmup": kl_warmup,
    }  # fmt: skip
    method_options |= {key: value for key, value in flags.items() if value is not None}
    sampling = None
    if posterior is not None:
        sampling = PosteriorOptions.parse(posterior, posterior_lr, prior_std, posterior_temperature)
    attacked = None if adversarial is None else AdversarialOptions.parse(adversarial)
    listening = o.listening(distill, distill_temperature, distill_weight, distill_layers)
    teacher = None if distill is None else open_teacher(distill, trust_source)
    first = None
    if correction_from is not None:
        if correction == "none":
            raise UsageError("--correction-from is for --correction forward; give that, or leave it out")
        first = open_teacher(correction_from, trust_source, "--correction-from")
    request = Request(
        source, checkpoint, o.pairs(model_arg, "--model-arg"), o.shape(input_shape), normalize, trust_source,
        data, data_root, download, image_size, device, seed, holdout, o.spoilt(label_noise, random_labels), limit_train,
    )  # fmt: skip
    torch.manual_seed(seed)  # a model that is built anew starts from the seed, too
    opened = open_run(request)
    start = opened.run
    if from_scratch:
        reinitialize(start.model, sparse=start.sparse)
        start = replace(start, noise=None)
    with Screen(quiet, json) as screen:
        warn_labels(opened.need_data(), screen)
        run = train_run(
            start, opened.need_data(), training, method=method, method_options=method_options, layers=layers,
            teacher=teacher, distill=listening, posterior=sampling,
            correction=None if correction == "none" else correction, correction_from=first, adversarial=attacked,
            out=out, resume=resume, force=force, device=device, command=o.typed(ctx), progress=screen,
        )  # fmt: skip
        warn_hollow(run, screen)
    show_run(run, json)
