"""CSR matrices in a NumPy archive: ``data``, ``indices`` and ``indptr``, as SciPy has them, read and checked."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from snncompress.data.features import Array, read_numbers
from snncompress.data.sparse import CsrMatrix
from snncompress.errors import DataError

INDPTR = "indptr"  # by this array a CSR matrix is recognized
COLUMNS = "features"  # the number of columns, where no shape tells it
LARGEST = 2**31  # columns: their numbers are held as int32


def companions(key: str) -> list[str]:
    """The arrays that may stand beside ``train_indptr``."""
    prefix = key.removesuffix(INDPTR)
    return [f"{prefix}data", f"{prefix}indices", f"{prefix}shape", COLUMNS]


def count_columns(file: str, arrays: Mapping[str, Array], keys: list[str]) -> int:
    """How many features there are: by the matrices' shapes, by ``features``, else by the largest index.

    Args:
        file: what messages call the archive.
        arrays: its arrays.
        keys: ``train_indptr`` and, where there is a test part, ``test_indptr``.
    """
    told: dict[str, int] = {}
    for key in keys:
        _check_arrays(file, arrays, key)
        name = f"{key.removesuffix(INDPTR)}shape"
        if name in arrays:
            told[name] = _shape(arrays[name], len(arrays[key]) - 1, f"{file} ({name})")
    if COLUMNS in arrays:
        count = arrays[COLUMNS]
        if count.size != 1 or count.dtype.kind not in "iu":
            raise DataError(f"{file} ({COLUMNS}) is {count.dtype} of shape {count.shape}; give one integer")
        told[COLUMNS] = int(count.item())
    if len(set(told.values())) > 1:
        raise DataError(f"{file}: {', '.join(f'{k} says {v} features' for k, v in told.items())}; make them alike")
    if told:
        columns = next(iter(told.values()))
    else:
        found = [arrays[f"{key.removesuffix(INDPTR)}indices"] for key in keys]
        columns = max((int(indices.max()) + 1 for indices in found if indices.size), default=0)
    if not 0 < columns < LARGEST:
        raise DataError(f"{file} has {columns} features; give 1 to {LARGEST - 1}")
    return columns


def _shape(shape: Array, rows: int, where: str) -> int:
    """The columns that a shape tells."""
    if shape.shape != (2,) or shape.dtype.kind not in "iu":
        raise DataError(f"{where} is {shape.dtype} of shape {shape.shape}; give two integers, rows and columns")
    if int(shape[0]) != rows:
        raise DataError(f"{where} says {int(shape[0])} rows, but indptr has {rows}; write the matrix again")
    return int(shape[1])


def read_csr(file: str, arrays: Mapping[str, Array], key: str, columns: int) -> CsrMatrix:
    """The matrix of ``train_indptr`` and its companions, which ``count_columns`` has checked."""
    prefix = key.removesuffix(INDPTR)
    data, indices, indptr = arrays[f"{prefix}data"], arrays[f"{prefix}indices"], arrays[key]
    if indices.size and not 0 <= int(indices.min()) <= int(indices.max()) < columns:
        wrong = int(indices.min()) if indices.min() < 0 else int(indices.max())
        raise DataError(
            f"{file} ({prefix}indices): column {wrong} is outside 0..{columns - 1}; the features are {columns}"
        )
    values = read_numbers(data, f"{file} ({prefix}data)")
    columns_of = torch.from_numpy(indices.astype(np.int32))
    return CsrMatrix(values, columns_of, torch.from_numpy(indptr.astype(np.int64)), columns)


def _check_arrays(file: str, arrays: Mapping[str, Array], key: str) -> None:
    """Raises unless the three arrays of a matrix fit together."""
    prefix = key.removesuffix(INDPTR)
    for name in (f"{prefix}data", f"{prefix}indices"):
        if name not in arrays:
            raise DataError(f"{file} has {key} but no {name}; a CSR matrix is data, indices and indptr")
    data, indices, indptr = arrays[f"{prefix}data"], arrays[f"{prefix}indices"], arrays[key]
    _check_indptr(indptr, len(data) if data.ndim else 0, f"{file} ({key})")
    where = f"{file} ({prefix}indices)"
    if data.ndim != 1 or indices.shape != data.shape:
        raise DataError(f"{where} has shape {indices.shape}, {prefix}data {data.shape}; each entry needs one of both")
    if indices.dtype.kind not in "iu":
        raise DataError(f"{where} is {indices.dtype}; column numbers must be integers")


def _check_indptr(indptr: Array, entries: int, where: str) -> None:
    if indptr.ndim != 1 or indptr.dtype.kind not in "iu" or len(indptr) < 2:
        raise DataError(f"{where} is {indptr.dtype} of shape {indptr.shape}; give one integer more than there are rows")
    positions = indptr.astype(np.int64)
    if positions[0] != 0 or (np.diff(positions) < 0).any():
        raise DataError(f"{where} does not rise from 0; it says where each row begins in data")
    if positions[-1] != entries:
        raise DataError(f"{where} ends at {positions[-1]}, but there are {entries} entries; write the matrix again")
