"""Half of the test images for every choice: the other half stays unseen, and all training images are there.

Or no choice any more: all training images are for training.
"""

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


def test_all_training_images(npz: str) -> None:
    data = load_data(npz, holdout="none")
    assert numbers(data.train) == set(range(100))
    assert data.validation is None
    assert numbers(data.test) == set(range(100, 140))
    spoilt = load_data(npz, holdout="none", label_noise="uniform:0.5")
    assert spoilt.validation is None
    assert 0 < int((spoilt.train.labels != data.train.labels).sum()) < 100


def test_the_last_training_is_on_all_images(npz: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chosen, last, less = (str(tmp_path / name) for name in ("chosen", "last", "less"))
    words = ["train", "mlp", "--model-arg", "widths=8", "--data", npz, "--epochs", "1", "--method", "none"]
    assert command([*words, "--out", chosen]) == 0
    assert "validation error" in capsys.readouterr().out
    assert command(["train", chosen, "--holdout", "none", "--method", "se-snn", "--epochs", "2", "--out", last]) == 0
    assert "validation" not in capsys.readouterr().out
    assert load(last).data["holdout"] == "none"
    assert load(last).metrics == {}
    assert command(["prune", last, "--target-flops", "60%", "--final-epochs", "1", "--out", less]) == 0
    assert command(["report", less, "--html", str(tmp_path / "less.html")]) == 0
    assert command(["evaluate", less]) == 0
    assert "on 40 test images" in capsys.readouterr().out
    assert command(["export", less, "--out", str(tmp_path / "less.onnx")]) == 0
    capsys.readouterr()
    assert command(["export", less, "--fp16", "--out", str(tmp_path / "half.onnx")]) == 0
    assert "there are no validation images to measure the error on" in capsys.readouterr().out
    assert command(["restore", less, "--point", "0", "--out", str(tmp_path / "again")]) == 0
    for words, line in (
        (
            ["restore", less, "--keep-best-under", "9", "--out", f"{less}3"],
            "the run kept no validation data; give --point N",
        ),
        (["report", less, "--plot", str(tmp_path / "less.png")], "the run kept no validation data while it was pruned"),
        (["calibrate", less], "keeps no validation images (--holdout none)"),
        (["evaluate", less, "--split", "validation"], "has no validation images; use --split train or test"),
        (["prune", last, "--target-flops", "50%", "--max-error", "9", "--out", f"{less}2"], "leave --holdout none out"),
    ):
        capsys.readouterr()
        assert command(words) != 0
        assert line in capsys.readouterr().err
