"""Signal-to-noise against signal-plus-robustness: Figure 2 of Nalisnick et al. (2015), on MNIST, IMDB and protein.

    python -m benchmarks.weight_curves --data-root data --tabular data --out runs/curves

trains a perceptron with Bernoulli noise on its units, draws 10,000 samples of its weights by Langevin dynamics without
that noise, removes weights in the order of each criterion without any retraining, and prints the share at which the
test error doubles (of protein, whose RMSE cannot double: is 10% higher). All of it twice: at temperature 1, which
samples the posterior, and at temperature 0, where a weight's variance is that of stochastic gradient descent. Beside
them: networks with as many weights, retrained on the soft targets of the whole one (for classes), and the moments of
the weights of a network trained without noise. `data/imdb.npz` and `data/protein.npz` come from `python -m
benchmarks.tabular`; protein stands in for the Million Song Dataset. What is there already is not trained again. Widths,
rates and epochs were chosen on validation data; the test data are looked at here, once.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from tabulate import tabulate

from benchmarks import results as stored
from benchmarks.commands import Command, ensure_run, snncompress
from snncompress.pruning.curves import find_rise

SAMPLES = 10_000
TEMPERATURES = ("1", "0")
CRITERIA = ("snr", "spr", "magnitude", "random")
FACTORS = {"protein": 1.1}  # predicting the mean has an RMSE of 1
# name: the network, its noise, its training, and whether smaller ones learn from its probabilities
TASKS: dict[str, tuple[str, Command, Command, bool]] = {
    "mnist": ("widths=500-300", [], ["--epochs", "30"], True),
    "imdb": ("widths=100", [], ["--epochs", "4"], True),
    "protein": ("widths=200-200", ["-o", "rate=0.1"], ["--epochs", "30", "--lr", "0.003"], False),
}


def train(out: Path, name: str, data: Command) -> None:
    """The network with noise and the one without, and their posteriors."""
    widths, noise, training, _ = TASKS[name]
    for kind, method in (("noisy", ["dropout", *noise]), ("plain", ["none"])):
        trained = out / f"{name}-{kind}"
        ensure_run(trained, ["mlp", *data, "--model-arg", widths, "--method", *method, *training])
        for temperature in TEMPERATURES:
            walk = ["--epochs", "0", "--posterior", f"sgld:{SAMPLES}", "--posterior-temperature", temperature]
            ensure_run(out / f"{name}-{kind}-{temperature}", [str(trained), "--method", "none", *walk])


def draw(out: Path, name: str, temperature: str) -> dict[str, dict[str, Any]]:
    """The curves of the noisy network by name, drawn and measured unless they are there."""
    folder = out / f"{name}-curve-{temperature}"
    if not (folder / "curve.json").exists():
        words = [
            "--criteria",
            ",".join(CRITERIA),
            "--split",
            "test",
            "--beside",
            str(out / f"{name}-plain-{temperature}"),
        ]
        retrain = ["--retrain", "soft-targets", "--retrain-epochs", TASKS[name][2][1]] if TASKS[name][3] else []
        if temperature != TEMPERATURES[0]:
            retrain = []  # they are the same
        snncompress("curve", str(out / f"{name}-noisy-{temperature}"), *words, *retrain, "--out", str(folder))
    return {curve["name"]: curve for curve in json.loads((folder / "curve.json").read_text())["curves"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", default="data")
    parser.add_argument("--tabular", type=Path, default=Path("data"), help="where imdb.npz and protein.npz are")
    parser.add_argument("--out", type=Path, default=Path("runs/curves"))
    parser.add_argument("--only", nargs="*", choices=TASKS, help="these tasks only")
    parser.add_argument("--store", action="store_true", help="keep the table's rows in benchmarks/results, too")
    arguments = parser.parse_args()
    rows, kept = [], []
    for name in arguments.only or TASKS:
        data = ["--data", f"npz:{arguments.tabular / name}.npz"]
        if name == "mnist":
            data = ["--data", "mnist", "--data-root", arguments.data_root]
        train(arguments.out, name, data)
        for temperature in TEMPERATURES:
            curves = draw(arguments.out, name, temperature)
            factor = FACTORS.get(name, 2.0)
            points = {each: find_rise(curves[each]["shares"], curves[each]["errors"], factor) for each in CRITERIA}
            shown = ["never" if share is None else f"{share:.1f}%" for share in points.values()]
            beginning = curves["snr"]["errors"][0]
            kept.append({"method": name, "temperature": temperature, "test_error": beginning})
            kept[-1] |= {each: "never" if share is None else share for each, share in points.items()}
            rows.append([name, temperature, f"{beginning:.4g}", f"× {factor:g}", *shown])
    if arguments.store:
        stored.write("snr-spr", kept)
    print(
        "\n"
        + tabulate(rows, ["task", "temperature", "test error", "", *CRITERIA], tablefmt="github", disable_numparse=True)
    )


if __name__ == "__main__":
    main()
