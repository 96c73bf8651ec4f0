"""``snncompress evaluate``."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from snncompress.cli import options as o


class Split(StrEnum):
    """Parts of a data set."""

    TEST = "test"
    VALIDATION = "validation"
    TRAIN = "train"


def evaluate(
    source: o.Source,
    data: o.Data = None,
    split: Annotated[Split, typer.Option(help="Which images.")] = Split.TEST,
    samples: Annotated[
        int | None, typer.Option(help="Draw this many samples of a stochastic run, too.", show_default=False)
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
    """Measures error (RMSE where a number is predicted) and negative log-likelihood of the deterministic model.

    With --samples K: by mean propagation, by one sample (mean and spread over K), by K samples averaged in probability
    space, and the evidence lower bound of the training data.

    \b
    Examples:
      snncompress evaluate runs/small
      snncompress evaluate runs/noisy --samples 20
      snncompress evaluate resnet56 --checkpoint resnet56.th --data cifar10 --normalize imagenet
    """
    from snncompress.cli.measuring import evaluate_by_samples, evaluate_split
    from snncompress.cli.opening import Request, open_run
    from snncompress.cli.render import print_json, show_samples, warn_hollow
    from snncompress.cli.screen import Screen

    request = Request(
        source, checkpoint, o.pairs(model_arg, "--model-arg"), None, normalize, trust_source,
        data, data_root, download, image_size, device, holdout=holdout,
    )  # fmt: skip
    opened = open_run(request)
    images = f"{split} {opened.need_data().noun} of {opened.need_data().name}"
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
