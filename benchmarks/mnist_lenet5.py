"""LeNet-5-Caffe on full MNIST: plain training, SE-SNN, pruning to the paper's 0.061M FLOPs, report, export.

    python -m benchmarks.mnist_lenet5 --data-root data --out runs/mnist

runs the README's commands one after the other (about half an hour on two cores) and prints the README's table. Beside
the pruned network stands one of the same shape, trained from new weights for as many epochs as the pruned one has
seen in all. Everything is chosen on the validation split; the test images are looked at by `report`, once.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.commands import MNIST_TRAINED, SHIFT, epochs_seen, snncompress

PLAIN_EPOCHS, NOISY_EPOCHS, FINAL_EPOCHS = 6, 12, 60
LR = "0.003"  # of the small networks: on validation data better than 0.001
NOISE = ["--method", "se-snn", "--omega", "0.03", *SHIFT, "--epochs", str(NOISY_EPOCHS)]
FINAL = ["--final-lr", LR, "--final-epochs", str(FINAL_EPOCHS)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", default="data")
    parser.add_argument("--out", type=Path, default=Path("runs/mnist"))
    arguments = parser.parse_args()
    plain, noisy, small, scratch = (str(arguments.out / name) for name in ("plain", "noisy", "small", "scratch"))
    data = ["--data", "mnist", "--data-root", arguments.data_root]
    snncompress("train", "lenet5", *data, "--method", "none", *SHIFT, "--epochs", str(PLAIN_EPOCHS), "--out", plain)
    snncompress("train", plain, *NOISE, "--out", noisy)
    snncompress("prune", noisy, "--target-flops", "0.061M", *SHIFT, *FINAL, "--out", small)
    epochs = str(epochs_seen(Path(small), MNIST_TRAINED))
    snncompress(
        *("train", small, "--from-scratch", "--method", "none", *SHIFT, "--lr", LR),
        *("--epochs", epochs, "--out", scratch),
    )
    snncompress("report", plain, noisy, small, scratch, "--format", "markdown")
    snncompress("report", small, "--layers", "--plot", str(arguments.out / "tradeoff.png"))
    snncompress("export", small, "--out", str(arguments.out / "small.onnx"), "--force")


if __name__ == "__main__":
    main()
