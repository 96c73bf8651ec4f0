"""``snncompress attack``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from snncompress.cli import options as o
from snncompress.cli.evaluate import Split
from snncompress.errors import UsageError

if TYPE_CHECKING:
    from snncompress.cli.opening import Opened, Request
    from snncompress.evaluation.robustness import Attacked
    from snncompress.run import Run


def attack(
    source: o.Source,
    attack: Annotated[str, typer.Option(help="fgs, ifgs, pgd or cw (see snncompress list attacks).")] = "fgs",
    eps: Annotated[
        str | None,
        typer.Option(
            metavar="FIRST:LAST:STEP",
            help="Strengths: largest changes of a pixel in 0..1; for cw, Euclidean lengths. Or 0.1,0.3.",
            show_default="0:0.5:0.05; for cw 0:5:0.5",
        ),
    ] = None,
    targeted: Annotated[
        bool, typer.Option("--targeted", help="Aim at a class that is drawn for each image, not at any wrong one.")
    ] = False,
    gradient_samples: Annotated[int, typer.Option(help="Samples of the noise averaged in every gradient.")] = 20,
    ensemble_samples: Annotated[
        int, typer.Option(help="Samples of the noise averaged in every prediction; 0: the mean network.")
    ] = 10,
    gradient: Annotated[
        str | None,
        typer.Option(
            help="Of a stochastic network: expected, averaged (of the prediction itself), mean (of the mean network), "
            "or rounded (as float32 has it).",
            show_default="expected; with --runs averaged",
        ),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help="Iterations.", show_default="ifgs 50, pgd 40, cw 200 a search")
    ] = None,
    searches: Annotated[int, typer.Option(help="Binary searches of cw for the weight of success.")] = 5,
    seeds: Annotated[int, typer.Option(help="Repetitions with other random numbers.")] = 1,
    seed: Annotated[int, typer.Option(help="Of the first of them.")] = 0,
    limit: Annotated[int | None, typer.Option(help="Attack the first images only.", show_default="all")] = None,
    runs: Annotated[
        str | None,
        typer.Option(
            help="More runs, commas between: the average of all probabilities is attacked.", show_default=False
        ),
    ] = None,
    split: Annotated[Split, typer.Option(help="Which images.")] = Split.TEST,
    out: Annotated[
        Path | None, typer.Option(help="A folder for attack.json, attack.png and examples.png.", show_default=False)
    ] = None,
    data: o.Data = None,
    data_root: o.DataRoot = None,
    download: o.Download = False,
    holdout: o.HoldoutOf = None,
    image_size: o.ImageSize = None,
    checkpoint: o.Checkpoint = None,
    model_arg: o.ModelArg = None,
    normalize: o.Normalize = None,
    trust_source: o.TrustSource = False,
    device: o.Device = "auto",
    config: o.Config = None,
    json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
) -> None:
    """Attacks a network with small changes of its images, and shows its accuracy against their strength.

    Of a run with noise the stochastic network is attacked: with gradients averaged over samples of the noise, and
    predictions by averaged probabilities.

    \b
    Examples:
      snncompress attack runs/plain --attack fgs
      snncompress attack runs/noisy --attack pgd --eps 0.1,0.2,0.3 --limit 1000 --seeds 3 --out attacked
      snncompress attack runs/a --runs runs/b,runs/c --attack ifgs --targeted
    """
    from dataclasses import replace

    from snncompress.cli.opening import Request, open_run
    from snncompress.cli.render import print_json
    from snncompress.cli.screen import Screen
    from snncompress.errors import unknown_name
    from snncompress.evaluation.attacks.plan import AttackPlan, parse_eps
    from snncompress.evaluation.attacks.victim import Gradient
    from snncompress.evaluation.robustness import attack as attack_runs
    from snncompress.training.feed import pick_device

    plan = AttackPlan(
        () if eps is None else parse_eps(eps),
        targeted,
        steps,
        searches,
        gradient_samples,
        ensemble_samples,
        seeds,
        limit,
    )
    if gradient is not None and gradient not in list(Gradient):
        raise unknown_name("gradient", gradient, Gradient)
    request = Request(
        source, checkpoint, o.pairs(model_arg, "--model-arg"), None, normalize, trust_source,
        data, data_root, download, image_size, device, holdout=holdout,
    )  # fmt: skip
    opened = open_run(request)
    images = opened.split(split)
    members = [opened.run, *_others(runs, replace(request, checkpoint=None, model_arg=None))]
    with Screen(quiet, json) as screen:
        result = attack_runs(
            members, images, attack, plan, gradient=None if gradient is None else Gradient(gradient),
            device=pick_device(device), seed=seed, progress=screen,
        )  # fmt: skip
    record = {**result.to_json(), "split": str(split), "runs": [run.label for run in members]}
    if len(members) == 1:
        _store(opened, record)
    if out is not None:
        _keep(out, result, record, opened.run)
    if json:
        print_json(record)
    else:
        _print(result, members, f"{split} images of {opened.need_data().name}")


def _others(runs: str | None, request: Request) -> list[Run]:
    """The other members of an ensemble."""
    from dataclasses import replace

    from snncompress.cli.opening import is_run, open_run

    found = []
    for name in [] if runs is None else [part.strip() for part in runs.split(",")]:
        if not is_run(name):
            raise UsageError(f"--runs: {name} is not a run; give folders of runs that are trained, commas between")
        found.append(open_run(replace(request, source=name), with_data=False).run)
    return found


def _store(opened: Opened, record: dict[str, object]) -> None:
    """Keeps the curve in the run, one for each attack and split."""
    from contextlib import suppress

    from snncompress.errors import RunError
    from snncompress.run_files import store_metrics

    if opened.run.path is not None and opened.own:
        known = dict(opened.run.metrics.get("attacks", {}))
        kinds = [record["attack"], "targeted" if record["targeted"] else "", record["gradient"], record["split"]]
        key = "-".join(str(kind) for kind in kinds if kind not in ("", "expected"))
        with suppress(RunError):  # it is only a note: a run that others own may be attacked, too
            store_metrics(opened.run, {"attacks": {**known, key: record}})


def _keep(out: Path, result: Attacked, record: dict[str, object], run: Run) -> None:
    """Writes the numbers and, where matplotlib is there, the pictures."""
    from importlib.util import find_spec

    from snncompress.files import make_folder, write_json
    from snncompress.reporting.attack_charts import attack_chart, plot_examples
    from snncompress.reporting.png import write_pictures

    make_folder(out)
    write_json(out / "attack.json", record)
    if find_spec("matplotlib"):
        write_pictures([attack_chart({run.label: record}, "attack")], out)
        plot_examples(result.examples, result.plan.eps, run.classes, out / "examples.png")


def _print(result: Attacked, members: list[Run], images: str) -> None:
    from tabulate import tabulate

    several, stochastic = result.plan.seeds > 1, any(run.noise is not None for run in members)
    columns = [("accuracy", "accuracy"), *([("success", "targeted success")] if result.plan.targeted else [])]
    rows = []
    for index, eps in enumerate(result.plan.eps):
        cells = []
        for what, _ in columns:
            spread = f" ± {result.spread(what)[index]:.2f}" if several else ""
            cells.append(f"{result.mean(what)[index]:.2f}{spread}%")
        rows.append([f"{eps:g}", *cells, f"{result.l2[index]:.2f}"])
    header = ["length" if result.shortest is not None else "eps", *(words for _, words in columns), "mean L2"]
    print(tabulate(rows, header, disable_numparse=True, colalign=("right",) * len(header)))
    if result.shortest is not None:
        print(
            f"\nshortest changes found: mean L2 {result.shortest['l2']:.2f}, success "
            f"{result.shortest['success']:.2f}% when judged again"
        )
    name = members[0].label if len(members) == 1 else f"the average of {', '.join(run.label for run in members)}"
    how = ""
    if stochastic:
        how = f"; {result.gradient} gradient of {result.plan.gradient_samples} samples"
        drawn = result.plan.ensemble_samples
        how += f", predictions of {drawn}" if drawn else ", predictions by the mean"
    print(f"\n{name}, attacked by {result.attack} on {result.images:,} {images}{how}")
