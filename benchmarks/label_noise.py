"""Figure 3 of Yu et al. (2021): training on MNIST with a share of the labels wrong, in a pattern that a seed draws.

    python -m benchmarks.label_noise --data-root data --out runs/label-noise

trains a perceptron with two hidden layers of 128 neurons plainly, with three corrections of the loss, with SE-SNN
noise (entropy a sample, Eq. 6) and with both, for shares of 0 to 50% and three seeds, which draw pattern, wrong labels,
weights and noise alike. Prints mean and standard deviation of the test accuracy, writes table.json and draws the
picture. What is there already is not trained again. An hour on one core.

    python -m benchmarks.label_noise --tune --data-root data --out runs/label-noise

prints the validation errors (against noisy labels, at 30%, seed 0) by which epochs, ω and margin were chosen for all
shares; the test images are looked at once, for the table.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate

from benchmarks.commands import Command, ensure_run
from snncompress import evaluate, load, load_data
from snncompress.data.batches import Batches

SHARES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
SEEDS = 3
EPOCHS = 10
PLAIN = ["--method", "none"]
NOISY = ["--method", "se-snn", "--aggregate", "sample", "--layers", "hidden"]
CHOSEN = ["--omega", "0.01", "--margin", "4"]
# row: its options, and the row that its correction learns from
ROWS: dict[str, tuple[Command, str | None]] = {
    "baseline": (PLAIN, None),
    "bootstrap-hard": ([*PLAIN, "--correction", "bootstrap-hard"], None),
    "bootstrap-soft": ([*PLAIN, "--correction", "bootstrap-soft"], None),
    "forward": ([*PLAIN, "--correction", "forward"], "baseline"),
    "se-snn": ([*NOISY, *CHOSEN], None),
    "se-snn-forward": ([*NOISY, *CHOSEN, "--correction", "forward"], "se-snn"),
}
NAMES = {
    "baseline": "baseline", "bootstrap-hard": "bootstrap, hard", "bootstrap-soft": "bootstrap, soft",
    "forward": "forward", "se-snn": "SE-SNN", "se-snn-forward": "SE-SNN + forward",
}  # fmt: skip
TUNE_SHARE, TUNE_SEED = 0.3, 0
TUNED = {
    **{f"baseline-epochs{n}": [*PLAIN, "--epochs", str(n)] for n in (5, 10, 20)},
    **{f"se-snn-epochs{n}": [*NOISY, *CHOSEN, "--epochs", str(n)] for n in (5, 10, 20)},
    **{
        f"se-snn-omega{omega}-margin{margin}": [
            *NOISY, "--omega", omega, "--margin", margin, "--epochs", "10"
        ]
        for omega in ("0.03", "0.1", "0.3", "1")
        for margin in ("0", "4")
    },
}  # fmt: skip


def start(share: float, seed: int, data_root: str) -> Command:
    """The beginning of every training command."""
    words = ["mlp", "--model-arg", "widths=128-128", "--data", "mnist", "--data-root", data_root, "--seed", str(seed)]
    return [*words, "--label-noise", f"patterned:{share}"] if share else words


def train_rows(
    out: Path, data_root: str, seeds: Sequence[int], shares: Sequence[float] = SHARES, rows: Iterable[str] = ROWS
) -> None:
    """Trains what is not there yet, seed by seed."""
    for seed in seeds:
        for share in shares:
            for row in rows:
                options, first = ROWS[row]
                words = [*start(share, seed, data_root), *options, "--epochs", str(EPOCHS), "--quiet"]
                if first is not None:
                    words += ["--correction-from", str(out / f"{first}-{share}-{seed}")]
                ensure_run(out / f"{row}-{share}-{seed}", words)


def accuracies(out: Path, data_root: str, seeds: list[int]) -> dict[str, dict[float, list[float]]]:
    """Test accuracies by row and share, one a seed; what ``snncompress evaluate`` prints, with the images read once."""
    images = load_data("mnist", root=data_root).test
    assert images is not None

    def accuracy(folder: Path) -> float:
        run = load(folder)
        return 100 - evaluate(run.model, Batches(images, 250, run.normalization, device=torch.device("cpu"))).error

    return {
        row: {share: [accuracy(out / f"{row}-{share}-{seed}") for seed in seeds] for share in SHARES} for row in ROWS
    }


def draw(results: dict[str, dict[float, list[float]]], picture: Path) -> None:
    """Test accuracy against the share of wrong labels, with the spread over the seeds: up to 40%, and all."""
    from snncompress.reporting.charts import COLOURS
    from snncompress.reporting.tradeoff import figure_of, write_figure

    figure, panes = figure_of(picture, 2)
    for axes, last in zip(panes, (0.4, 0.5), strict=True):
        for place, (row, colour, mark) in enumerate(zip(results, COLOURS, "os^vDP", strict=False)):
            found = {share: values for share, values in results[row].items() if share <= last}
            axes.errorbar(
                [100 * share + 0.5 * (place - 2.5) for share in found],  # side by side: they would hide each other
                [statistics.mean(values) for values in found.values()],
                [statistics.stdev(values) for values in found.values()],
                color=colour, marker=mark, markersize=5, linewidth=1.5, capsize=2, label=NAMES[row],
                linestyle="-" if row.startswith("se-snn") else "--",
            )  # fmt: skip
        axes.set(xlabel="Wrong labels (%)", ylabel="Test accuracy (%)")
        axes.grid(True, color="#dddddd", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    panes[0].set_title("MNIST, patterned label noise, up to 40%", loc="left")
    panes[1].set_title("At 50%, two classes are equally likely", loc="left")
    panes[0].legend(frameon=False, loc="lower left")
    write_figure(figure, picture)


def table(results: dict[str, dict[float, list[float]]]) -> str:
    rows = [
        [NAMES[row], *(f"{statistics.mean(values):.2f} ± {statistics.stdev(values):.2f}" for values in found.values())]
        for row, found in results.items()
    ]
    header = ["test accuracy, %", *(f"{100 * share:.0f}%" for share in SHARES)]
    return str(tabulate(rows, header, tablefmt="github", disable_numparse=True))


def tune(out: Path, data_root: str) -> None:
    """Trains and prints the candidates; only validation images are looked at."""
    rows: list[list[Any]] = []
    for name, options in TUNED.items():
        ensure_run(out / "tune" / name, [*start(TUNE_SHARE, TUNE_SEED, data_root), *options, "--quiet"])
        validation = json.loads((out / "tune" / name / "run.json").read_text())["metrics"]["validation"]
        rows.append([name, f"{validation['error']:.2f}", f"{validation['nll']:.4f}"])
    print(tabulate(rows, ["run", "validation error, %", "NLL"], tablefmt="github", disable_numparse=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", default="data")
    parser.add_argument("--out", type=Path, default=Path("runs/label-noise"))
    parser.add_argument("--picture", type=Path, help="default: label_noise.png in --out")
    parser.add_argument("--tune", action="store_true", help="train the candidates, print no table")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="how many: 0, 1, 2, ...")
    parser.add_argument("--only-seed", type=int, help="train the rows of this seed, print no table")
    arguments = parser.parse_args()
    if arguments.tune:
        tune(arguments.out, arguments.data_root)
        return
    seeds = list(range(arguments.seeds))
    train_rows(arguments.out, arguments.data_root, seeds if arguments.only_seed is None else [arguments.only_seed])
    if arguments.only_seed is not None:
        return
    results = accuracies(arguments.out, arguments.data_root, seeds)
    (arguments.out / "table.json").write_text(json.dumps(results, indent=2))
    draw(results, arguments.picture or arguments.out / "label_noise.png")
    print(table(results))


if __name__ == "__main__":
    main()
