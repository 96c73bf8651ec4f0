"""What a picture shows, before anything is drawn: ``svg.py`` draws it for the page, ``png.py`` for files."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

# Okabe and Ito's palette, told apart by people with any kind of colour vision; lines differ in their dashes, too.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#666666")
DASHES = ((), (6, 3), (2, 2), (8, 3, 2, 3), (4, 2), (1, 3), (10, 4))
GAP = math.nan  # as a y, ends a line: the next stage begins elsewhere
LOG_FROM = 8.0  # a range of so many times is easier to read on a logarithmic axis


@dataclass(frozen=True)
class Series:
    """A line, broken where a y is not a number.

    Attributes:
        name: for the legend.
        xs: where.
        ys: how much.
        colour: its number in the palette, and its dashes'.
        band: lower and upper ends of a band around the line.
    """

    name: str
    xs: tuple[float, ...]
    ys: tuple[float, ...]
    colour: int = 0
    band: tuple[tuple[float, ...], tuple[float, ...]] | None = None


@dataclass(frozen=True)
class Mark:
    """A point that stands out, with its name and what it says of itself.

    Attributes:
        name: for the legend.
        x: where.
        y: how much.
        colour: its number in the palette.
        text: what stands beside it.
        square: a square instead of a diamond.
    """

    name: str
    x: float
    y: float
    colour: int
    text: str = ""
    square: bool = False


@dataclass(frozen=True)
class LineChart:
    """Lines over a common axis.

    Attributes:
        key: names its file.
        title: what it shows.
        x_label: of the horizontal axis.
        y_label: of the vertical one.
        series: the lines.
        marks: points that stand out.
        level: a horizontal line and its name.
        dividers: vertical lines between stages, and the stages' names from there on.
        log_x: whether the horizontal axis is logarithmic.
        log_y: the same of the vertical one.
    """

    key: str
    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    marks: tuple[Mark, ...] = ()
    level: tuple[float, str] | None = None
    dividers: tuple[tuple[float, str], ...] = ()
    log_x: bool = False
    log_y: bool = False

    def xs(self) -> list[float]:
        """All places that must be seen."""
        return [x for series in self.series for x in series.xs] + [mark.x for mark in self.marks]

    def ys(self) -> list[float]:
        """All heights that must be seen."""
        found = [y for series in self.series for y in series.ys] + [mark.y for mark in self.marks]
        found += [y for series in self.series if series.band for end in series.band for y in end]
        found += [] if self.level is None else [self.level[0]]
        return [y for y in found if math.isfinite(y) and (y > 0 or not self.log_y)]  # zeros lie on a log axis's floor


@dataclass(frozen=True)
class Bar:
    """A layer's width before and after, or its time; ``words`` stand beside it in place of the two numbers."""

    name: str
    before: float
    after: float
    words: str = ""

    @property
    def told(self) -> str:
        """What stands beside it."""
        return self.words or f"{self.after:,} of {self.before:,}"


@dataclass(frozen=True)
class BarChart:
    """How much is left of each layer.

    Attributes:
        key: names its file.
        title: what it shows.
        bars: the layers.
        keys: what the two parts of a bar are called.
        x_label: of the axis, in percent.
        scaled: bars are as long as what they stand for; else every layer's is of the same length.
    """

    key: str
    title: str
    bars: tuple[Bar, ...]
    keys: tuple[str, str] = ("left", "removed")
    x_label: str = "Neurons left (%)"
    scaled: bool = False

    def shares(self) -> list[tuple[float, float]]:
        """For each bar, how far what was and what is left reach, of the whole width."""
        longest = max(max(bar.before, bar.after) for bar in self.bars) if self.scaled else None
        return [
            (bar.before / (longest or bar.before), min(bar.after / (longest or bar.before), 1)) for bar in self.bars
        ]


@dataclass(frozen=True)
class Histogram:
    """How often values occur.

    Attributes:
        key: names its file.
        title: what it shows.
        x_label: what is counted.
        edges: of the bins, one more than there are bins.
        kept: how many there are in each, of what stayed, or of all where nobody knows what went.
        removed: how many there are of what went; None where nobody knows.
        what: what is counted: neurons, or weights.
        log_y: whether the vertical axis is logarithmic.
    """

    key: str
    title: str
    x_label: str
    edges: tuple[float, ...]
    kept: tuple[int, ...]
    removed: tuple[int, ...] | None
    what: str = "neurons"
    log_y: bool = False


@dataclass(frozen=True)
class Piece:
    """A part of a bar: its left end, its lower and upper end, its colour in the palette, how dark it is, its words."""

    left: float
    bottom: float
    top: float
    colour: int
    strength: float
    words: str


SURENESS = ("right and sure", "more sure than right", "less sure than right")  # what the colours of the pieces mean


@dataclass(frozen=True)
class ReliabilityChart:
    """Accuracy against confidence, bin by bin: on the diagonal, a model is as sure as it is right.

    Attributes:
        key: names its file.
        title: what it shows.
        counts: predictions in each bin; bins with few are drawn paler.
        confidences: their mean confidence, 0..1.
        accuracies: the share of right ones, 0..1.
    """

    key: str
    title: str
    counts: tuple[int, ...]
    confidences: tuple[float, ...]
    accuracies: tuple[float, ...]

    def pieces(self) -> list[Piece]:
        """Two for each bin that is not empty: up to the lower of accuracy and confidence, and the gap between them."""
        width, most = 1 / len(self.counts), max(self.counts, default=1)
        found = []
        bins = zip(self.counts, self.confidences, self.accuracies, strict=True)
        for index, (count, confidence, accuracy) in enumerate(bins):
            if count:
                low, high = sorted((confidence, accuracy))
                strength = 0.3 + 0.7 * math.sqrt(count / most)
                words = f"{count:,} predictions: confidence {confidence:.1%}, accuracy {accuracy:.1%}"
                found.append(Piece(index * width, 0.0, low, 0, strength, words))
                found.append(Piece(index * width, low, high, 1 if confidence > accuracy else 2, strength, words))
        return found


Chart = LineChart | BarChart | Histogram | ReliabilityChart


def wants_log(values: Sequence[float]) -> bool:
    """Whether values are better read on a logarithmic axis; zeros would lie on its floor."""
    positive = [value for value in values if math.isfinite(value) and value != 0]
    return bool(positive) and min(positive) > 0 and max(positive) > LOG_FROM * min(positive)


def ticks(low: float, high: float, log: bool = False, most: int = 6) -> list[float]:
    """Round numbers from ``low`` to ``high``: 1, 2 and 5 times powers of ten."""
    return _log_ticks(low, high, most) if log else _linear_ticks(low, high, most)


def _linear_ticks(low: float, high: float, most: int) -> list[float]:
    if not high > low:
        return [low]
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(index * step, 12) for index in range(first, last + 1)]


def _log_ticks(low: float, high: float, most: int) -> list[float]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1, 2, 5), (1, 3), (1,)):
        found = [f * 10.0**power for power in powers for f in factors if low <= f * 10.0**power * (1 + 1e-9)]
        found = [value for value in found if value <= high * (1 + 1e-9)]
        if len(found) <= most:
            break
    if len(found) < 2:  # a narrow range
        return _linear_ticks(low, high, most)
    return found[:: -(-len(found) // most)]


def short(value: float, digits: int = 3) -> str:
    """A number beside an axis: 1.2M, 34k, 560, 0.05."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.{digits}g}{letter}"
    return f"{value:.{digits}g}".replace("-", "−")


def labels(values: Sequence[float]) -> list[str]:
    """Numbers beside an axis, with as many digits as tell them apart."""
    for digits in range(3, 9):
        found = [short(value, digits) for value in values]
        if len(set(found)) == len(set(values)):
            break
    return found
