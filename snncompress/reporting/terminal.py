"""Bars and sparklines of block characters, for terminals."""

from __future__ import annotations

import math
from collections.abc import Sequence

EIGHTHS = " ▏▎▍▌▋▊▉█"
STEPS = "▁▂▃▄▅▆▇█"
MOST = 40  # characters of a sparkline


def bar(share: float, width: int = 24) -> str:
    """A bar that is filled to a share, 0 to 1, to an eighth of a character; what is not nothing shows."""
    eighths = round(8 * width * min(max(share, 0.0), 1.0))
    if share > 0 and eighths == 0:
        eighths = 1
    full, rest = divmod(eighths, 8)
    return ("█" * full + (EIGHTHS[rest] if rest else "")).ljust(width)


def sparkline(values: Sequence[float], width: int = MOST) -> str:
    """Values as heights, by their logarithms where they range far; longer series are thinned, both ends kept."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return ""
    if len(finite) > width:
        finite = [finite[round(index * (len(finite) - 1) / (width - 1))] for index in range(width)]
    if min(finite) > 0 and max(finite) > 8 * min(finite):
        finite = [math.log(value) for value in finite]
    low, high = min(finite), max(finite)
    if not high > low:
        return STEPS[0] * len(finite)
    return "".join(STEPS[min(int(len(STEPS) * (value - low) / (high - low)), len(STEPS) - 1)] for value in finite)
