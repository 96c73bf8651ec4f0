"""What training is fed with: images for batch norms are augmented as those that are learned from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from snncompress.data.dataset import Normalization
from snncompress.data.sources import load_data
from snncompress.training.feed import Feed, make_feed
from snncompress.training.options import TrainOptions


def feed(folder: Path, augment: str) -> Feed:
    """Of white images."""
    np.savez(folder / "white.npz", images=np.full((600, 8, 8), 255, np.uint8), labels=np.arange(600) % 2)
    data = load_data(f"npz:{folder}/white.npz")
    return make_feed(data, None, TrainOptions(augment=augment), Normalization((0.0,), (1.0,)), torch.device("cpu"))


def test_images_for_batch_norms_are_augmented_the_same_way_each_time_and_draw_nothing(tmp_path: Path) -> None:
    streams = feed(tmp_path, "crop-flip")
    before = torch.get_rng_state()
    first, second = ([images for images, _ in streams.norms.epoch(0)] for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert all(float(images.mean()) < 0.95 for images in first)  # black came in at the borders
    assert all(float(images.min()) == 1 for images, _ in streams.plain.epoch(0))


def test_without_augmentation_they_are_the_plain_ones(tmp_path: Path) -> None:
    streams = feed(tmp_path, "none")
    assert streams.norms is streams.plain
