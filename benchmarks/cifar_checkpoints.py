"""Public CIFAR-10 ResNets: loaded, evaluated on the test set, reported and exported with parity.

    python -m benchmarks.cifar_checkpoints --data-root data --checkpoints FOLDER

FOLDER holds resnet20-12fca82f.th and resnet56-4bfd9763.th (trained by others; published test accuracy 91.73% and
93.39%). Their images are normalized with ImageNet's mean and standard deviation.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from benchmarks.commands import snncompress

CHECKPOINTS = {"resnet20": "resnet20-12fca82f.th", "resnet56": "resnet56-4bfd9763.th"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", default="data")
    parser.add_argument("--checkpoints", type=Path, required=True)
    arguments = parser.parse_args()
    for name, file in CHECKPOINTS.items():
        model = [name, "--checkpoint", str(arguments.checkpoints / file)]
        data = ["--data", "cifar10", "--data-root", arguments.data_root, "--normalize", "imagenet"]
        snncompress("evaluate", *model, *data)
        snncompress("report", *model)
        with tempfile.TemporaryDirectory() as folder:
            snncompress("export", *model, *data, "--out", str(Path(folder) / f"{name}.onnx"))


if __name__ == "__main__":
    main()
