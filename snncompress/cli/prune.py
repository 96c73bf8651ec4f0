"""``snncompress prune``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from snncompress.cli import options as o
from snncompress.errors import UsageError
from snncompress.pruning.options import Allocation, PruneOptions
from snncompress.training.options import TrainOptions


def prune(
    ctx: typer.Context,
    source: o.Source,
    out: Annotated[Path | None, typer.Option(help="The folder for the smaller run.", show_default=False)] = None,
    target_flops: Annotated[
        str | None,
        typer.Option(help="Multiplications to come down to: 60k, 0.06M, or 5% of the original's.", show_default=False),
    ] = None,
    criterion: Annotated[str, typer.Option(help="Importance; see snncompress list criteria.")] = PruneOptions.criterion,
    allocation: Annotated[
        Allocation,
        typer.Option(help="compete: several widths meet the target, validation chooses; global: one ranking."),
    ] = PruneOptions.allocation,
    candidates: Annotated[int, typer.Option(help="How many allocations compete.")] = PruneOptions.candidates,
    step: Annotated[int, typer.Option(help="Neurons a round; 0: 2% of those left.")] = PruneOptions.step,
    finetune_steps: Annotated[int, typer.Option(help="Steps between two rounds.")] = PruneOptions.finetune_steps,
    final_epochs: Annotated[int, typer.Option(help="Epochs of fine-tuning at the end.")] = PruneOptions.final_epochs,
    max_drop: Annotated[
        float | None, typer.Option(help="Stop when validation error rises by more points than this.")
    ] = PruneOptions.max_drop,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and its cost only.")] = False,
    data: o.Data = None,
    lr: Annotated[float, typer.Option(help="Learning rate of the fine-tuning.")] = TrainOptions.lr,
    batch_size: o.BatchSize = TrainOptions.batch_size,
    weight_decay: o.WeightDecay = TrainOptions.weight_decay,
    augment: Annotated[str, typer.Option(help="none, shift or crop-flip.")] = TrainOptions.augment,
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
    image_size: o.ImageSize = None,
    resume: o.Resume = False,
    force: o.Force = False,
    save_every: o.SaveEvery = TrainOptions.save_every,
    json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
) -> None:
    """Removes neurons, with fine-tuning, until the model costs what you ask for.

    Those that never fire go at once, then the least important ones.

    \b
    Examples:
      snncompress prune runs/noisy --target-flops 0.061M --out runs/small
      snncompress prune runs/noisy --target-flops 10% --max-drop 0.5 --out runs/small
      snncompress prune runs/noisy --target-flops 10% --dry-run
    """
    from snncompress.cli.opening import Request, open_run
    from snncompress.cli.render import show_preview, show_run
    from snncompress.cli.screen import Screen
    from snncompress.pruning.pipeline import preview
    from snncompress.pruning.pipeline import prune as prune_run

    if out is None and not dry_run:
        raise UsageError("where to? give --out FOLDER, or --dry-run to see the plan")
    pruning = PruneOptions(
        target_flops, criterion, allocation, candidates, step, finetune_steps, final_epochs, max_drop
    )
    training = TrainOptions(
        lr=lr, batch_size=batch_size, weight_decay=weight_decay, augment=augment, seed=seed, save_every=save_every
    )
    request = Request(
        source, checkpoint, o.pairs(model_arg, "--model-arg"), o.shape(input_shape), normalize, trust_source,
        data, data_root, download, image_size, device, seed,
    )  # fmt: skip
    opened = open_run(request)
    with Screen(quiet, json) as screen:
        if dry_run:
            plan = preview(opened.run, opened.need_data(), pruning, training, device=device, progress=screen)
        else:
            run = prune_run(
                opened.run, opened.need_data(), pruning, training, out=out, resume=resume, force=force, device=device,
                command=o.typed(ctx), progress=screen,
            )  # fmt: skip
    if dry_run:
        show_preview(plan, json)
    else:
        show_run(run, json)
