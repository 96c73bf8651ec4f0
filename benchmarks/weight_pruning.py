"""What weight pruning saves on full MNIST: sparse variational dropout, a variance layer, and 280 times fewer weights.

    python -m benchmarks.weight_pruning --data-root data --out runs/weights

trains what `benchmarks.sparse_vd` and `benchmarks.variance_layers` train (an hour on two cores; point --sparse-vd and
--variance at their folders if they are there), then prunes:

1. sparse-vd runs at log α > 3, without fine-tuning: test error before and after, the weights that are left of each
   layer, idle neurons that go, what is stored;
2. the Gaussian variance layer of LeNet-5: deviations go as long as the validation error by averaging rises by at most
   0.05 points; test accuracies by 20 averaged samples before and after;
3. LeNet-5 to 1/280 of its weights, fine-tuned on the way, and the same zeros trained from new weights as long.

Everything is chosen on validation images; the test images are looked at here, once.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from tabulate import tabulate

from benchmarks import sparse_vd, variance_layers
from benchmarks.commands import MNIST_TRAINED, ensure_run, epochs_seen, read, snncompress

MAX_DROP, SAMPLES = "0.05", 20
FEWER, FINAL_EPOCHS = 280, 20


def prune(source: Path, out: Path, *options: str) -> Path:
    """A run with fewer weights, unless it is there."""
    return ensure_run(out, [str(source), "--weights", *options], "prune")


def plan_of(folder: Path) -> dict[str, Any]:
    plan: dict[str, Any] = json.loads((folder / "plan.json").read_text())
    return plan


def show(rows: list[list[str]], header: list[str]) -> None:
    print("\n" + tabulate(rows, header, tablefmt="github", disable_numparse=True), flush=True)


def sparse_table(sources: Path, out: Path) -> None:
    """The first table."""
    rows = []
    for name in sparse_vd.ROWS:
        small = prune(sources / name, out / name, "--criterion", "log-alpha", "--final-epochs", "0")
        (before,) = read("report", str(sources / name))
        (after,) = read("report", str(small))
        plan = plan_of(small)
        left = " - ".join(f"{100 * layer['left'] / layer['weights']:.2f}" for layer in plan["layers"].values())
        rows.append(
            [name, f"{before['error']:.2f}%", f"{after['error']:.2f}%", left, str(plan["removed_neurons"]),
             f"{plan['logit_change']:.0e}", f"{after['flops_percent']:.1f}%", f"{after['stored_bytes'] / 1e3:.1f} kB"]
        )  # fmt: skip
    header = [
        "run",
        "test error",
        "pruned",
        "weights left a layer, %",
        "idle neurons",
        "logits changed by",
        "FLOPs",
        "file",
    ]
    show(rows, header)


def variance_table(source: Path, out: Path) -> None:
    """The second table."""
    small = prune(source, out / "variance", "--max-drop", MAX_DROP, "--final-epochs", "0", "--finetune-steps", "0")
    layer = plan_of(small)["layers"]["fc1"]
    before, after = (
        100 - read("evaluate", str(run), "--samples", str(SAMPLES))["averaged"]["error"] for run in (source, small)
    )
    removed = f"{100 - 100 * layer['left'] / layer['weights']:.2f}%"
    show([[removed, f"{before:.2f}%", f"{after:.2f}%"]], ["σ removed", f"{SAMPLES} averaged", "after"])


def tiny_table(source: Path, out: Path) -> None:
    """The third table."""
    share = f"{100 / FEWER:.6f}%"
    tuning = ["--augment", "shift", "--final-epochs", str(FINAL_EPOCHS), "--final-lr", "0.003"]
    small = prune(source, out / "tiny", "--target-size", share, *tuning)
    epochs, scratch = epochs_seen(small, MNIST_TRAINED), out / "tiny-scratch"
    words = ["--from-scratch", "--method", "none", "--augment", "shift", "--lr", "0.003", "--epochs", str(epochs)]
    ensure_run(scratch, [str(small), *words])
    snncompress("report", str(source), str(small), str(scratch), "--format", "markdown")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", default="data")
    parser.add_argument("--out", type=Path, default=Path("runs/weights"))
    parser.add_argument("--sparse-vd", type=Path, default=Path("runs/sparse-vd"))
    parser.add_argument("--variance", type=Path, default=Path("runs/variance"))
    arguments = parser.parse_args()
    sparse_vd.train_rows(arguments.sparse_vd, arguments.data_root, sparse_vd.ROWS)
    variance_layers.train_rows(arguments.variance, arguments.data_root, ["gaussian"])
    sparse_table(arguments.sparse_vd, arguments.out)
    variance_table(arguments.variance / "gaussian", arguments.out)
    tiny_table(arguments.sparse_vd / "lenet5-checkpoint", arguments.out)


if __name__ == "__main__":
    main()
