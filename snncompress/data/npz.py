"""Images and labels in a NumPy archive.

``npz``: npz:PATH, arrays of images and labels in one .npz file

Keys: ``train_images``, ``train_labels``, ``test_images``, ``test_labels``; or ``x_train``, ``y_train``,
``x_test``, ``y_test``; or ``images``, ``labels``. Without a test part a tenth is set aside, the same for
every ``--seed``. Images are integers 0..255 or floats 0..1 of shape (N, H, W), (N, H, W, C) or (N, C, H, W)
with up to four channels; where both of the last two fit, channels come first. Labels are integers 0..C−1.
"""

from __future__ import annotations

import math
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from snncompress.data.dataset import Images
from snncompress.data.request import DataRequest, Parts, check_labels, default_normalization, split_test
from snncompress.errors import DataError

TAKES_PATH = True
# (training images, training labels, test images, test labels)
KEYS = (
    ("train_images", "train_labels", "test_images", "test_labels"),
    ("x_train", "y_train", "x_test", "y_test"),
    ("images", "labels", "test_images", "test_labels"),
)
MAX_CHANNELS = 4
# What NumPy raises for archives that are damaged or hold pickled objects.
DAMAGED = (OSError, EOFError, ValueError, RuntimeError, zipfile.BadZipFile, zlib.error)

Array = npt.NDArray[Any]
Arrays = dict[str, Array]


def load(request: DataRequest) -> Parts:
    """Loads ``npz:PATH``; classes are called by their numbers."""
    assert request.path is not None
    train_part, test_part = read_npz(request.path)
    train: Images = request.hold(*train_part)
    if test_part is None:
        train, test = split_test(train)
    else:
        test = request.hold(*test_part)
    classes = tuple(str(number) for number in range(int(train_part[1].max()) + 1))
    return Parts(classes, default_normalization(train.shape[0]), train, None, test)


def read_npz(file: Path) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor] | None]:
    """Reads and checks (images, labels) of the training part and, where there is one, of the test part."""
    train_arrays, test_arrays = _read_arrays(file)
    images, labels = _to_tensors(file, train_arrays)
    check_labels(labels, len(images), int(labels.max()) + 1, str(file))
    counts = labels.bincount()
    if len(counts) < 2:
        raise DataError(f"{file} has images of one class only; a classifier needs two or more")
    if counts.min() == 0:
        raise DataError(
            f"{file} has labels up to {len(counts) - 1} but no image of class {int(counts.argmin())}; "
            "number the classes 0, 1, 2, ... without a gap"
        )
    if test_arrays is None:
        return (images, labels), None
    test_images, test_labels = _to_tensors(file, test_arrays)
    check_labels(test_labels, len(test_images), len(counts), f"{file} (test part)")
    if test_images.shape[1:] != images.shape[1:]:
        raise DataError(
            f"{file}: training images are {tuple(images.shape[1:])}, "
            f"test images {tuple(test_images.shape[1:])} (channels, height, width); make them alike"
        )
    return (images, labels), (test_images, test_labels)


def _read_arrays(file: Path) -> tuple[Arrays, Arrays | None]:
    """The arrays of images and labels by key: those of the training part, those of the test part."""
    if not file.is_file():
        raise DataError(f"no such file: {file}; write npz:PATH with the path of an .npz file")
    if not zipfile.is_zipfile(file):
        raise DataError(f"{file} is truncated or no .npz archive; write it again with numpy.savez")
    try:
        with np.load(file, allow_pickle=False) as archive:
            keys = next((keys for keys in KEYS if keys[0] in archive.files and keys[1] in archive.files), None)
            if keys is None:
                wanted = " or ".join(f"{keys[0]} and {keys[1]}" for keys in KEYS)
                found = ", ".join(archive.files) or "nothing"
                raise DataError(f"{file} holds {found}; name its arrays {wanted}")
            train: Arrays = {key: archive[key] for key in keys[:2]}
            test: Arrays = {key: archive[key] for key in keys[2:] if key in archive.files}
    except DAMAGED as error:
        raise DataError(f"cannot read {file} ({error}); write it with numpy.savez, without objects") from None
    if len(test) == 1:
        raise DataError(f"{file} has {next(iter(test))} alone; {keys[2]} and {keys[3]} belong together")
    return train, test or None


def _to_tensors(file: Path, arrays: Arrays) -> tuple[Tensor, Tensor]:
    (image_key, images), (label_key, labels) = arrays.items()
    if labels.ndim == 2 and labels.shape[1] == 1:  # Keras' way
        labels = labels[:, 0]
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise DataError(
            f"{file} ({label_key}): {labels.dtype} of shape {labels.shape}; "
            "labels must be one integer 0..C−1 for each image"
        )
    if len(labels) == 0:
        raise DataError(f"{file} ({label_key}) is empty")
    pixels = _pixels(images, f"{file} ({image_key})")
    return _channels_first(pixels, f"{file} ({image_key})"), torch.from_numpy(labels.astype(np.int64))


def _pixels(images: Array, where: str) -> Tensor:
    """Integers 0..255 as uint8, floats 0..1 as float32."""
    if images.dtype.kind not in "iuf":
        raise DataError(f"{where} is {images.dtype}; images must be uint8 0..255 or float 0..1")
    if images.dtype == np.uint8 or images.size == 0:
        return torch.from_numpy(images.astype(np.uint8))
    low, high = float(images.min()), float(images.max())
    largest = 1 if images.dtype.kind == "f" else 255
    if not (math.isfinite(low) and math.isfinite(high)):
        raise DataError(f"{where} contains NaN or infinite values; replace them")
    if low < 0 or high > largest:
        raise DataError(
            f"{where} has values from {low:g} to {high:g}; images must be uint8 0..255 or float 0..1, not normalized"
        )
    return torch.from_numpy(images.astype(np.float32 if largest == 1 else np.uint8))


def _channels_first(images: Tensor, where: str) -> Tensor:
    if images.dim() == 3:
        return images.unsqueeze(1)
    if images.dim() == 4 and 1 <= images.shape[1] <= MAX_CHANNELS:
        return images
    if images.dim() == 4 and 1 <= images.shape[3] <= MAX_CHANNELS:
        return images.permute(0, 3, 1, 2).contiguous()
    raise DataError(
        f"{where} has shape {tuple(images.shape)}; images must be (N, H, W), (N, H, W, C) or (N, C, H, W) "
        f"with at most {MAX_CHANNELS} channels"
    )
