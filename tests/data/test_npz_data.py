from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from snncompress.data.dataset import Normalization
from snncompress.data.sources import load_data
from snncompress.errors import DataError

RANDOM = np.random.RandomState(0)
LABELS = np.arange(20) % 4


def pixels(*shape: int) -> Any:
    return RANDOM.randint(0, 256, shape, dtype=np.uint8)


def write(folder: Path, **arrays: Any) -> str:
    np.savez(folder / "set.npz", **arrays)
    return f"npz:{folder / 'set.npz'}"


@pytest.mark.parametrize("keys", ["train_images train_labels test_images test_labels", "x_train y_train x_test y_test"])
def test_both_ways_to_name_the_parts(tmp_path: Path, keys: str) -> None:
    arrays = dict(zip(keys.split(), [pixels(20, 6, 7), LABELS, pixels(5, 6, 7), LABELS[:5]], strict=True))
    data = load_data(write(tmp_path, **arrays))
    assert data.test is not None
    assert (len(data.train), len(data.validation), len(data.test)) == (18, 2, 5)
    assert data.classes == ("0", "1", "2", "3")
    assert data.image_shape == (1, 6, 7)
    images, labels = data.test.batch(torch.arange(5))
    assert torch.equal(images[:, 0], torch.from_numpy(list(arrays.values())[2]))
    assert labels.tolist() == LABELS[:5].tolist()


def test_a_single_part_gives_up_a_tenth_for_testing(tmp_path: Path) -> None:
    name = write(tmp_path, images=pixels(20, 6, 7), labels=LABELS.reshape(-1, 1))
    one, two = load_data(name, seed=1), load_data(name, seed=2)
    assert (len(one.train), len(one.validation), len(one.test or [])) == (16, 2, 2)
    assert torch.equal(one.test.images, two.test.images)  # type: ignore[union-attr]


def test_channels_come_first_whichever_way_they_are_stored(tmp_path: Path) -> None:
    last = pixels(20, 6, 7, 3)
    one = load_data(write(tmp_path, images=last, labels=LABELS))
    two = load_data(write(tmp_path, images=last.transpose(0, 3, 1, 2), labels=LABELS))
    assert one.image_shape == two.image_shape == (3, 6, 7)
    assert torch.equal(one.train.images, two.train.images)  # type: ignore[attr-defined]
    assert one.normalization == Normalization.parse("imagenet", 3)


def test_floats_stay_floats_and_wide_integers_become_bytes(tmp_path: Path) -> None:
    stored = pixels(20, 6, 7)
    floats = load_data(write(tmp_path, images=stored / 255, labels=LABELS)).train
    integers = load_data(write(tmp_path, images=stored.astype(np.int64), labels=LABELS)).train
    (a, _), (b, _) = (part.batch(torch.arange(16)) for part in (floats, integers))
    assert (a.dtype, b.dtype) == (torch.float32, torch.uint8)
    torch.testing.assert_close(a, b / 255)


def test_normalize_and_image_size_override_the_sets_own(tmp_path: Path) -> None:
    data = load_data(write(tmp_path, images=pixels(20, 6, 7), labels=LABELS), normalize="mnist", image_size=12)
    assert data.normalization == Normalization((0.1307,), (0.3081,))
    assert data.image_shape == (1, 12, 12)
    assert data.train.batch(torch.tensor([0]))[0].shape == (1, 1, 12, 12)


NAN = np.full((20, 6, 7), np.nan)
IMAGES = pixels(20, 6, 7)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"pictures": IMAGES, "labels": LABELS}, "holds pictures, labels; name its arrays train_images and"),
        ({"images": IMAGES, "labels": LABELS[:19]}, "20 images but 19 labels"),
        ({"images": IMAGES, "labels": LABELS.astype(str)}, r"labels\): <U21 .* must be one integer"),
        (
            {"images": IMAGES, "labels": np.eye(4)[LABELS].astype(int)},
            r"shape \(20, 4\).* must be one integer",
        ),
        ({"images": IMAGES, "labels": LABELS + 1}, "no image of class 0"),
        ({"images": IMAGES, "labels": LABELS - 1}, "label -1 is outside"),
        ({"images": IMAGES, "labels": LABELS * 0}, "one class only"),
        ({"images": IMAGES[:0], "labels": LABELS[:0]}, "is empty"),
        ({"images": NAN, "labels": LABELS}, r"\(images\) contains NaN"),
        ({"images": IMAGES / 1.0, "labels": LABELS}, "has values from 0 to 255; images must be"),
        ({"images": IMAGES.astype(int) - 128, "labels": LABELS}, "images must be uint8"),
        ({"images": IMAGES.astype(str), "labels": LABELS}, "images must be uint8"),
        ({"images": IMAGES.reshape(-1), "labels": LABELS}, r"has shape \(840,\)"),
        ({"images": pixels(20, 6, 7, 9), "labels": LABELS}, "at most 4 channels"),
        ({"images": IMAGES.astype(object), "labels": LABELS}, r"cannot read .*set\.npz"),
        ({"x_train": IMAGES, "y_train": LABELS, "x_test": IMAGES}, "has x_test alone"),
        (
            {"x_train": IMAGES, "y_train": LABELS, "x_test": IMAGES[:4], "y_test": LABELS[:4] + 1},
            r"\(test part\): label 4 is outside 0..3",
        ),
        (
            {"x_train": IMAGES, "y_train": LABELS, "x_test": IMAGES[:, 1:], "y_test": LABELS},
            r"test images \(1, 5, 7\)",
        ),
    ],
)
def test_bad_arrays_are_explained(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        load_data(write(tmp_path, **arrays))


def test_damaged_archives_are_explained(tmp_path: Path) -> None:
    name = write(tmp_path, images=IMAGES, labels=LABELS)
    file = tmp_path / "set.npz"
    content = bytearray(file.read_bytes())
    file.write_bytes(content[: len(content) // 2])
    with pytest.raises(DataError, match=r"truncated or no \.npz archive"):
        load_data(name)
    content[300] ^= 255
    file.write_bytes(content)
    with pytest.raises(DataError, match=r"cannot read .*set\.npz"):
        load_data(name)
    with pytest.raises(DataError, match="no such file"):
        load_data("npz:nowhere.npz")
