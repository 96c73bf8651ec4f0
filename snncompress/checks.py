"""A verdict about one thing that was looked at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    Attributes:
        name: What.
        passed: The verdict; None for what is only measured.
        detail: What was found, for a person.
        values: The same, JSON-able.
    """

    name: str
    passed: bool | None
    detail: str
    values: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """For scripts."""
        return {"name": self.name, "passed": self.passed, **self.values}
