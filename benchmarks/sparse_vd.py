"""Sparse variational dropout on full MNIST: does it train stably, from new weights and from a checkpoint?

    python -m benchmarks.sparse_vd --data-root data --out runs/sparse-vd

trains LeNet-300-100 and LeNet-5-Caffe both ways and prints test error, sparsity a layer, and the ratio of weights to
non-zero weights (biases apart), beside the table in Molchanov's lecture (200 epochs). Half an hour on two cores. What
is there already is not trained again, so that it can be interrupted, or shared between processes with --only. Epochs
and rates were chosen on the validation split; the test images are looked at here, once. How far it goes with time is
shown by `zoo:lenet300-sparse` and `zoo:lenet5-sparse`, which stand in the table.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tabulate import tabulate

from benchmarks.commands import Command, ensure_run, parse, read
from snncompress.models.sources import build
from snncompress.reporting.published import published_tables
from snncompress.run import Run
from snncompress.run_files import load

PLAIN_EPOCHS = 6
SPARSE = ["--method", "sparse-vd", "--schedule", "linear"]
TABLE = "sparse-vd"
# name: model, options, and what the published table calls it
ROWS: dict[str, tuple[str, Command, str]] = {
    "lenet300-scratch": ("lenet300", ["--epochs", "40", "--kl-warmup", "5:15"], "LeNet-300-100"),
    "lenet300-checkpoint": ("lenet300", ["--epochs", "40"], "LeNet-300-100"),
    "lenet5-scratch": ("lenet5", ["--epochs", "12", "--kl-warmup", "2:5"], "LeNet-5-Caffe"),
    "lenet5-checkpoint": ("lenet5", ["--epochs", "12"], "LeNet-5-Caffe"),
}


def sparsity(run: Run) -> tuple[list[float], float]:
    """The share of each layer's weights that are zero or gone, in percent, and weights over non-zero weights."""
    assert run.source is not None
    whole = {name: weight.numel() for name, weight in build(run.source).named_parameters() if weight.dim() > 1}
    left = {name: int(weight.count_nonzero()) for name, weight in run.model.named_parameters()}
    zeros = [100 * (1 - left[name] / count) for name, count in whole.items()]
    return zeros, sum(whole.values()) / max(sum(left[name] for name in whole), 1)


def show_zeros(zeros: Iterable[float]) -> str:
    """As the published table has them."""
    return " - ".join(f"{share:.1f}" for share in zeros)


def measure(folder: Path) -> dict[str, Any]:
    """Test error and sparsity of a run, and its validation error over the epochs."""
    zeros, ratio = sparsity(load(folder))
    history = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    errors = [record["validation_error"] for record in history[1:]]
    test = read("evaluate", str(folder))["error"]
    return {"error": test, "sparsity": zeros, "ratio": ratio, "validation_errors": errors}


def train_rows(out: Path, data_root: str, names: Iterable[str]) -> None:
    """Trains what is not there yet."""
    for name in names:
        model, options, _ = ROWS[name]
        start = [model, "--data", "mnist", "--data-root", data_root]
        if name.endswith("checkpoint"):
            plain = out / f"{model}-plain"
            ensure_run(plain, [*start, "--method", "none", "--epochs", str(PLAIN_EPOCHS)])
            start = [str(plain)]
        ensure_run(out / name, [*start, *SPARSE, *options])


def main() -> None:
    arguments = parse(__doc__, "runs/sparse-vd", ROWS)
    train_rows(arguments.out, arguments.data_root, arguments.only or ROWS)
    if arguments.only:
        return
    results = {name: measure(arguments.out / name) for name in ROWS}
    (arguments.out / "table.json").write_text(json.dumps(results, indent=2))
    published = {row["method"]: f"{row['error']}%, {row['ratio']}" for row in published_tables()[TABLE]["rows"]}
    rows = []
    for name, result in results.items():
        title = ROWS[name][2]
        zeros = show_zeros(result["sparsity"])
        worst = max(result["validation_errors"])
        theirs = published[f"{title}, Sparse VD"]
        rows.append([name, f"{result['error']:.2f}%", zeros, f"{result['ratio']:.0f}", theirs, f"{worst:.2f}%"])
    header = ["run", "test error", "zeros a layer, %", "ratio", "published", "worst validation error of an epoch"]
    print(tabulate(rows, header, tablefmt="github", disable_numparse=True))


if __name__ == "__main__":
    main()
