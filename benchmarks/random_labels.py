"""Random labels (Molchanov's lecture, after Zhang et al. 2017), and whether σ finds wrong ones.

    python -m benchmarks.random_labels --data-root data --out runs/random-labels

trains a perceptron (two hidden layers of 512) on 10,000 images of MNIST whose labels are drawn at random, with binary
dropout and with sparse variational dropout, and prints accuracy on those labels, accuracy on test images and sparsity
beside the lecture's table. There is nothing to learn from such labels: what fits them has memorized them. The same with
true labels shows that sparse variational dropout learns where there is something to learn. Below it: how many of the
500 most suspicious labels of runs with 30% patterned noise are wrong, by σ, entropy and loss. Ten minutes on one core.
What is there already is not trained again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tabulate import tabulate

from benchmarks import label_noise
from benchmarks.commands import Command, ensure_run, parse, read
from benchmarks.sparse_vd import sparsity

IMAGES, SUSPECTS = 10_000, 500
SPARSE = ["--method", "sparse-vd", "--schedule", "linear", "--epochs", "25", "--kl-warmup", "3:8"]
RANDOM = ["--random-labels"]
# row: its options, and the lecture's accuracies and sparsity
ROWS: dict[str, tuple[Command, str]] = {
    "dropout": (["--method", "dropout", "-o", "rate=0.1", "--epochs", "60", *RANDOM], "100%, 10%"),
    "sparse-vd": ([*SPARSE, *RANDOM], "10%, 10%, 100%"),
    "sparse-vd-true": (SPARSE, ""),
}
NAMES = {
    "dropout": "binary dropout, random labels", "sparse-vd": "sparse VD, random labels",
    "sparse-vd-true": "sparse VD, true labels of the same images",
}  # fmt: skip
SHARE, SEED = 0.3, 0
# the run of the label noise benchmark, and what its training samples are ranked by
SUSPECTED = (("se-snn", "sigma"), ("se-snn", "entropy"), ("se-snn", "loss"), ("baseline", "loss"), ("forward", "loss"))


def train_rows(out: Path, data_root: str, names: Iterable[str]) -> None:
    """Trains what is not there yet."""
    for name in names:
        words = ["mlp", "--model-arg", "widths=512-512", "--data", "mnist", "--data-root", data_root]
        words += ["--limit-train", str(IMAGES), "--batch-size", "100"]
        ensure_run(out / name, [*words, *ROWS[name][0], "--quiet"])
    label_noise.train_rows(out, data_root, [SEED], [SHARE], ("baseline", "forward", "se-snn"))


def measure(folder: Path) -> dict[str, Any]:
    """Accuracies on the labels that were learned and on test images, and the share of zeros among all weights."""
    train, test = (100 - read("evaluate", str(folder), "--split", split)["error"] for split in ("train", "test"))
    _, ratio = sparsity(folder)
    return {"train": train, "test": test, "sparsity": 100 - 100 / ratio}


def main() -> None:
    arguments = parse(__doc__, "runs/random-labels", ROWS)
    train_rows(arguments.out, arguments.data_root, arguments.only or ROWS)
    if arguments.only:
        return
    results = {name: measure(arguments.out / name) for name in ROWS}
    suspects = {}
    for row, score in SUSPECTED:
        words = ["evaluate", str(arguments.out / f"{row}-{SHARE}-{SEED}"), "--suspects", str(SUSPECTS)]
        suspects[f"{label_noise.NAMES[row]}, {score}"] = read(*words, "--suspects-by", score)
    (arguments.out / "table.json").write_text(json.dumps({"random": results, "suspects": suspects}, indent=2))
    rows = [
        [NAMES[name], f"{found['train']:.1f}%", f"{found['test']:.1f}%", f"{found['sparsity']:.1f}%", ROWS[name][1]]
        for name, found in results.items()
    ]
    header = ["run", "accuracy on its labels", "test accuracy", "zeros", "lecture"]
    print(tabulate(rows, header, tablefmt="github", disable_numparse=True))
    rows = [
        [name, f"{found['flipped']:.1f}%", f"{found['flipped_overall']:.1f}%", f"{found['auroc']:.3f}"]
        for name, found in suspects.items()
    ]
    header = ["run, ranked by", f"wrong among the first {SUSPECTS}", "wrong among all", "AUROC"]
    print("\n" + str(tabulate(rows, header, tablefmt="github", disable_numparse=True)))


if __name__ == "__main__":
    main()
