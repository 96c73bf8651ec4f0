"""Which criterion finds the neurons that can go: LeNet-5-Caffe on full MNIST, pruned to 0.061M FLOPs with each.

    python -m benchmarks.criteria --data-root data --out runs/criteria

Every criterion starts from the same SE-SNN run (that of the zoo's lenet5-mnist), those of the weights' posterior from
a sparse-vd run of the same plain network. All layers shrink alike to the same widths, with the same fine-tuning, so
that only the ranking differs. Beside them stands the same shape trained from new weights for as many epochs. Prints
validation errors before and after the last fine-tuning and test errors, mean and spread over the seeds, and draws
them. bn-scale needs batch norms, which LeNet-5 does not have. Three minutes of one core a criterion and seed; what is
there already is not trained again.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from tabulate import tabulate

from benchmarks import results as stored
from benchmarks.commands import MNIST_TRAINED, SHIFT, ensure_run, epochs_seen, follow, parse, read
from benchmarks.tables import COLUMNS
from snncompress.reporting.published import published_tables
from snncompress.reporting.table import UNKNOWN

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


def curve(out: Path, name: str, seed: int) -> list[dict[str, Any]]:
    """The points on the way; the last is that after the last fine-tuning."""
    points: list[dict[str, Any]] = json.loads((out / f"{name}-{seed}" / "curve.json").read_text())
    return points


def measure(out: Path, name: str) -> dict[str, list[float]]:
    """Errors of a criterion, or of the network from new weights, which nothing was removed from; one a seed."""
    found = {"validation_error": errors(out, name, "validation"), "error": errors(out, name, "test")}
    if name != SCRATCH:
        found["error_before"] = [curve(out, name, seed)[-2]["error"] for seed in range(SEEDS)]
    return found


def draw(out: Path, measured: dict[str, dict[str, list[float]]]) -> None:
    """A dot a seed: validation error before the last fine-tuning, and test error after it, sorted by the latter."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    names = sorted(measured, key=lambda name: -statistics.mean(measured[name]["error"]))
    figure = Figure(figsize=(7.5, 3.8), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, 2, sharey=True)
    titles = {
        "error_before": "Target met (validation error, %)",
        "error": f"After {FINAL_EPOCHS} more epochs (test error, %)",
    }
    for axes, (column, title) in zip(panels, titles.items(), strict=True):
        found = [measured[name].get(column, []) for name in names]
        for place, (name, values) in enumerate(zip(names, found, strict=True)):
            color = "#888888" if name in ("random", SCRATCH) else "#0072b2"
            axes.plot(values, [place] * len(values), "o", color=color, alpha=0.6)
            if values:
                axes.plot(statistics.mean(values), place, "|", color=color, markersize=16, markeredgewidth=2)
        axes.set_title(title, loc="left", fontsize="medium")
        axes.set_yticks(range(len(names)), names)
        axes.set_xlim(0, 1.08 * max(value for values in found for value in values))
        axes.grid(True, axis="x", color="#dddddd", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
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
    measured = {name: measure(out, name) for name in [*CRITERIA, SCRATCH]}
    rows = [{"method": name} | {key: show(each) for key, each in found.items()} for name, found in measured.items()]
    if arguments.store:
        stored.write(TABLE, rows, range(SEEDS))
    draw(out, measured)
    columns = published_tables()[TABLE]["columns"]
    cells = [[row["method"], *(row.get(column, UNKNOWN) for column in columns)] for row in rows]
    header = ["criterion", *(COLUMNS[column][0] for column in columns)]
    print(tabulate(cells, header, tablefmt="github", disable_numparse=True))


if __name__ == "__main__":
    main()
