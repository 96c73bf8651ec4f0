"""Weights of which most are zero, in little space: compressed sparse rows in a safetensors file.

A tensor of two or more dimensions is held as a matrix with a row for each output: the values that are not zero, the
column of each, and how many each row has; columns and numbers in the smallest unsigned integers that can hold them.
So held is only what becomes smaller by it. Reading gives back every bit: a negative zero is not zero here.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from snncompress.errors import RunError
from snncompress.files import read_tensors, write_tensors

PARTS = ("values", "columns", "rows")
UNSIGNED = ((2**8, torch.uint8), (2**16, torch.uint16), (2**32, torch.uint32))
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def write_model(path: Path, tensors: Mapping[str, Tensor], *, sparse: bool) -> None:
    """Writes a state dict as one file, dense or sparse."""
    if not sparse:
        write_tensors(path, tensors)
        return
    packed, shapes = pack(tensors)
    write_tensors(path, packed, {"csr": shapes})


def read_model(path: Path) -> dict[str, Tensor]:
    """Reads what ``write_model`` wrote, in either form."""
    tensors, meta = read_tensors(path)
    if not isinstance(meta, dict) or "csr" not in meta:
        return tensors
    try:
        return unpack(tensors, meta["csr"])
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise RunError(f"{path} is damaged ({error}); restore it, or run the command again with --force") from error


def pack(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, list[int]]]:
    """Tensors with the sparse ones in three parts, and the shapes of those."""
    packed: dict[str, Tensor] = {}
    shapes: dict[str, list[int]] = {}
    for name, tensor in tensors.items():
        parts = {f"{name}.{part}": values for part, values in _to_rows(tensor).items()}
        if parts and _bytes(*parts.values()) < _bytes(tensor) and tensors.keys().isdisjoint(parts):
            packed |= parts
            shapes[name] = list(tensor.shape)
        else:
            packed[name] = tensor
    return packed, shapes


def unpack(packed: Mapping[str, Tensor], shapes: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors that were packed."""
    parts = {f"{name}.{part}" for name in shapes for part in PARTS}
    dense = {name: tensor for name, tensor in packed.items() if name not in parts}
    for name, shape in shapes.items():
        values, columns, rows = (packed[f"{name}.{part}"] for part in PARTS)
        kind = BITS[values.element_size()]  # torch cannot put values of every type into places
        matrix = torch.zeros(shape, dtype=kind).view(shape[0], -1)
        row = torch.arange(shape[0]).repeat_interleave(rows.to(torch.int64))
        matrix[row, columns.to(torch.int64)] = values.view(kind)
        dense[name] = matrix.view(values.dtype).view(shape)
    return dense


def _to_rows(tensor: Tensor) -> dict[str, Tensor]:
    """The three parts; none of what is no matrix."""
    if tensor.dim() < 2 or not tensor.numel() or tensor.element_size() not in BITS:
        return {}
    matrix = tensor.detach().cpu().contiguous().view(len(tensor), -1)
    kept = matrix.view(BITS[matrix.element_size()]) != 0  # by their bits
    row, column = kept.nonzero(as_tuple=True)
    counts = row.bincount(minlength=len(matrix))
    return dict(zip(PARTS, (matrix[row, column], _smallest(column), _smallest(counts)), strict=True))


def _smallest(numbers: Tensor) -> Tensor:
    largest = int(numbers.max()) if len(numbers) else 0
    return numbers.to(next(kind for limit, kind in UNSIGNED if largest < limit))


def _bytes(*tensors: Tensor) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
