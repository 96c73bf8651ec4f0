"""What is learned from the data, and the words and units of its error.

Everything that computes or prints an error asks here, so that no other place tells the tasks apart.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the CLI asks for words only
    from torch import Tensor


class Task(StrEnum):
    """What the model's outputs are for."""

    CLASSIFICATION = "classification"  # a logit a class; the error is the share of wrong answers, in percent
    REGRESSION = "regression"  # one number; the error is the root of the mean squared one, in the target's units

    @classmethod
    def of(cls, targets: Tensor) -> Task:
        """What targets are: one float a sample is a number to predict, all others (class numbers) are classes."""
        single = targets.numel() == len(targets)
        return cls.REGRESSION if targets.is_floating_point() and single else cls.CLASSIFICATION

    @property
    def measure(self) -> str:
        """What its error is called."""
        return "error" if self is Task.CLASSIFICATION else "RMSE"

    @property
    def unit(self) -> str:
        """What stands behind the number."""
        return "%" if self is Task.CLASSIFICATION else ""

    def axis(self, split: str = "") -> str:
        """The label of an axis: ``Validation error (%)``, or ``Validation RMSE``."""
        label = f"{split} {self.measure} ({self.unit})".removesuffix(" ()").strip()
        return label[0].upper() + label[1:]

    @property
    def slack(self) -> float:
        """How far the error of a few batches may rise by chance alone: a point, where it is counted in answers."""
        return 1.0 if self is Task.CLASSIFICATION else 0.0

    def error(self, fault: float) -> float:
        """The error for the mean of what each sample contributes: 1 if it is wrong, or its squared distance."""
        return 100 * fault if self is Task.CLASSIFICATION else math.sqrt(fault)

    def number(self, error: float) -> str:
        """An error, or a difference of two, without its unit."""
        if self is Task.CLASSIFICATION:
            return f"{error:.2f}"
        return f"{error:#.4g}".rstrip(".") if abs(error) < 1e4 else f"{error:,.0f}"

    def show(self, error: float) -> str:
        """An error with its unit: 1.23%, or 0.6512."""
        return self.number(error) + self.unit

    def word(self, error: float) -> str:
        """An error with its name: ``error 1.23%``, or ``RMSE 0.6512``."""
        return f"{self.measure} {self.show(error)}"

    def describe(self, error: float) -> str:
        """The same at more length."""
        accuracy = f", accuracy {100 - error:.2f}%" if self is Task.CLASSIFICATION else ""
        return self.word(error) + accuracy

    def entries(self, error: float | None, prefix: str = "") -> dict[str, float | None]:
        """An error for scripts: ``error``, in the task's unit, and for a regression the same as ``rmse``."""
        names = ["error"] if self is Task.CLASSIFICATION else ["error", "rmse"]
        return {prefix + name: error for name in names}
