"""Features of which most are zero: held as a CSR matrix, made dense a batch at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from snncompress.data.dataset import hold_labels, take


@dataclass(frozen=True)
class CsrMatrix:
    """Row i has ``values[indptr[i]:indptr[i+1]]`` in the columns ``indices[indptr[i]:indptr[i+1]]``.

    Columns that come twice in a row are added up, as SciPy does.

    Attributes:
        values: float32, one an entry.
        indices: the column of every entry, int32.
        indptr: where each row begins, and the end of the last, int64.
        columns: how many there are.
    """

    values: Tensor
    indices: Tensor
    indptr: Tensor
    columns: int

    def __len__(self) -> int:
        return len(self.indptr) - 1

    @property
    def size_bytes(self) -> int:
        """What its tensors take."""
        return sum(tensor.numel() * tensor.element_size() for tensor in (self.values, self.indices, self.indptr))

    def to(self, device: torch.device) -> CsrMatrix:
        """The matrix on a device."""
        return CsrMatrix(self.values.to(device), self.indices.to(device), self.indptr.to(device), self.columns)

    def take(self, rows: Tensor) -> CsrMatrix:
        """These rows, in this order."""
        rows = rows.to(self.indptr.device)
        starts = self.indptr.index_select(0, rows)
        counts = self.indptr.index_select(0, rows + 1) - starts
        ends = counts.cumsum(0)
        # An entry's place: its number among all that are taken, shifted by where its row begins here and there.
        total = int(counts.sum())
        shifts = (starts - ends + counts).repeat_interleave(counts, output_size=total)
        places = torch.arange(total, device=rows.device) + shifts
        values, indices = self.values.index_select(0, places), self.indices.index_select(0, places)
        return CsrMatrix(values, indices, torch.cat([ends.new_zeros(1), ends]), self.columns)

    def dense(self) -> Tensor:
        """The whole matrix, (rows, columns)."""
        counts = self.indptr.diff()
        rows = torch.arange(len(self), device=counts.device).repeat_interleave(counts, output_size=len(self.values))
        flat = self.values.new_zeros(len(self) * self.columns)
        return flat.index_add_(0, rows * self.columns + self.indices, self.values).view(len(self), self.columns)


class SparseFeatures:
    """Rows of a CSR matrix as inputs of shape (columns, 1, 1), with labels; ``Images`` for training.

    Args:
        matrix: The features, held wherever its tensors are.
        labels: Class numbers, or floats to predict, shape (N,).
        device: Where batches go; they are made dense there.
        names: What a person finds each row by; their numbers when absent.
    """

    def __init__(
        self, matrix: CsrMatrix, labels: Tensor, *, device: torch.device, names: Sequence[object] | None = None
    ) -> None:
        self.names: Sequence[object] = range(len(matrix)) if names is None else names
        self.matrix = matrix
        self.labels = hold_labels(labels, matrix.values.device)
        self.device = device
        self.shape: tuple[int, int, int] = (matrix.columns, 1, 1)

    def __len__(self) -> int:
        return len(self.matrix)

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Features (B, columns, 1, 1) and labels at ``indices``, on the training device."""
        rows = self.matrix.take(indices).to(self.device)  # few bytes travel
        labels = self.labels.index_select(0, indices.to(self.labels.device)).to(self.device)
        return rows.dense().view(len(indices), *self.shape), labels

    def subset(self, indices: Tensor) -> SparseFeatures:
        """The rows at ``indices`` only."""
        labels = self.labels.index_select(0, indices.to(self.labels.device))
        return SparseFeatures(self.matrix.take(indices), labels, device=self.device, names=take(self.names, indices))
