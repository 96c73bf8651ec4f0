"""Images or features, dense or sparse, with class labels or numbers to predict, in a NumPy archive.

``npz``: npz:PATH, arrays of images, features or CSR features, and of labels or numbers to predict, in one .npz file

Keys: ``train_images``, ``train_labels``, ``test_images``, ``test_labels``; or ``x_train``, ``y_train``, ``x_test``,
``y_test``; or ``images``, ``labels``. ``features`` may stand for ``images``, ``targets`` for ``labels``. Without a test
part a tenth is set aside, the same for every ``--seed``.

Images are integers 0..255 or floats 0..1 of shape (N, H, W), (N, H, W, C) or (N, C, H, W) with up to four channels;
where both of the last two fit, channels come first.

Features are a matrix (N, d) of numbers of any range, which become inputs of shape (d, 1, 1); unless ``--normalize``
says otherwise, each is normalized by its mean and standard deviation in the training part (beyond 1,000 features, all
by one of both). Sparse ones are a CSR matrix as SciPy has it, ``train_data``, ``train_indices``, ``train_indptr``, the
same with ``test_`` or without a prefix; ``train_shape`` or ``features`` may tell the number of columns. They are not
normalized.

Labels are integers 0..C−1. Floats are numbers to predict: the task is a regression, in their own units.
"""

from __future__ import annotations

import math
import zipfile
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from snncompress.data.csr import INDPTR, companions, count_columns, read_csr
from snncompress.data.dataset import MOST_CHANNELS, Images, Normalization, TensorImages, has_pixels
from snncompress.data.features import Array, read_features, read_labels, standardization
from snncompress.data.request import DataRequest, Parts, check_labels, default_normalization, split_test
from snncompress.data.sparse import CsrMatrix, SparseFeatures
from snncompress.data.task import Task
from snncompress.errors import DataError, UsageError

TAKES_PATH = True
INPUTS, LABELS = ("images", INDPTR, "features"), ("labels", "targets")
# (training inputs, training labels, test inputs, test labels)
KEYS = (
    *((f"train_{x}", f"train_{y}", f"test_{x}", f"test_{y}") for x in INPUTS for y in LABELS),
    ("x_train", "y_train", "x_test", "y_test"),
    *((x, y, f"test_{x}", f"test_{y}") for x in INPUTS for y in LABELS),
)
# What NumPy raises for archives that are damaged or hold pickled objects.
DAMAGED = (OSError, EOFError, ValueError, RuntimeError, zipfile.BadZipFile, zlib.error)

Arrays = dict[str, Array]


class Part(NamedTuple):
    """Inputs (N, C, H, W), or a sparse matrix (N, features), and their labels (N,)."""

    inputs: Tensor | CsrMatrix
    labels: Tensor


def load(request: DataRequest) -> Parts:
    """Loads ``npz:PATH``; classes are called by their numbers."""
    assert request.path is not None
    train_part, test_part = read_npz(request.path)
    train = hold(request, train_part)
    if test_part is None:
        train, test = split_test(train)
    else:
        test = hold(request, test_part)
    classes: tuple[str, ...] = ("target",)
    if Task.of(train_part.labels) is Task.CLASSIFICATION:
        classes = tuple(str(number) for number in range(int(train_part.labels.max()) + 1))
    return Parts(classes, _normalization(train), train, None, test)


def hold(request: DataRequest, part: Part) -> Images:
    """Puts a part on the training device if the budget allows."""
    inputs, labels = part
    if request.image_size is not None and not has_pixels(_shape(part)):
        raise UsageError(f"--image-size {request.image_size}: {request.path} holds features, not images; leave it out")
    if isinstance(inputs, Tensor):
        return request.hold(inputs, labels)
    fits = inputs.size_bytes <= request.memory_budget_bytes
    return SparseFeatures(inputs.to(request.device) if fits else inputs, labels, device=request.device)


def _normalization(train: Images) -> Normalization:
    if has_pixels(train.shape):
        return default_normalization(train.shape[0])
    # Shifted by a mean, sparse features would be sparse no more.
    return standardization(train.images) if isinstance(train, TensorImages) else Normalization((0.0,), (1.0,))


def read_npz(file: Path) -> tuple[Part, Part | None]:
    """Reads and checks the training part and, where there is one, the test part."""
    arrays, keys = _read_arrays(file)
    pairs = [pair for pair in (keys[:2], keys[2:]) if pair[0] in arrays]
    columns = 0
    if keys[0].endswith(INDPTR):
        columns = count_columns(str(file), arrays, [pair[0] for pair in pairs])
    train, *rest = (_read_part(file, arrays, *pair, columns) for pair in pairs)
    _check_parts(file, train, rest)
    return train, rest[0] if rest else None


def _check_parts(file: Path, train: Part, rest: list[Part]) -> None:
    """Raises unless there is a label of one kind for each input, classes have no gap, and both parts are alike."""
    parts = {str(file): train} | {f"{file} (test part)": part for part in rest}
    noun = "image" if has_pixels(_shape(train)) else "row"
    for where, part in parts.items():
        if len(part.inputs) != len(part.labels):
            raise DataError(f"{where}: {len(part.inputs)} {noun}s but {len(part.labels)} labels; each needs one")
    if len({part.labels.dtype for part in parts.values()}) > 1:
        raise DataError(
            f"{file}: some labels are integers (classes), some floats (numbers to predict); make them alike"
        )
    if Task.of(train.labels) is Task.CLASSIFICATION:
        check_labels(train.labels, len(train.inputs), int(train.labels.max()) + 1, str(file))
        counts = train.labels.bincount()
        if len(counts) < 2:
            raise DataError(f"{file} has {noun}s of one class only; a classifier needs two or more")
        if counts.min() == 0:
            raise DataError(
                f"{file} has labels up to {len(counts) - 1} but no {noun} of class {int(counts.argmin())}; "
                "number the classes 0, 1, 2, ... without a gap"
            )
        for part in rest:
            check_labels(part.labels, len(part.inputs), len(counts), f"{file} (test part)")
    for part in rest:
        if (shape := _shape(train)) != (other := _shape(part)):
            raise DataError(
                f"{file}: training {noun}s are {shape}, test {noun}s {other} (channels, height, width); make them alike"
            )


def _shape(part: Part) -> tuple[int, ...]:
    return tuple(part.inputs.shape[1:]) if isinstance(part.inputs, Tensor) else (part.inputs.columns, 1, 1)


def _read_arrays(file: Path) -> tuple[Arrays, tuple[str, str, str, str]]:
    """The arrays by key, and the keys of the two parts."""
    if not file.is_file():
        raise DataError(f"no such file: {file}; write npz:PATH with the path of an .npz file")
    if not zipfile.is_zipfile(file):
        raise DataError(f"{file} is truncated or no .npz archive; write it again with numpy.savez")
    try:
        with np.load(file, allow_pickle=False) as archive:
            keys = next((keys for keys in KEYS if keys[0] in archive.files and keys[1] in archive.files), None)
            if keys is None:
                raise DataError(
                    f"{file} holds {', '.join(archive.files) or 'nothing'}; name its arrays train_images and "
                    "train_labels, x_train and y_train, or images and labels (features and targets do as well)"
                )
            beside = [name for key in keys if key.endswith(INDPTR) for name in companions(key)]
            arrays: Arrays = {key: archive[key] for key in (*keys, *beside) if key in archive.files}
    except DAMAGED as error:
        raise DataError(f"cannot read {file} ({error}); write it with numpy.savez, without objects") from None
    test = [key for key in keys[2:] if key in arrays]
    if len(test) == 1:
        raise DataError(f"{file} has {test[0]} alone; {keys[2]} and {keys[3]} belong together")
    return arrays, keys


def _read_part(file: Path, arrays: Arrays, input_key: str, label_key: str, columns: int) -> Part:
    labels = read_labels(arrays[label_key], f"{file} ({label_key})")
    where = f"{file} ({input_key})"
    if input_key.endswith(INDPTR):
        return Part(read_csr(str(file), arrays, input_key, columns), labels)
    if arrays[input_key].ndim == 2:
        return Part(read_features(arrays[input_key], where), labels)
    return Part(_channels_first(_pixels(arrays[input_key], where), where), labels)


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
    if images.dim() == 4 and 1 <= images.shape[1] <= MOST_CHANNELS:
        return images
    if images.dim() == 4 and 1 <= images.shape[3] <= MOST_CHANNELS:
        return images.permute(0, 3, 1, 2).contiguous()
    raise DataError(
        f"{where} has shape {tuple(images.shape)}; images must be (N, H, W), (N, H, W, C) or (N, C, H, W) "
        f"with at most {MOST_CHANNELS} channels, features (N, d)"
    )
