"""``snncompress prune``."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from snncompress.cli import options as o
from snncompress.errors import UsageError
from snncompress.pruning.options import Allocation, Per, PruneOptions, Scope, WeightOptions
from snncompress.storage import Storage
from snncompress.training.options import TrainOptions

if TYPE_CHECKING:
    from snncompress.pruning.pipeline import Preview
    from snncompress.pruning.sparsify import WeightPreview

# What makes sense for neurons only, and for weights only.
NEURONS_ONLY = (
    "target_latency", "allocation", "candidates", "trial_steps", "per", "step", "round_to", "min_neurons",
    "finetune_noise",
)  # fmt: skip
WEIGHTS_ONLY = ("threshold", "scope", "format")


def _step(text: str) -> int:
    if text == "auto":
        return 0
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(f"--step '{text}' is neither auto nor a number of neurons; write --step 1 or --step auto")
    return int(text)


def _refuse_others(ctx: typer.Context, weights: bool) -> None:
    """Refuses options that say nothing here, rather than ignoring them."""
    for name in NEURONS_ONLY if weights else WEIGHTS_ONLY:
        source = ctx.get_parameter_source(name)
        if source is not None and source.name != "DEFAULT":
            kind, remedy = ("neurons", "leave it") if weights else ("weights", "add --weights, or leave it")
            raise UsageError(f"--{name.replace('_', '-')} is for the pruning of {kind}; {remedy} out")


def prune(
    ctx: typer.Context,
    source: o.Source,
    out: Annotated[Path | None, typer.Option(help="The folder for the smaller run.", show_default=False)] = None,
    weights: Annotated[
        bool, typer.Option("--weights", help="Prune single weights; neurons that this leaves idle go, too.")
    ] = False,
    target_flops: Annotated[
        str | None,
        typer.Option(help="Multiplications to come down to: 60k, 0.06M, or 5% of the original's.", show_default=False),
    ] = None,
    target_size: Annotated[
        str | None, typer.Option(help="Weights to come down to, likewise.", show_default=False)
    ] = None,
    target_memory: Annotated[
        str | None, typer.Option(help="Floats of hidden feature maps to come down to, likewise.", show_default=False)
    ] = None,
    target_latency: Annotated[
        str | None,
        typer.Option(help="Time of one image in onnxruntime, one thread: 2ms, 800us, or 50%.", show_default=False),
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(
            help="With --weights: those whose score is below this go (log-alpha: above).  [log-alpha: 3]",
            show_default=False,
        ),
    ] = WeightOptions.threshold,
    criterion: Annotated[
        str,
        typer.Option(
            help="Importance; see snncompress list criteria, or weight-criteria. auto: what suits the run's noise."
        ),
    ] = PruneOptions.criterion,
    scope: Annotated[
        Scope, typer.Option(help="With --weights: all weights compete, or those of a layer.")
    ] = WeightOptions.scope,
    allocation: Annotated[
        Allocation,
        typer.Option(
            help="uniform: all layers shrink alike; compete: several widths meet the target, validation chooses; "
            "sensitivity: by what their halves cost; global: one ranking of all neurons."
        ),
    ] = PruneOptions.allocation,
    candidates: Annotated[int, typer.Option(help="How many allocations compete, if any do.")] = PruneOptions.candidates,
    trial_steps: Annotated[int, typer.Option(help="Steps of their first heat.")] = PruneOptions.trial_steps,
    per: Annotated[
        Per, typer.Option(help="With --allocation global: importance is divided by the cost that a neuron frees.")
    ] = PruneOptions.per,
    step: Annotated[str, typer.Option(help="Neurons a round, or auto: more where the error allows.")] = "auto",
    round_to: Annotated[int, typer.Option(help="Widths are multiples of this, for hardware.")] = PruneOptions.round_to,
    min_neurons: Annotated[int, typer.Option(help="Neurons that every layer keeps.")] = PruneOptions.min_neurons,
    keep: Annotated[
        list[str] | None,
        typer.Option(help="A layer (or glob) that loses nothing; may be repeated.", show_default=False),
    ] = None,
    finetune_steps: Annotated[int, typer.Option(help="Steps between two rounds.")] = PruneOptions.finetune_steps,
    finetune_noise: Annotated[
        bool, typer.Option("--finetune-noise", help="Keep the noise on while fine-tuning.")
    ] = PruneOptions.finetune_noise,
    final_epochs: Annotated[int, typer.Option(help="Epochs of fine-tuning at the end.")] = PruneOptions.final_epochs,
    final_lr: Annotated[
        float | None, typer.Option(help="Learning rate at the end; --lr when absent.", show_default=False)
    ] = PruneOptions.final_lr,
    distill: Annotated[
        str | None,
        typer.Option(
            metavar="RUN",
            help="Learn from this run's probabilities, too; self: the unpruned model.",
            show_default=False,
        ),
    ] = None,
    distill_temperature: o.DistillTemperature = 4.0,
    distill_weight: o.DistillWeight = 0.9,
    distill_layers: o.DistillLayers = None,
    max_error: Annotated[
        float | None,
        typer.Option(
            help="Stop before the validation error exceeds this, in percent (an RMSE: in its unit).", show_default=False
        ),
    ] = PruneOptions.max_error,
    max_drop: Annotated[
        float | None,
        typer.Option(help="Stop before the validation error rises by more points than this.", show_default=False),
    ] = PruneOptions.max_drop,
    format: Annotated[
        Storage, typer.Option(help="With --weights: how the file holds them. csr: the non-zero ones.")
    ] = Storage.CSR,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and its cost only.")] = False,
    data: o.Data = None,
    lr: Annotated[float, typer.Option(help="Learning rate of the fine-tuning.")] = TrainOptions.lr,
    batch_size: o.BatchSize = TrainOptions.batch_size,
    optimizer: o.Optimizer = TrainOptions.optimizer,
    schedule: o.LearningSchedule = TrainOptions.schedule,
    weight_decay: o.WeightDecay = TrainOptions.weight_decay,
    augment: o.Augment = TrainOptions.augment,
    views: o.Views = TrainOptions.views,
    mixup: o.Mixup = TrainOptions.mixup,
    precision: o.ComputedIn = TrainOptions.precision,
    seed: Annotated[
        int, typer.Option(help="Of the order of the images, the noise, the candidates.")
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
    """Removes neurons, or weights, with fine-tuning, until the model costs what you ask for.

    Neurons that never fire go at once, then the least important ones. With --weights, single weights go, and the
    neurons that this leaves idle.

    \b
    Examples:
      snncompress prune runs/noisy --target-flops 0.061M --out runs/small
      snncompress prune runs/noisy --target-flops 10% --max-drop 0.5 --out runs/small
      snncompress prune runs/noisy --target-size 5% --target-memory 20% --round-to 8 --out runs/small
      snncompress prune torchvision:resnet50 --checkpoint w.pth --data folder:pets --target-latency 50% --out runs/small
      snncompress prune runs/noisy --target-flops 10% --dry-run
      snncompress prune runs/sparse --weights --criterion log-alpha --out runs/few
      snncompress prune runs/small --weights --target-size 1% --out runs/smallest
    """
    from snncompress.cli.opening import Request, open_run, open_teacher
    from snncompress.cli.render import show_preview, show_run, warn_labels, warn_uncorrected
    from snncompress.cli.screen import Screen
    from snncompress.pruning.pipeline import preview
    from snncompress.pruning.pipeline import prune as prune_run
    from snncompress.pruning.sparsify import preview_weights, prune_weights
    from snncompress.reporting.tradeoff import plot_run

    _refuse_others(ctx, weights)
    if out is None and not dry_run:
        raise UsageError("where to? give --out FOLDER, or --dry-run to see the plan")
    goals: dict[str, Any] = {
        "target_flops": target_flops, "target_size": target_size, "target_memory": target_memory,
        "criterion": criterion, "keep": tuple(keep or ()), "finetune_steps": finetune_steps,
        "final_epochs": final_epochs, "final_lr": final_lr, "max_error": max_error, "max_drop": max_drop,
    }  # fmt: skip
    fewer = WeightOptions(**goals, threshold=threshold, scope=scope) if weights else None
    pruning = PruneOptions(
        **goals, target_latency=target_latency, allocation=allocation, candidates=candidates, trial_steps=trial_steps,
        per=per, step=_step(step), round_to=round_to, min_neurons=min_neurons, finetune_noise=finetune_noise,
    )  # fmt: skip
    training = TrainOptions(
        lr=lr, batch_size=batch_size, optimizer=optimizer, schedule=schedule, weight_decay=weight_decay,
        augment=augment, views=views, mixup=mixup, precision=precision, seed=seed, save_every=save_every,
    )  # fmt: skip
    request = Request(
        source, checkpoint, o.pairs(model_arg, "--model-arg"), o.shape(input_shape), normalize, trust_source,
        data, data_root, download, image_size, device, seed, holdout,
    )  # fmt: skip
    opened = open_run(request)
    teacher = None
    listening = o.listening(distill, distill_temperature, distill_weight, distill_layers)
    if distill is not None:
        teacher = opened.run if distill == "self" else open_teacher(distill, trust_source)
    if dry_run:
        with Screen(quiet, json) as screen:
            look: dict[str, Any] = {"device": device, "progress": screen}
            plan: Preview | WeightPreview
            if fewer is not None:
                plan = preview_weights(opened.run, opened.need_data(), fewer, training, **look)
            else:
                plan = preview(opened.run, opened.need_data(), pruning, training, **look)
        show_preview(plan, json)
        return
    with Screen(quiet, json) as screen:
        warn_labels(opened.need_data(), screen)
        warn_uncorrected(opened.run, teacher, screen)
        common: dict[str, Any] = {
            "out": out, "resume": resume, "force": force, "device": device, "command": o.typed(ctx),
            "progress": screen, "teacher": teacher, "distill": listening,
        }  # fmt: skip
        if fewer is not None:
            run = prune_weights(opened.run, opened.need_data(), fewer, training, storage=format, **common)
        else:
            run = prune_run(opened.run, opened.need_data(), pruning, training, **common)
    if run.path is not None and opened.need_data().validation is not None and find_spec("matplotlib"):
        plot_run(run, run.path / "curve.png")
    show_run(run, json)
