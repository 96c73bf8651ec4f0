"""Makes the embedded sample: 400 training and 100 test images of each digit, drawn by seed from MNIST.

python -m benchmarks.make_sample FOLDER    (FOLDER holds MNIST's four idx files, gzipped or not)
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from snncompress.data.mnist import read_part

TARGET = Path(__file__).parents[1] / "snncompress" / "data" / "sample" / "mnist.npz"
TRAIN_PER_CLASS = 400
TEST_PER_CLASS = 100
SEED = 0


def draw(folder: Path, part: str, per_class: int) -> tuple[np.ndarray, np.ndarray]:
    images, labels = (tensor.numpy() for tensor in read_part(folder, part, 10))
    random = np.random.RandomState(SEED)  # its streams never change, default_rng's may
    chosen = [random.permutation(np.flatnonzero(labels == digit))[:per_class] for digit in range(10)]
    order = random.permutation(np.concatenate(chosen))
    return images[order, 0], labels[order]


def main() -> None:
    folder = Path(sys.argv[1])
    train_images, train_labels = draw(folder, "train", TRAIN_PER_CLASS)
    test_images, test_labels = draw(folder, "t10k", TEST_PER_CLASS)
    TARGET.parent.mkdir(exist_ok=True)
    np.savez_compressed(
        TARGET,
        train_images=train_images,
        train_labels=train_labels,
        test_images=test_images,
        test_labels=test_labels,
    )
    print(f"{TARGET}: {TARGET.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
