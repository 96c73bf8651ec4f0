"""Features and targets in arrays: numbers of any range, one row a sample, as inputs of shape (features, 1, 1)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from snncompress.data.dataset import Normalization
from snncompress.errors import DataError

Array = npt.NDArray[Any]
# Beyond, one mean and one standard deviation stand for all features: a run writes down every one of them.
MOST_MEASURED = 1000


def read_numbers(array: Array, where: str) -> Tensor:
    """Integers or floats of any range as float32; NaN and what float32 cannot hold is refused."""
    if array.dtype.kind not in "biuf":
        raise DataError(f"{where} is {array.dtype}; give numbers")
    with np.errstate(over="ignore"):
        numbers = torch.from_numpy(array.astype(np.float32))
    if not bool(torch.isfinite(numbers).all()):
        raise DataError(f"{where} contains NaN, infinite values or some beyond 3e38; replace them")
    return numbers


def read_features(array: Array, where: str) -> Tensor:
    """A matrix (N, d) as inputs (N, d, 1, 1)."""
    if array.shape[1] == 0:
        raise DataError(f"{where} has shape {array.shape}: no features; give at least one column")
    return read_numbers(array, where)[:, :, None, None]


def read_labels(array: Array, where: str) -> Tensor:
    """Class numbers as int64, or numbers to predict as float32, one a sample."""
    if array.ndim == 2 and array.shape[1] == 1:  # Keras' way
        array = array[:, 0]
    if array.ndim != 1 or array.dtype.kind not in "iuf":
        raise DataError(
            f"{where}: {array.dtype} of shape {array.shape}; labels must be one integer 0..C−1 for each sample, "
            "or one float to predict"
        )
    if len(array) == 0:
        raise DataError(f"{where} is empty")
    return read_numbers(array, where) if array.dtype.kind == "f" else torch.from_numpy(array.astype(np.int64))


def standardization(features: Tensor) -> Normalization:
    """Mean and standard deviation of every feature of (N, d, 1, 1), or of all together where they are many.

    What is constant is only shifted.
    """
    columns = features.flatten(1) if features.shape[1] <= MOST_MEASURED else features.reshape(-1, 1)
    low, high = columns.aminmax(dim=0)
    columns = columns.cpu().double()
    std = columns.std(dim=0, correction=0).where((low < high).cpu(), 1.0)
    return Normalization(tuple(columns.mean(dim=0).tolist()), tuple(std.tolist()))
