"""What an attack is told: strengths, steps, aims."""

from __future__ import annotations

import math
from dataclasses import dataclass

from snncompress.errors import UsageError

PIXELS = tuple(round(0.05 * step, 10) for step in range(11))  # ε from 0 to 0.5
LENGTHS = tuple(0.5 * step for step in range(11))  # Euclidean lengths from 0 to 5


@dataclass(frozen=True)
class AttackPlan:
    """How strong, how long, and at what.

    Attributes:
        eps: the strengths, in pixels of 0..1: the largest change of a pixel, or for ``cw`` the Euclidean length of the
            change; the attack's own choice when empty.
        targeted: whether an image is to be taken for a class that was drawn for it, not only for a wrong one.
        steps: iterations; the attack's own choice when absent.
        searches: binary searches of ``cw``.
        gradient_samples: samples of the noise in every gradient.
        ensemble_samples: samples of the noise in every prediction; 0 for mean propagation.
        seeds: how often everything is done, each time with other random numbers.
        limit: images to attack, the first ones; all when absent.
    """

    eps: tuple[float, ...] = ()
    targeted: bool = False
    steps: int | None = None
    searches: int = 5
    gradient_samples: int = 20
    ensemble_samples: int = 10
    seeds: int = 1
    limit: int | None = None

    def __post_init__(self) -> None:
        for name, value, least in (
            ("steps", self.steps, 1),
            ("searches", self.searches, 1),
            ("gradient-samples", self.gradient_samples, 1),
            ("ensemble-samples", self.ensemble_samples, 0),
            ("seeds", self.seeds, 1),
            ("limit", self.limit, 1),
        ):
            if value is not None and value < least:
                raise UsageError(f"--{name} {value} is out of range; give {least} or more")
        if not all(0 <= eps < math.inf for eps in self.eps):
            raise UsageError(f"--eps: {min(self.eps):g} is out of range; strengths are 0 or more")
        if list(self.eps) != sorted(set(self.eps)):
            raise UsageError("--eps: give each strength once, the smallest first")


def parse_eps(text: str) -> tuple[float, ...]:
    """Strengths from ``0:0.5:0.05`` (first, last, step), ``0.1,0.3``, or one number."""
    try:
        if ":" in text:
            first, last, step = (float(part) for part in text.split(":"))
            if not (step > 0 and last >= first and (last - first) / step < 1000):
                raise ValueError
            count = math.floor((last - first) / step + 1e-6)
            return tuple(round(first + index * step, 10) for index in range(count + 1))
        return tuple(sorted(float(part) for part in text.split(",")))
    except ValueError:
        raise UsageError(f"--eps '{text}' is neither FIRST:LAST:STEP, such as 0:0.5:0.05, nor 0.1,0.3") from None
