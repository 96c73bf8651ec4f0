"""Half of the test images for every choice: the other half stays unseen, and all training images are there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from snncompress.cli import run as command
from snncompress.data.dataset import Images
from snncompress.data.sources import load_data
from snncompress.errors import DataError, UsageError
from snncompress.run_files import load


@pytest.fixture
def npz(tmp_path: Path) -> str:
    """Images whose first pixel is their number: 100 to train with, 40 to test with."""
    arrays = {}
    for part, first, count in (("train", 0, 100), ("test", 100, 40)):
        images = np.random.RandomState(0).randint(0, 256, (count, 1, 8, 8), dtype=np.uint8)
        images[:, 0, 0, 0] = np.arange(first, first + count)
        arrays |= {f"{part}_images": images, f"{part}_labels": np.arange(count) % 4}
    np.savez(tmp_path / "numbered.npz", **arrays)
    return f"npz:{tmp_path / 'numbered.npz'}"


def numbers(images: Images | None) -> set[int]:
    assert images is not None
    return set(images.batch(torch.arange(len(images)))[0][:, 0, 0, 0].tolist())


def test_the_test_set_in_two_halves(npz: str) -> None:
    data = load_data(npz, holdout="test")
    assert numbers(data.train) == set(range(100))
    assert len(data.validation) == len(numbers(data.test)) == 20
    assert numbers(data.validation) | numbers(data.test) == set(range(100, 140))
    assert numbers(load_data(npz, holdout="test").validation) == numbers(data.validation)
    assert numbers(load_data(npz, holdout="test", seed=1).validation) != numbers(data.validation)
    assert numbers(load_data(npz).test) == set(range(100, 140))


def test_what_has_no_halves(tmp_path: Path, npz: str) -> None:
    with pytest.raises(UsageError, match="unknown holdout 'tests'; did you mean 'test'"):
        load_data(npz, holdout="tests")
    with np.load(npz.removeprefix("npz:")) as arrays:
        one = {name: array[: 1 if name.startswith("test") else 100] for name, array in arrays.items()}
    np.savez(tmp_path / "one.npz", **one)
    with pytest.raises(DataError, match="has no test images to halve"):
        load_data(f"npz:{tmp_path / 'one.npz'}", holdout="test")


def test_a_run_remembers_its_halves(npz: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "mlp", "--model-arg", "widths=8", "--data", npz, "--holdout", "test", "--epochs", "1"]
    assert command([*words, "--method", "none", "--quiet", "--out", str(tmp_path / "run")]) == 0
    assert load(tmp_path / "run").data["holdout"] == "test"
    for split, extra, images in (("test", [], 20), ("validation", [], 20), ("test", ["--holdout", "train"], 40)):
        capsys.readouterr()
        assert command(["evaluate", str(tmp_path / "run"), "--split", split, *extra]) == 0
        assert f"on {images} {split} images" in capsys.readouterr().out
