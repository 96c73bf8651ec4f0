"""How the file of a model holds its weights; by itself, so that ``--help`` needs no torch."""

from __future__ import annotations

from enum import StrEnum


class Storage(StrEnum):
    """Forms of ``model.safetensors``."""

    DENSE = "dense"
    CSR = "csr"  # the non-zero weights and where they stand
