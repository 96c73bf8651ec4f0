"""What is shown of a run's calibration, from what ``calibrate`` stored: a table, reliability diagrams, a curve."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from snncompress.reporting.charts import Chart, LineChart, ReliabilityChart, Series

HEADER = ("", "ECE", "NLL", "Brier", "error", "T")
SCALINGS = {"none": "as it is", "temperature": "temperature", "sample-wise": "temperature · Σσ"}

Record = Mapping[str, Any]


def table_lines(record: Record) -> list[tuple[str, ...]]:
    """A line of words for each way to predict, under ``HEADER``."""
    return [
        (
            _words(record, row), f"{row['ece']:.2f}%", f"{row['nll']:.4f}", f"{row['brier']:.4f}",
            f"{row['error']:.2f}%", "" if row["temperature"] is None else f"{row['temperature']:.4g}",
        )
        for row in record["rows"]
    ]  # fmt: skip


def _words(record: Record, row: Record) -> str:
    way = "mean" if row["prediction"] == "mean" else f"{record['draws']} averaged"
    return f"{way}, {SCALINGS[row['scaling']]}"


def calibration_charts(record: Record) -> list[Chart]:
    """Reliability before and after, and the calibration error against the number of samples."""
    charts: list[Chart] = []
    for key, row in zip(("before", "after"), before_and_after(record), strict=True):
        bins = [tuple(row["reliability"][name]) for name in ("counts", "confidences", "accuracies")]
        title = f"{_words(record, row).capitalize()}: ECE {row['ece']:.2f}%"
        charts.append(ReliabilityChart(f"reliability-{key}", title, *bins))
    curve = record["curve"]
    if len(curve.get("draws", ())) > 1:
        series = tuple(
            Series(SCALINGS[name], tuple(curve["draws"]), tuple(values), colour)
            for colour, (name, values) in enumerate((key, each) for key, each in curve.items() if key != "draws")
        )
        charts.append(LineChart("ece-samples", "Averaging samples", "Samples averaged", "ECE (%)", series, log_x=True))
    return charts


def before_and_after(record: Record) -> tuple[Record, Record]:
    """The first way to predict, as it is, and the one that is used: what exports take, else the last."""
    rows = record["rows"]
    chosen = [row for row in rows if (row["prediction"], row["scaling"]) == ("mean", record["chosen"])]
    return rows[0], chosen[0] if chosen else rows[-1]
