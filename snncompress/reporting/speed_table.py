"""Prints measured speeds beside each other. Nothing is computed here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from snncompress.reporting.speed_story import bounds, format_time
from snncompress.reporting.table import Format, csv_text, format_bytes, grid

if TYPE_CHECKING:  # printing needs no torch
    from snncompress.exporting.speed import Speed

LATENCY_HEADER = ("Model", "Runtime", "Batch", "Median", "80% of rounds", "Images/s", "Times faster")
COLUMNS = ("model", "runtime", "batch", "threads", "median_ms", "low_ms", "high_ms", "times_faster")


def speed_json(speed: Speed) -> dict[str, Any]:
    """A measured speed as JSON-able data."""
    return {
        "threads": speed.threads,
        "timings": [
            {
                "runtime": latency.runtime,
                "batch": latency.batch,
                "median_ms": latency.timing.median_ms,
                "low_ms": latency.timing.low_ms,
                "high_ms": latency.timing.high_ms,
                "times_faster": latency.times_faster,
            }
            for latency in speed.latencies
        ],
        "load_ms": speed.load.median_ms,
        "file_bytes": speed.file_bytes,
        "gzip_bytes": speed.gzip_bytes,
        "peak_bytes": {str(batch): size for batch, size in speed.peak_bytes.items()},
        "operators": speed.profile.operators,
        "layers": speed.profile.layers,
        "between_layers": speed.profile.between,
    }


def render_speed(speeds: Sequence[Speed], format: Format) -> str:
    """Prints speeds as text, Markdown or CSV, without a newline at the end."""
    if format is Format.CSV:
        lines = [
            [speed.name, *(timing[column] for column in COLUMNS[1:3]), speed.threads]
            + [timing[column] for column in COLUMNS[4:]]
            for speed in speeds
            for timing in speed_json(speed)["timings"]
        ]
        return csv_text(COLUMNS, lines)
    markdown = format is Format.MARKDOWN
    kinds = [(latency.runtime, latency.batch) for latency in speeds[0].latencies]
    cells = [_latency_cells(speed, index) for index in range(len(kinds)) for speed in speeds]
    batches = list(speeds[0].peak_bytes)
    header = ["Model", "ONNX file", "gzip", "Load", *(f"Peak, batch {batch}" for batch in batches)]
    files = [
        [
            *(speed.name, format_bytes(speed.file_bytes), format_bytes(speed.gzip_bytes)),
            *(format_time(speed.load.median_ms), *(format_bytes(speed.peak_bytes[batch]) for batch in batches)),
        ]
        for speed in speeds
    ]
    parts = [grid(LATENCY_HEADER, cells, left=2, markdown=markdown), grid(header, files, left=1, markdown=markdown)]
    notes = [words for speed in speeds for words in bounds(speed.name, speed_json(speed))] + _conventions(speeds[0])
    return "\n\n".join([*parts, " ".join(notes) if markdown else "\n".join(notes)])


def _latency_cells(speed: Speed, index: int) -> list[str]:
    latency = speed.latencies[index]
    timing = latency.timing
    return [
        speed.name,
        latency.runtime,
        str(latency.batch),
        format_time(timing.median_ms),
        f"{format_time(timing.low_ms)} to {format_time(timing.high_ms)}",
        f"{1000 * latency.batch / timing.median_ms:,.0f}",
        f"{latency.times_faster:.2f}",
    ]


def _conventions(speed: Speed) -> list[str]:
    threads = "one thread (its processor time)" if speed.threads == 1 else f"{speed.threads} threads"
    return [
        f"Times are of a batch on the CPU with {threads}, models measured in turn;",
        "times faster: than the first model, the median over rounds. An original is built anew, with random weights.",
        "Shares of the time are those of onnxruntime's profiler; between layers: what belongs to none, such as pooling",
        "and onnxruntime's reordering of channels. Load: a session of onnxruntime.",
        "Peak: bytes of tensors alive at once in torch's forward pass, weights not counted.",
    ]
