"""Charts of a run's life, from the histories of the run and of those that it came from."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from snncompress.data.task import Task
from snncompress.reporting.charts import COLOURS, GAP, LineChart, Mark, Series, short, wants_log
from snncompress.reporting.lineage import Lineage, Record, Stage

COUNTS = {"flops": "FLOPs", "size": "Weights", "memory": "Memory (floats)"}  # of a point of the trade-off
EPOCHS = "Epochs"  # the unit of a life whose stages are known to last so many
MOST_LAYERS = len(COLOURS)  # lines in one chart
BANDED_LAYERS = 4  # more bands would hide each other
# What a layer's noise is summed up by: (middle, lower end, upper end, what the axis says).
NOISE = (
    ("log_sigma_50", "log_sigma_25", "log_sigma_75", "Entropy: median log σ"),
    ("log_alpha_mean", "log_alpha_min", "log_alpha_max", "log α: mean, least, largest"),
    ("log_alpha", "", "", "Mean log α"),
    ("log_sigma_mean", "log_sigma_min", "log_sigma_max", "log σ: mean, least, largest"),
)


@dataclass(frozen=True)
class Life:
    """All records of a line of runs on one axis.

    Attributes:
        moments: place and record, a list for each stage.
        dividers: where each stage begins, and its name.
        unit: of the axis.
    """

    moments: tuple[tuple[tuple[float, Record], ...], ...]
    dividers: tuple[tuple[float, str], ...]
    unit: str


def lay_out(lineage: Lineage) -> Life:
    """Puts the stages one after the other: by epochs, or by steps where nobody knows how many make an epoch."""
    stages = [stage for stage in lineage.stages if stage.history]
    lengths = [count_examples_of(stage, stages) for stage in stages]
    known = all(lengths) and all(stage.batch_size for stage in stages)
    moments, dividers, begin = [], [], 0.0
    for stage, examples in zip(stages, lengths, strict=True):
        scale = (stage.batch_size or 0) / (examples or 1) if known else 1.0
        places = [(begin + scale * record.get("step", 0), record) for record in stage.history]
        moments.append(tuple(places))
        dividers.append((begin, stage.name))
        begin = max(place for place, _ in places)
    return Life(tuple(moments), tuple(dividers), EPOCHS if known else "Steps")


def count_examples_of(stage: Stage, stages: Sequence[Stage]) -> float | None:
    """Training images in an epoch of a stage, by any history on the same data that has epochs; else None."""
    for other in stages:
        if other.header.get("data") != stage.header.get("data") or not other.batch_size:
            continue
        for record in other.history:
            if record.get("epoch") and record.get("step"):
                return float(record["step"] / record["epoch"] * other.batch_size)
    return None


def life_charts(lineage: Lineage, task: Task) -> list[LineChart]:
    """Loss, error, noise and zeros over the whole life; a chart that would be empty is left out."""
    life = lay_out(lineage)
    axis = task.axis()
    charts = [
        _chart(life, "loss", "Loss", "Loss", {
            "training": lambda r: r.get("loss"),
            "validation": lambda r: r.get("nll" if "phase" in r else "validation_nll"),
            "penalty of the noise": lambda r: r.get("penalty") or None,
        }),
        _chart(life, "error", axis, axis, {
            "training": lambda r: None if "phase" in r else r.get("error"),
            "validation": lambda r: r.get("error" if "phase" in r else "validation_error"),
            "validation, one sample": lambda r: r.get("validation_error_one_sample"),
            "validation, samples averaged": lambda r: r.get("validation_error_averaged"),
        }),
        *noise_charts(life),
    ]  # fmt: skip
    return [chart for chart in charts if chart.series]


Value = Callable[[Record], float | None]


def _chart(life: Life, key: str, title: str, label: str, values: Mapping[str, Value]) -> LineChart:
    series = [_series(life, name, value, colour) for colour, (name, value) in enumerate(values.items())]
    shown = tuple(each for each in series if each is not None)
    log = wants_log([y for each in shown for y in each.ys])
    return LineChart(key, title, life.unit, label, shown, dividers=life.dividers, log_y=log)


def _series(life: Life, name: str, value: Value, colour: int) -> Series | None:
    """A line that is broken between stages; None if there is nothing to draw."""
    xs: list[float] = []
    ys: list[float] = []
    for moments in life.moments:
        for place, record in moments:
            found = value(record)
            if isinstance(found, int | float) and math.isfinite(found):
                xs.append(place)
                ys.append(float(found))
        if xs and not math.isnan(ys[-1]):
            xs.append(xs[-1])
            ys.append(GAP)
    return Series(name, tuple(xs), tuple(ys), colour) if xs else None


def noise_charts(life: Life) -> list[LineChart]:
    """A line a layer: its entropy or log α, and its share of zeros where the method makes some."""
    layers = _layers(life)
    charts = []
    for middle, low, high, words in NOISE:
        found = [_noise_series(life, layer, middle, low, high) for layer in layers]
        series = pick_spread([each for each in found if each is not None])
        if series:
            if len(series) > BANDED_LAYERS:
                series = [Series(s.name, s.xs, s.ys, s.colour) for s in series]
            charts.append(LineChart(middle, f"Noise of {_of(series, layers)}", life.unit, words, tuple(series)))
    zeros = [_noise_series(life, layer, "sparsity", "", "", 100.0) for layer in layers]
    series = pick_spread([each for each in zeros if each is not None])
    if series:
        charts.append(
            LineChart("zeros", f"Zeros of {_of(series, layers)}", life.unit, "Zero weights (%)", tuple(series))
        )
    return charts


def _of(series: Sequence[Series], layers: Sequence[str]) -> str:
    if len(series) == 1:
        return series[0].name
    return "each layer" if len(series) == len(layers) else f"{len(series)} of {len(layers)} layers"


def _layers(life: Life) -> list[str]:
    names = (name for moments in life.moments for _, record in moments for name in record.get("noise", ()))
    return list(dict.fromkeys(names))


def _noise_series(life: Life, layer: str, middle: str, low: str, high: str, factor: float = 1.0) -> Series | None:
    def value(key: str) -> Value:
        def read(record: Record) -> float | None:
            found = record.get("noise", {}).get(layer, {}).get(key)
            return None if found is None else factor * found

        return read

    line = _series(life, layer, value(middle), 0)
    if line is None or not low:
        return line
    ends = [_series(life, layer, value(key), 0) for key in (low, high)]
    lower, upper = (None if end is None or end.xs != line.xs else end.ys for end in ends)
    return Series(layer, line.xs, line.ys, 0, None if lower is None or upper is None else (lower, upper))


def pick_spread(series: list[Series]) -> list[Series]:
    """Not more lines than there are colours, from the first layer to the last, each in its own colour."""
    if len(series) > MOST_LAYERS:
        series = [series[round(index * (len(series) - 1) / (MOST_LAYERS - 1))] for index in range(MOST_LAYERS)]
    return [Series(s.name, s.xs, s.ys, colour, s.band) for colour, s in enumerate(series)]


def tradeoff_charts(points: Sequence[Record], task: Task) -> list[LineChart]:
    """Error against FLOPs, weights and memory as pruning went on."""
    points = [point for point in points if "error" in point]
    charts = []
    for key, words in COUNTS.items():
        if not points or not all(point.get(key) for point in points):
            continue
        costs, errors = tuple(float(p[key]) for p in points), tuple(float(p["error"]) for p in points)
        said = f"{task.show(errors[-1])} at {short(costs[-1])}"
        marks = (
            Mark("where pruning began", costs[0], errors[0], 6, square=True),
            Mark("the compressed model", costs[-1], errors[-1], 1, said),
        )
        chart = LineChart(
            f"tradeoff-{key}", f"Against {words.partition(' ')[0]}", words, task.axis("validation"),
            (Series("on the way", costs, errors, 0),), marks, level=(errors[0], f"{task.measure} at first"),
            log_x=max(costs) > min(costs), log_y=wants_log(errors),
        )  # fmt: skip
        charts.append(chart)
    return charts
