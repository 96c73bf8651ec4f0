"""What ``report --latency`` measures; nothing here depends on how quick the machine is."""

from __future__ import annotations

import csv
import gzip
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from small_data import small_run
from tiny import SHAPE, tiny_run

from snncompress.errors import UsageError
from snncompress.exporting import speed as speed_module
from snncompress.exporting.onnx import export_onnx, to_onnx
from snncompress.exporting.profiling import Profile
from snncompress.exporting.speed import Contender, Latency, Speed, measure_speed, original_model
from snncompress.measure import timing
from snncompress.measure.peak import measure_peak_bytes
from snncompress.measure.timing import Timing
from snncompress.reporting.speed_table import render_speed, speed_json
from snncompress.reporting.table import Format


def test_every_model_in_both_runtimes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "BLOCK_SECONDS", 0.0)
    made: dict[str, Any] = {}
    # The exporter is the slow part: it is asked once for the same model.
    monkeypatch.setattr(
        speed_module, "to_onnx", lambda *words: made.get("proto") or made.setdefault("proto", to_onnx(*words))
    )
    run = tiny_run()
    contenders = [Contender(name, run.model, SHAPE) for name in ("a", "b")]
    speeds = measure_speed(contenders, batches=(1, 5), threads=1)
    assert [speed.name for speed in speeds] == ["a", "b"]
    for speed in speeds:
        found = [(latency.runtime, latency.batch) for latency in speed.latencies]
        assert found == [("onnxruntime", 1), ("torch", 1), ("onnxruntime", 5), ("torch", 5)]
        assert all(len(latency.timing.rounds_ms) >= 5 and latency.times_faster > 0 for latency in speed.latencies)
        assert speed.peak_bytes == {batch: measure_peak_bytes(run.model, SHAPE, batch) for batch in (1, 5)}
        profile = speed.profile
        assert sum(profile.operators.values()) == pytest.approx(1)
        assert sum(profile.layers.values()) + sum(profile.between.values()) == pytest.approx(1)
        assert any("Conv" in name for name in profile.operators)
        # Whatever multiplies by weights belongs to a layer.
        assert not any(word in name for name in profile.between for word in ("Conv", "Gemm", "MatMul"))
        json.dumps(speed_json(speed))
    assert all(latency.times_faster == 1 for latency in speeds[0].latencies)
    data = export_onnx(run, tmp_path / "a.onnx").path.read_bytes()
    assert 0 <= len(data) - speeds[0].file_bytes < 1000  # the notes that export adds
    assert abs(len(gzip.compress(data)) - speeds[0].gzip_bytes) < 1000


def test_no_batch_no_thread() -> None:
    contender = Contender("a", tiny_run().model, SHAPE)
    for options in ({"batches": (0,)}, {"threads": 0}):
        with pytest.raises(UsageError, match="at least 1"):
            measure_speed([contender], **options)  # type: ignore[arg-type]


def test_the_original_is_built_from_the_source() -> None:
    run = small_run()
    model = original_model(run)
    assert model is not None
    assert {name: p.shape for name, p in model.named_parameters()} == {
        name: p.shape for name, p in run.model.named_parameters()
    }
    assert original_model(replace(run, source=None)) is None
    assert original_model(replace(run, original={**run.original, "flops": 1})) is None  # the source is another now


CONV, ORT = Profile({"Conv": 0.99, "Relu": 0.01}, {"c1": 0.9, "c2": 0.09}, {"Relu": 0.01}), "onnxruntime"


@pytest.fixture
def speeds() -> list[Speed]:
    slow, quick = Timing((2.0,) * 5), Timing((0.5,) * 5)
    large = Speed("a|b", 2, (Latency(ORT, 1, slow, 1.0),), slow, 12_000, 9_000, {1: 400}, CONV)
    small = Speed("small", 2, (Latency(ORT, 1, quick, 4.0),), quick, 900, 800, {1: 100}, Profile({}, {}, {}))
    return [large, small]


def test_tables(speeds: list[Speed]) -> None:
    text = render_speed(speeds, Format.TEXT)
    for part in (
        "500 µs",
        "2 ms",
        "4.00",
        "2,000",
        "12.0 kB",
        "400 B",
        "Conv 99%",
        "c1 90%, c2 9%",
        "2 threads",
        "in turn",
    ):
        assert part in text
    markdown = render_speed(speeds, Format.MARKDOWN)
    assert markdown.startswith("| Model")
    assert "a\\|b" in markdown
    rows = list(csv.DictReader(io.StringIO(render_speed(speeds, Format.CSV))))
    assert [(row["model"], row["threads"], row["times_faster"]) for row in rows] == [
        ("a|b", "2", "1.0"),
        ("small", "2", "4.0"),
    ]
