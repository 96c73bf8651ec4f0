"""What a page and a terminal say of a model's speed, from the record that ``report --latency`` keeps in the run.

The record holds ``machine``, ``own`` and, where the original was measured in the same run, ``original`` and
``against``, its name; both speeds are as ``speed_table.speed_json`` gives them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from snncompress.reporting.charts import Bar, BarChart
from snncompress.reporting.table import UNKNOWN, format_bytes

Record = Mapping[str, Any]
SHOWN_SHARES = 4
SMALL = 0.02  # shares below say nothing
FIXED = 0.1  # what a call costs however small its batch is, of its time: from here on it is worth a sentence
BETWEEN = "in between"  # layers


def format_time(milliseconds: float) -> str:
    """A duration for people: 28.4 µs, 1.5 ms."""
    return f"{1000 * milliseconds:.3g} µs" if milliseconds < 0.9995 else f"{milliseconds:,.4g} ms"


def name_shares(shares: Mapping[str, float]) -> str:
    """The largest shares: ``Conv 62%, MaxPool 21%``."""
    shown = [f"{name} {share:.0%}" for name, share in shares.items() if share >= SMALL][:SHOWN_SHARES]
    return ", ".join(shown) or UNKNOWN


def find_timing(speed: Record, *, largest: bool, runtime: str = "onnxruntime") -> Record:
    """The timing of a runtime's largest or smallest batch."""
    timings = sorted((t for t in speed["timings"] if t["runtime"] == runtime), key=lambda timing: timing["batch"])
    found: Record = timings[-1 if largest else 0]
    return found


def bounds(name: str, speed: Record) -> list[str]:
    """What keeps a model from being faster, in sentences."""
    batch = find_timing(speed, largest=True)["batch"]
    words = [
        f"{name} spends its time (onnxruntime, batch {batch}) in {name_shares(speed['operators'])}; "
        f"by layer in {name_shares(_by_layer(speed))}."
    ]
    return [*words, *call_words(speed)]


def call_words(speed: Record) -> list[str]:
    """What a call costs whatever its batch, if that is worth a sentence: time = cost of a call + batch · arithmetic."""
    batch, alone = find_timing(speed, largest=True), find_timing(speed, largest=False)
    if alone["batch"] == batch["batch"]:
        return []
    each = (batch["median_ms"] - alone["median_ms"]) / (batch["batch"] - alone["batch"])
    fixed = 1 - alone["batch"] * each / alone["median_ms"]
    if not FIXED <= fixed <= 1:
        return []
    return [
        f"At batch {alone['batch']}, {fixed:.0%} of the {format_time(alone['median_ms'])} are what any call costs, "
        f"however small its batch is; an image more takes {format_time(each)}."
    ]


def speed_lines(record: Record) -> Iterator[tuple[str, ...]]:
    """A header; then for each runtime and batch times faster and the original's time, if known, time and images/s."""
    known = record.get("original") is not None
    yield ("Runtime", "Batch", *(("Times faster", "Original") if known else ()), "Now", "Images/s")
    before = record["original"]["timings"] if known else record["own"]["timings"]
    for was, now in zip(before, record["own"]["timings"], strict=True):
        compared = (f"{now['times_faster']:.1f}×", format_time(was["median_ms"])) if known else ()
        images = f"{1000 * now['batch'] / now['median_ms']:,.0f}"
        yield (now["runtime"], str(now["batch"]), *compared, format_time(now["median_ms"]), images)


def operator_lines(record: Record) -> Iterator[tuple[str, ...]]:
    """A header; then the kinds of operators that take the time, the largest first, beside the original if known."""
    before, batch = record.get("original"), find_timing(record["own"], largest=True)["batch"]
    yield _pair_of(f"Operators, batch {batch}", None if before is None else "Original", "Now")
    for kind, share in record["own"]["operators"].items():
        if share >= SMALL:
            was = None if before is None else f"{before['operators'].get(kind, 0.0):.0%}"
            yield _pair_of(kind, was, f"{share:.0%}")


def file_lines(record: Record) -> Iterator[tuple[str, ...]]:
    """A header; then what else was measured, beside the original if known."""
    before, own = record.get("original"), record["own"]
    yield _pair_of("File and memory", None if before is None else "Original", "Now")
    batches = sorted(own["peak_bytes"], key=int)
    for what, show in (
        ("ONNX file", lambda speed: format_bytes(speed["file_bytes"])),
        ("the same, gzipped", lambda speed: format_bytes(speed["gzip_bytes"])),
        ("loading it", lambda speed: format_time(speed["load_ms"])),
        *((f"peak memory, batch {b}", lambda speed, b=b: format_bytes(speed["peak_bytes"][b])) for b in batches),
    ):
        yield _pair_of(what, None if before is None else show(before), show(own))


def _pair_of(what: str, before: str | None, now: str) -> tuple[str, ...]:
    return (what, now) if before is None else (what, before, now)


def layer_time_chart(record: Record) -> BarChart | None:
    """An image's time in each layer, the original's as the whole bar; None where that was not measured."""
    before, own = record.get("original"), record["own"]
    if before is None:
        return None
    old, new = _layer_times(before), _layer_times(own)
    bars = tuple(
        Bar(name, old[name], new.get(name, 0.0), _pair(old[name], new.get(name, 0.0)))
        for name in old
        if old[name] > 0 and (name in new or name == BETWEEN)
    )
    batch = find_timing(own, largest=True)["batch"]
    title = f"An image's time by layer (batch {batch})"
    return BarChart("latency-layers", title, bars, ("now", "saved"), "Of the longest (%)", True) if bars else None


def _by_layer(speed: Record) -> dict[str, float]:
    between = sum(speed["between_layers"].values())
    return dict(sorted({**speed["layers"], "what is between layers": between}.items(), key=lambda pair: -pair[1]))


def _layer_times(speed: Record) -> dict[str, float]:
    """Milliseconds of an image, in the order of the layers, then what is between them."""
    timing = find_timing(speed, largest=True)
    each = timing["median_ms"] / timing["batch"]
    times = {name: each * share for name, share in speed["layers"].items()}
    return {**times, BETWEEN: each * sum(speed["between_layers"].values())}


def _pair(before: float, after: float) -> str:
    """Both in one unit: ``12 → 1.3 µs``."""
    unit, factor = ("µs", 1e3) if max(before, after) < 0.9995 else ("ms", 1.0)
    was, now = (f"{factor * value:,.{1 if factor * value < 9.95 else 0}f}" for value in (before, after))
    return f"{was} → {now} {unit}"
