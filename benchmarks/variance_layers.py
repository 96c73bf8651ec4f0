"""Variance layers on full MNIST: LeNet-5-Caffe with its first dense layer zero-mean (Neklyudov et al. 2019, §3.3).

    python -m benchmarks.variance_layers --data-root data --out runs/variance

trains LeNet-5 plainly, then with a Gaussian, a Bernoulli and a uniform variance layer from that checkpoint, and prints
accuracies by mean propagation, by one sample and by averaging, beside the paper's. Half an hour on two cores. What is
there already is not trained again, so that it can be interrupted, or shared between processes with --only. Epochs and
rates were chosen on the validation split; the test images are looked at here, once.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from tabulate import tabulate

from benchmarks import results as stored
from benchmarks.commands import ensure_run, parse, read
from snncompress.reporting.published import published_tables

PLAIN_EPOCHS, SAMPLES = 6, 20
TABLE = "variance-layers"
# name: epochs, and what the published table calls it
ROWS = {"gaussian": (20, "Gaussian"), "bernoulli": (10, "Bernoulli"), "uniform": (10, "uniform")}


def train_rows(out: Path, data_root: str, names: Iterable[str]) -> None:
    """Trains what is not there yet."""
    plain = out / "plain"
    ensure_run(
        plain,
        ["lenet5", "--data", "mnist", "--data-root", data_root, "--method", "none", "--epochs", str(PLAIN_EPOCHS)],
    )
    for name in names:
        ensure_run(
            out / name,
            [str(plain), "--method", "variance", "--noise", name, "--layers", "fc1", "--epochs", str(ROWS[name][0]),
             "--schedule", "linear", "--batch-size", "128", "--noise-lr", "0.03"],
        )  # fmt: skip


def main() -> None:
    arguments = parse(__doc__, "runs/variance", ROWS, stores=True)
    train_rows(arguments.out, arguments.data_root, arguments.only or ROWS)
    if arguments.only:
        return
    folders = {name: str(arguments.out / name) for name in ROWS}
    results = {name: read("evaluate", folder, "--samples", str(SAMPLES)) for name, folder in folders.items()}
    (arguments.out / "table.json").write_text(json.dumps(results, indent=2))
    published = {row["method"]: row["accuracy_averaged"] for row in published_tables()[TABLE]["rows"]}
    rows, kept = [], []
    for name, result in results.items():
        title = ROWS[name][1]
        errors = result["error"], result["one_sample"]["error"], result["averaged"]["error"]
        mean, one, averaged = (100 - error for error in errors)
        spread = result["one_sample"]["spread"]
        rows.append([name, f"{mean:.2f}", f"{one:.2f} ± {spread:.2f}", f"{averaged:.2f}", str(published[title])])
        kept.append({"method": title, "accuracy_mean": mean, "accuracy_one": one, "accuracy_averaged": averaged})
    if arguments.store:
        stored.write(TABLE, kept)
    header = ["variance layer", "mean propagation, %", "one sample, %", f"{SAMPLES} averaged, %", "paper, averaged, %"]
    print(tabulate(rows, header, tablefmt="github", disable_numparse=True))


if __name__ == "__main__":
    main()
