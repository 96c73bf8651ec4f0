"""Verdicts about things that were looked at."""

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


@dataclass(frozen=True)
class Checked:
    """Something with all its checks."""

    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """Whether nothing failed."""
        return not self.failed

    @property
    def failed(self) -> list[str]:
        """The names of the checks that failed."""
        return [check.name for check in self.checks if check.passed is False]

    def verdict(self) -> dict[str, Any]:
        """For scripts: whether all passed, and each of them."""
        return {"passed": self.passed, "checks": [check.to_json() for check in self.checks]}
