"""What fewer bits cost, and how much faster a compressed LeNet-5 is: float16 and int8 beside float32, and speeds.

    python -m benchmarks.exports --data-root data --checkpoints FOLDER --out runs/exports

LeNet-5 on MNIST (20 epochs of plain training), the same pruned to 0.061M FLOPs, and the public ResNet-20 for CIFAR-10
(FOLDER holds resnet20-12fca82f.th; it has seen all training images, so half of the test images are for choices and the
other half is the test set). Each is exported in three precisions and verified on its test images: errors are those of
onnxruntime. int8 takes its ranges from training images. Then LeNet-5 and its pruned form are timed in turn, one thread.
What OUT holds already is not made again. Aims: within 0.5 points of float32; at least 7 times faster at batch 256 and 3
times at batch 1.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from tabulate import tabulate

from benchmarks.cifar_checkpoints import CHECKPOINTS
from benchmarks.commands import ensure_run, read, snncompress
from snncompress.reporting.table import format_bytes

PRECISIONS = {"float32": [], "float16": ["--fp16"], "int8": ["--int8"]}
MODELS = ("lenet5", "lenet5-small", "resnet20")
TARGET = ["--target-flops", "0.061M"]
TUNING = [
    "--finetune-steps",
    "20",
    "--lr",
    "0.002",
    "--final-epochs",
    "20",
    "--final-lr",
    "0.003",
    "--augment",
    "shift",
]
SLACK = 0.5  # points


def make_runs(out: Path, data_root: str, checkpoints: Path) -> None:
    """The three models, unless they are there; what was interrupted goes on."""
    lenet, small, resnet = (out / name for name in MODELS)
    root = ["--data-root", data_root]
    ensure_run(lenet, ["lenet5", "--data", "mnist", *root, "--method", "none", "--epochs", "20"])
    ensure_run(small, [str(lenet), *TARGET, *TUNING], "prune")
    public = ["resnet20", "--checkpoint", str(checkpoints / CHECKPOINTS["resnet20"]), "--normalize", "imagenet"]
    held = ["--data", "cifar10", *root, "--holdout", "test", "--method", "none", "--epochs", "0"]
    ensure_run(resnet, [*public, *held])


def measure(out: Path, model: str, precision: str) -> dict[str, Any]:
    """Exports a run and verifies the file on test images."""
    file, run = str(out / f"{model}-{precision}.onnx"), str(out / model)
    exported = read("export", run, *PRECISIONS[precision], "--out", file, "--force")
    verified = read("verify", file, run, "--split", "test")
    checks = {check["name"]: check for check in verified["checks"]}
    parity = max(check["relative"] for name, check in checks.items() if name.startswith("parity"))
    reduction = exported["reduction"] or {"times_faster": 1.0}
    return {
        "model": model, "precision": precision, "bytes": exported["size_bytes"], "parity": parity,
        "error": checks["error"]["onnxruntime"], "torch": checks["error"]["torch"],
        "samples": checks["error"]["samples"], "times_faster": reduction["times_faster"],
    }  # fmt: skip


def cells(result: dict[str, Any]) -> list[str]:
    change = result["error"] - result["torch"]
    return [
        result["model"], result["precision"], format_bytes(result["bytes"]), f"{result['parity']:.0e}",
        f"{result['error']:.2f}%", f"{change:+.2f}", f"{result['samples']:,}", f"{result['times_faster']:.2f}",
        "yes" if abs(change) <= SLACK else "NO",
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", default="data")
    parser.add_argument("--checkpoints", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("runs/exports"))
    arguments = parser.parse_args()
    make_runs(arguments.out, arguments.data_root, arguments.checkpoints)
    results = [measure(arguments.out, model, precision) for model in MODELS for precision in PRECISIONS]
    header = ["model", "precision", "file", "outputs differ by", "test error", "points more", "images"]
    header += ["times as fast", f"within {SLACK}"]
    print("\n" + tabulate(map(cells, results), header, tablefmt="github", disable_numparse=True))
    snncompress("report", str(arguments.out / "lenet5"), str(arguments.out / "lenet5-small"), "--layers", "--latency")


if __name__ == "__main__":
    main()
