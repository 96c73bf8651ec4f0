"""Public CIFAR-10 ResNets, retrained with SE-SNN noise and pruned: ResNet-20 to 50%, ResNet-56 to 39% of the FLOPs.

    python -m benchmarks.cifar_resnets --model resnet20 --data-root data --checkpoints FOLDER --out runs/resnet20

FOLDER holds resnet20-12fca82f.th and resnet56-4bfd9763.th (trained by others; test accuracy 91.73% and 93.39%). They
have seen all training images, so everything is chosen on one half of the test images (`--holdout test`) and the table
reports the other half. Channels go inside the blocks; those that the shortcuts carry stay, so that the pruned network
can learn what the three stages of the unpruned one give, beside its probabilities. Beside it stands the same shape
with new weights, trained the same way for as many epochs as retraining, pruning and fine-tuning have taken together.
Every step resumes where it was interrupted.

Here the epochs are few, for two cores: three hours for ResNet-20, a day for ResNet-56. With a GPU, in one command:

    python -m benchmarks.cifar_resnets --model resnet56 --noisy-epochs 20 --final-epochs 200 --data-root data \
        --checkpoints FOLDER --out runs/resnet56
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.cifar_checkpoints import CHECKPOINTS
from benchmarks.commands import ensure_run, epochs_seen, snncompress, status

TARGETS = {"resnet20": "50%", "resnet56": "39%"}
STEPS = {"resnet20": "12", "resnet56": "36"}  # neurons a round: about fifteen rounds
IMAGES, BATCH = 50_000, 128
TRAINING = ["--batch-size", str(BATCH), "--augment", "crop-flip"]
SGD = ["--optimizer", "sgd", "--weight-decay", "0.0003"]
RATE, NEW_RATE = "0.03", "0.1"  # where the last fine-tuning begins, and training from new weights
SHORTCUTS = ["--keep", "conv1", "--keep", "layer*.*.conv2"]  # what is added up: its channels stay
STAGES = ["--distill-layers", "layer1", "--distill-layers", "layer2", "--distill-layers", "layer3"]


def prune(model: str, noisy: Path, teacher: Path, small: Path, final_epochs: int) -> None:
    """The pruned run, unless it is there; an interrupted one goes on."""
    if status(small) == "complete":
        return
    rounds = ["--step", STEPS[model], "--finetune-steps", "40", "--lr", "0.01"]
    final = ["--final-lr", RATE, "--final-epochs", str(final_epochs)]
    snncompress(
        *("prune", str(noisy), "--target-flops", TARGETS[model], *SHORTCUTS, *rounds, *final, *SGD, *TRAINING),
        *("--distill", str(teacher), *STAGES, "--out", str(small), *(["--resume"] if status(small) else [])),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=CHECKPOINTS, default="resnet20")
    parser.add_argument("--data-root", default="data")
    parser.add_argument("--checkpoints", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--noisy-epochs", type=int, default=2)
    parser.add_argument("--final-epochs", type=int, default=20)
    arguments = parser.parse_args()
    plain, noisy, small, scratch = (arguments.out / name for name in ("plain", "noisy", "small", "scratch"))
    checkpoint = str(arguments.checkpoints / CHECKPOINTS[arguments.model])
    data = ["--data", "cifar10", "--data-root", arguments.data_root, "--normalize", "imagenet", "--holdout", "test"]
    ensure_run(plain, [arguments.model, "--checkpoint", checkpoint, *data, "--method", "none", "--epochs", "0"])
    noise = ["--method", "se-snn", "--lr", "0.0001", "--noise-lr", "0.003", "--epochs", str(arguments.noisy_epochs)]
    ensure_run(noisy, [str(plain), *noise, *TRAINING])
    prune(arguments.model, noisy, plain, small, arguments.final_epochs)
    teach = ["--distill", str(plain), *STAGES, "--epochs", str(epochs_seen(small, IMAGES)), *TRAINING, *SGD]
    ensure_run(scratch, [str(small), "--from-scratch", "--method", "none", "--lr", NEW_RATE, *teach])
    snncompress("report", str(plain), str(noisy), str(small), str(scratch), "--format", "markdown")


if __name__ == "__main__":
    main()
