"""Which criterion finds the neurons that can go: LeNet-5-Caffe on full MNIST, pruned to 0.061M FLOPs with each.

    python -m benchmarks.criteria --data-root data --out runs/criteria

Every criterion starts from the same SE-SNN run (that of the zoo's lenet5-mnist), those of the weights' posterior from
a sparse-vd run of the same plain network. All layers shrink alike to the same widths, with the same fine-tuning, so
that only the ranking differs. Beside them stands the same shape trained from new weights for as many epochs. Prints
validation and test errors, mean and spread over the seeds, and draws the errors on the way. bn-scale needs batch
norms, which LeNet-5 does not have. Five minutes a criterion and seed; what is there already is not trained again.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from tabulate import tabulate

from benchmarks import results as stored
from benchmarks.commands import MNIST_TRAINED, SHIFT, ensure_run, epochs_seen, follow, parse, read

TABLE = "criteria"
SEEDS = 2
SPARSE_EPOCHS, FINAL_EPOCHS = 12, 20
LR = "0.003"
PRUNE = ("--target-flops", "0.061M", *SHIFT, "--final-lr", LR, "--final-epochs", str(FINAL_EPOCHS))
CRITERIA = {  # and the noise that they start from
    "information": "noisy",
    "entropy": "noisy",
    "taylor": "noisy",
    "magnitude": "noisy",
    "oracle": "noisy",
    "weight-posterior": "sparse",
    "weight-robustness": "sparse",
    "random": "noisy",
}
SCRATCH = "from new weights"


def sources(out: Path, data_root: str) -> None:
    """The plain network, and the two that noise has taught."""
    follow("lenet5-mnist", out, data_root, until="noisy")
    ensure_run(out / "sparse", [str(out / "plain"), "--method", "sparse-vd", *SHIFT, "--epochs", str(SPARSE_EPOCHS)])


def prune(out: Path, criterion: str, seed: int) -> None:
    """One pruned network, unless it is there."""
    words = [str(out / CRITERIA[criterion]), "--criterion", criterion, "--seed", str(seed), *PRUNE]
    ensure_run(out / f"{criterion}-{seed}", words, "prune")


def scratch(out: Path, seed: int) -> None:
    """The same shape from new weights, for as many epochs as the pruned one has seen in all."""
    pruned = out / f"information-{seed}"
    epochs = str(epochs_seen(pruned, MNIST_TRAINED))
    words = [str(pruned), "--from-scratch", "--method", "none", *SHIFT, "--lr", LR]
    ensure_run(out / f"{SCRATCH}-{seed}", [*words, "--seed", str(seed), "--epochs", epochs])


def errors(out: Path, name: str, split: str) -> list[float]:
    return [read("evaluate", str(out / f"{name}-{seed}"), "--split", split)["error"] for seed in range(SEEDS)]


def show(values: list[float]) -> str:
    return f"{statistics.mean(values):.2f} ± {statistics.stdev(values):.2f}"


def draw(out: Path, results: dict[str, Any]) -> None:
    """Validation error against FLOPs while pruning, before the last fine-tuning, seed 0."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for marker, (name, points) in zip("osD^vPX*", results.items(), strict=True):
        way = points[:-1]
        axes.plot([p["flops"] for p in way], [p["error"] for p in way], marker=marker, markersize=3, label=name)
    axes.set(xscale="log", yscale="log", xlabel="FLOPs", ylabel="Validation error (%)")
    axes.grid(True, color="#dddddd", linewidth=0.6)
    axes.legend(frameon=False)
    figure.savefig(out / "criteria.png")


def main() -> None:
    arguments = parse(__doc__, "runs/criteria", CRITERIA, stores=True)
    out = arguments.out
    sources(out, arguments.data_root)
    for seed in range(SEEDS):
        for criterion in arguments.only or CRITERIA:
            prune(out, criterion, seed)
    if arguments.only:
        return
    for seed in range(SEEDS):
        scratch(out, seed)
    rows = [
        [name, show(errors(out, name, "validation")), show(errors(out, name, "test"))] for name in [*CRITERIA, SCRATCH]
    ]
    if arguments.store:
        columns = "method", "validation_error", "error"
        stored.write(TABLE, [dict(zip(columns, row, strict=True)) for row in rows], range(SEEDS))
    curves = {name: json.loads((out / f"{name}-0" / "curve.json").read_text()) for name in CRITERIA}
    draw(out, curves)
    print(
        tabulate(rows, ["criterion", "validation error, %", "test error, %"], tablefmt="github", disable_numparse=True)
    )


if __name__ == "__main__":
    main()
