"""A problem that a few steps of training solve: which quarter of a noisy 8×8 image is bright."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from snncompress.data.dataset import Dataset
from snncompress.data.sources import load_data
from snncompress.run import Run
from snncompress.run_files import load

CLASSES = ("0", "1", "2", "3")
IMAGE = (1, 8, 8)


def make_images(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """uint8 images (count, 1, 8, 8) and labels 0..3."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 4
    images = 0.6 * torch.rand(count, *IMAGE, generator=generator)
    for quarter in range(4):
        top, left = 4 * (quarter // 2), 4 * (quarter % 2)
        images[labels == quarter, :, top : top + 4, left : left + 4] += 0.2
    return (255 * images).to(torch.uint8), labels


def write_npz(path: Path, count: int = 600) -> str:
    """Writes the problem and returns what --data calls it."""
    images, labels = make_images(count)
    np.savez(path, images=images.numpy(), labels=labels.numpy())
    return f"npz:{path}"


def small_data(folder: Path) -> Dataset:
    """The problem, loaded."""
    return load_data(write_npz(folder / "quarters.npz"))


def small_run(seed: int = 0) -> Run:
    """A multilayer perceptron for it, not trained."""
    torch.manual_seed(seed)
    return load("mlp", arguments={"widths": "12-8"}, classes=CLASSES, input_shape=IMAGE, normalize="0.5/0.5")


def batches(count: int = 400, size: int = 50, seed: int = 0) -> list[tuple[Tensor, Tensor]]:
    """The problem as a user's own batches."""
    images, labels = make_images(count, seed)
    inputs = (images.float() / 255 - 0.5) / 0.5
    return list(zip(inputs.split(size), labels.split(size), strict=True))


def to_csr(matrix: Any) -> dict[str, Any]:
    """A dense matrix as the arrays ``data``, ``indices`` and ``indptr``."""
    rows, columns = np.nonzero(matrix)
    ends = np.bincount(rows, minlength=len(matrix)).cumsum()
    return {"data": matrix[rows, columns], "indices": columns, "indptr": np.concatenate([[0], ends])}


def make_table(count: int = 300, seed: int = 0) -> tuple[Any, Any]:
    """Six features of different scales, and a number that a few steps of training learn to predict."""
    random = np.random.RandomState(seed)
    signals = random.randn(count, 6)
    targets = signals[:, 0] - 0.5 * np.abs(signals[:, 1]) + 0.1 * random.randn(count)
    return signals * [1, 10, 100, 1, 1, 1] + [0, 5, 0, -3, 0, 0], targets


def write_table(path: Path, count: int = 300) -> str:
    """Writes the regression problem and returns what --data calls it."""
    features, targets = make_table(count)
    np.savez(path, features=features, targets=targets)
    return f"npz:{path}"
