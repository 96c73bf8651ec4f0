"""What a page tells about one run: everything is read and counted here, and nothing is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from snncompress.reporting.attack_charts import attack_charts
from snncompress.reporting.beside import beside_charts
from snncompress.reporting.calibration import calibration_charts
from snncompress.reporting.charts import Bar, BarChart, Chart, Histogram
from snncompress.reporting.life import life_charts, tradeoff_charts
from snncompress.reporting.lineage import Lineage
from snncompress.reporting.published import PublishedTable, find_published
from snncompress.reporting.rows import Row
from snncompress.reporting.speed_story import layer_time_chart
from snncompress.run import Run

if TYPE_CHECKING:
    from snncompress.pruning.spread import Spread

MOST_BARS = 60  # layers in the picture of widths; the table has all
MOST_SPREADS = 12  # histograms
NOWHERE = Lineage(())
NOTICED = 1.005  # times less: anything below is called the same


@dataclass(frozen=True)
class Gain:
    """What a count was, what it is, and how many times smaller that is.

    Attributes:
        name: of the count.
        before: the original's.
        after: the compressed model's.
    """

    name: str
    before: int
    after: int

    @property
    def fold(self) -> float:
        """How many times less; 1 where nothing changed."""
        return self.before / self.after if self.after else float("inf")

    @property
    def percent(self) -> float:
        """What is left."""
        return 100 * self.after / self.before if self.before else 100.0


@dataclass(frozen=True)
class Story:
    """A run beside its original.

    Attributes:
        run: the run.
        rows: all models of the report, the run's own last.
        original: the row of its original.
        gains: by count.
        split: what the two errors below are measured on, or None.
        error: of the run.
        original_error: of its original.
        lineage: the runs that led to it.
        published: the papers' table of its model.
        same_data: whether the run was trained on the data of that table.
        spreads: how importance is spread over what pruning began with.
        notes: what is not shown, and why.
    """

    run: Run
    rows: tuple[Row, ...]
    original: Row
    gains: tuple[Gain, ...]
    split: str | None
    error: float | None
    original_error: float | None
    lineage: Lineage
    published: PublishedTable | None
    same_data: bool
    spreads: tuple[Spread, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def calibration(self) -> dict[str, Any] | None:
        """What ``calibrate`` stored in the run."""
        return self.run.metrics.get("calibration")

    @property
    def row(self) -> Row:
        """The run's own."""
        return self.rows[-1]

    @property
    def latency(self) -> dict[str, Any] | None:
        """What ``report --latency`` measured, if it did (``speed_story.py``)."""
        return self.run.metrics.get("latency")

    @property
    def models(self) -> tuple[Row, ...]:
        """All rows, with the original first where no row is of its size."""
        rows = tuple(row for row in self.rows[:-1] if row != self.original)
        same = any((r.weights, r.flops) == (self.original.weights, self.original.flops) for r in (*rows, self.row))
        return (*(() if same else (self.original,)), *rows, self.row)

    @property
    def others(self) -> list[str]:
        """The names of the other runs of the report."""
        return [row.name for row in self.rows[:-1] if row.layers]

    @property
    def compressed(self) -> bool:
        """Whether there is less of anything than the original had."""
        return any(gain.fold >= NOTICED for gain in self.gains)


@dataclass(frozen=True)
class Pictures:
    """All charts of a story, by what they are about."""

    tradeoff: list[Chart] = field(default_factory=list)
    widths: list[Chart] = field(default_factory=list)
    life: list[Chart] = field(default_factory=list)
    spreads: list[Chart] = field(default_factory=list)
    calibration: list[Chart] = field(default_factory=list)
    attacks: list[Chart] = field(default_factory=list)
    speed: list[Chart] = field(default_factory=list)
    beside: list[Chart] = field(default_factory=list)

    def all(self) -> list[Chart]:
        """In the order of the page."""
        return [
            *self.beside, *self.tradeoff, *self.speed, *self.widths, *self.calibration, *self.attacks, *self.spreads,
            *self.life,
        ]  # fmt: skip


def tell(
    run: Run,
    rows: Sequence[Row],
    original: Row,
    lineage: Lineage = NOWHERE,
    spreads: Sequence[Spread] = (),
    notes: Sequence[str] = (),
) -> Story:
    """Puts together what is known about a run.

    Args:
        run: the run.
        rows: the report's rows, the run's own last.
        original: the row of its original; its error may be unknown.
        lineage: the runs that led to it, with their histories.
        spreads: what its neurons or weights were worth.
        notes: what could not be found out, and why.
    """
    row = rows[-1]
    gains = tuple(Gain(name, getattr(original, name), getattr(row, name)) for name in ("flops", "weights", "memory"))
    size = row.bytes if row.stored_bytes is None else row.stored_bytes
    gains += (Gain("bytes", original.bytes, size),)
    split, error, before = _errors(run, row.error, original.error)
    published = None if run.source is None else find_published(run.source.name)
    same = published is not None and run.data.get("name") == published.data
    return Story(
        run=run, rows=tuple(rows), original=original, gains=gains, split=split, error=error, original_error=before,
        lineage=lineage, published=published, same_data=same,
        spreads=tuple(spreads), notes=tuple(notes),
    )  # fmt: skip


def _errors(run: Run, test: float | None, original: float | None) -> tuple[str | None, float | None, float | None]:
    """The split that both errors are known on, or the run's is, and the two errors."""
    if run.hollow:  # its mean only guesses: the error is that of averaged samples
        for split, before in (("test", original), ("validation", None)):
            if (averaged := averaged_error(run.metrics.get(split, {}))) is not None:
                return split, averaged, before
    points = [point["error"] for point in (run.plan or {}).get("points", ()) if "error" in point]
    known: dict[str, Any] = run.metrics.get("validation", {})
    validation = known.get("error")
    if test is None and validation is None:
        return None, None, None
    if test is None or (original is None and validation is not None and points):
        return "validation", validation, points[0] if points else None
    return "test", test, original


def averaged_error(metrics: dict[str, Any]) -> float | None:
    """The error of averaged samples in what was measured on a split; None if nobody took samples."""
    error: float | None = metrics.get("averaged", {}).get("error", metrics.get("error_averaged"))
    return error


def draw_up(story: Story) -> Pictures:
    """The charts that there is something to show in."""
    points = (story.run.plan or {}).get("points", ())
    return Pictures(
        tradeoff=list(tradeoff_charts(points, story.row.task) if len(points) > 1 else []),
        widths=_width_charts(story.row),
        life=list(life_charts(story.lineage, story.row.task)),
        calibration=calibration_charts(story.calibration) if story.calibration else [],
        spreads=[_histogram(number, spread) for number, spread in enumerate(story.spreads[:MOST_SPREADS], 1)],
        attacks=list(attack_charts(story.run.metrics)),
        speed=_speed_charts(story),
        beside=list(beside_charts(story.models)) if story.others else [],
    )


def _speed_charts(story: Story) -> list[Chart]:
    chart = None if story.latency is None else layer_time_chart(story.latency)
    if chart is None:
        return []
    longest = sorted(chart.bars, key=lambda bar: bar.before)[-MOST_BARS:]
    return [replace(chart, bars=tuple(bar for bar in chart.bars if bar in longest))]


def _width_charts(row: Row) -> list[Chart]:
    bars = [
        Bar(layer["name"], layer["original_neurons"], layer["neurons"])
        for layer in row.layers
        if layer["neurons"] and layer["original_neurons"]
    ]
    if not bars:
        return []
    title = "Neurons that are left"
    if len(bars) > MOST_BARS:
        title += f" ({MOST_BARS} of {len(bars)} layers, those that lost most)"
        lost = sorted(bars, key=lambda bar: bar.after / bar.before)[:MOST_BARS]
        bars = [bar for bar in bars if bar in lost]
    return [BarChart("widths", title, tuple(bars))]


def _histogram(number: int, spread: Spread) -> Histogram:
    """Its key names a file, so that it has nothing but letters in it; the number tells equal ones apart."""
    name = f"{number}-{spread.layer}-{spread.measure.split()[0]}"
    key = "".join(letter if letter.isalnum() else "-" for letter in name)
    return Histogram(
        f"spread-{key.lower()}", spread.layer, spread.measure, spread.edges, spread.kept, spread.removed,
        what="weights" if spread.weights else "neurons", log_y=spread.weights,
    )  # fmt: skip
