"""``snncompress evaluate``."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from snncompress.cli import options as o
from snncompress.errors import UsageError


class Split(StrEnum):
    """Parts of a data set."""

    TEST = "test"
    VALIDATION = "validation"
    TRAIN = "train"


class SuspectsBy(StrEnum):
    """Scores that training samples are ranked by (``evaluation/uncertainty.py``)."""

    SIGMA = "sigma"
    LOSS = "loss"
    ENTROPY = "entropy"
    INFORMATION = "information"


def evaluate(
    source: o.Source,
    data: o.Data = None,
    split: Annotated[Split, typer.Option(help="Which images.")] = Split.TEST,
    samples: Annotated[
        int | None, typer.Option(help="Draw this many samples of a stochastic run, too.", show_default=False)
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the samples.")] = 0,
    suspects: Annotated[
        int | None,
        typer.Option(metavar="N", help="List the N training samples that look mislabelled.", show_default=False),
    ] = None,
    suspects_by: Annotated[
        SuspectsBy | None, typer.Option(help="What they are ranked by.", show_default="loss")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Draw the suspects into this picture.", show_default=False)] = None,
    ood: Annotated[
        str | None,
        typer.Option(metavar="DATA", help="Tell images of this other data set from the run's.", show_default=False),
    ] = None,
    ood_root: Annotated[Path | None, typer.Option(help="Where that is, if not with the run's data.")] = None,
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
    """Measures error (RMSE where a number is predicted) and negative log-likelihood of the deterministic model.

    With --samples K: by mean propagation, by one sample (mean and spread over K), by K samples averaged in probability
    space, and the evidence lower bound of the training data. With --suspects N: which training labels to look at again.
    With --ood DATA: how well entropy, mutual information and σ tell images of another kind.

    \b
    Examples:
      snncompress evaluate runs/small
      snncompress evaluate runs/noisy --samples 20
      snncompress evaluate runs/noisy --suspects 50 --out suspects.png
      snncompress evaluate runs/noisy --ood fashion-mnist
      snncompress evaluate resnet56 --checkpoint resnet56.th --data cifar10 --normalize imagenet
    """
    from snncompress.cli.judging import judge_outliers, judge_suspects, show_outliers, show_suspects
    from snncompress.cli.measuring import evaluate_by_samples, evaluate_split
    from snncompress.cli.opening import Request, open_run
    from snncompress.cli.render import print_json, show_samples, warn_hollow
    from snncompress.cli.screen import Screen

    request = Request(
        source, checkpoint, o.pairs(model_arg, "--model-arg"), None, normalize, trust_source,
        data, data_root, download, image_size, device, holdout=holdout,
    )  # fmt: skip
    if (out is not None or suspects_by is not None) and suspects is None:
        raise UsageError("--out and --suspects-by are for --suspects; give that, or leave them out")
    if suspects is not None and ood is not None:
        raise UsageError("--suspects and --ood are two questions; ask one at a time")
    opened = open_run(request)
    if suspects is not None:
        with Screen(quiet, json) as screen:
            found = judge_suspects(opened, suspects, suspects_by, out, samples, seed, device, screen)
        return show_suspects(opened, found, json)
    if ood is not None:
        with Screen(quiet, json) as screen:
            outliers = judge_outliers(opened, ood, ood_root, split, samples, seed, device, screen)
        return show_outliers(opened, ood, split, outliers, json)
    images = f"{split} {opened.need_data().noun} of {opened.need_data().name}"
    if split is not Split.TEST and opened.need_data().label_noise is not None:
        images += f" with {opened.need_data().label_noise} labels"
    with Screen(quiet, json) as screen:
        if samples is not None:
            sampled = evaluate_by_samples(opened, split, samples, seed, device, screen)
        else:
            result = evaluate_split(opened, split, device, screen)
            warn_hollow(opened.run, screen)
    if samples is not None:
        show_samples(opened.run, sampled, images, str(split), json)
    elif json:
        numbers = {"nll": result.nll, "samples": result.samples}
        print_json(
            {**opened.run.task.entries(result.error), **numbers, "split": str(split), "hollow": opened.run.hollow}
        )
    else:
        print(
            f"{opened.run.name}: {opened.run.task.describe(result.error)}, NLL {result.nll:.4f} "
            f"on {result.samples:,} {images}"
        )
