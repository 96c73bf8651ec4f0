"""What others have published: rows of the papers' tables, from ``published.toml`` beside this file."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from importlib.resources import files
from typing import Any


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


class Printed(float):
    """A number that is shown as the paper prints it: 0.80 is not 0.8."""

    text: str

    def __new__(cls, text: str) -> Printed:
        """Of the digits in the file."""
        number = super().__new__(cls, text)
        number.text = text
        return number

    def __str__(self) -> str:
        return self.text


def find_published(model: str) -> PublishedTable | None:
    """The table of a model's costs; None if there is none."""
    table = next((table for table in published_tables().values() if table.get("model") == model), None)
    if table is None:
        return None
    known = [field.name for field in fields(PublishedRow)]
    rows = tuple(PublishedRow(**{key: row[key] for key in known if key in row}) for row in table["rows"])
    return PublishedTable(model, table["data"], table["source"], rows)


def published_tables() -> dict[str, dict[str, Any]]:
    """All tables by name: ``title``, ``columns``, ``source`` and ``rows``, whose numbers are shown as printed."""
    text = files("snncompress.reporting").joinpath("published.toml").read_text(encoding="utf-8")
    return {table["name"]: table for table in tomllib.loads(text, parse_float=Printed)["tables"]}
