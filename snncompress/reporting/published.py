"""What others have published for a model: rows of the papers' tables, from ``published.toml`` beside this file."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib.resources import files


@dataclass(frozen=True)
class PublishedRow:
    """One line of a table; what it leaves out is None.

    Attributes:
        method: what the table calls it.
        error: test error in percent.
        flops: multiplications for one image, in millions.
        size: non-zero weights, in percent of the original's.
        memory: hidden feature maps, in percent of the original's.
    """

    method: str
    error: float
    flops: float
    size: float
    memory: float | None = None


@dataclass(frozen=True)
class PublishedTable:
    """A table of one model on one data set, and the paper that printed it."""

    model: str
    data: str
    source: str
    rows: tuple[PublishedRow, ...]


def find_published(model: str) -> PublishedTable | None:
    """The table of a model of the zoo; None if there is none."""
    return next((table for table in _tables() if table.model == model), None)


def _tables() -> list[PublishedTable]:
    text = files("snncompress.reporting").joinpath("published.toml").read_text(encoding="utf-8")
    return [
        PublishedTable(**{**table, "rows": tuple(PublishedRow(**row) for row in table["rows"])})
        for table in tomllib.loads(text)["tables"]
    ]
