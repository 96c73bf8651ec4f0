"""A latency as a target: searched for by measurements, here of a clock that counts multiplications."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pruned import QUICK, TRAINING, plan_of
from small_data import IMAGE
from torch import nn

import snncompress.pruning.latency as latency
import snncompress.pruning.pipeline as pipeline
from snncompress import prune
from snncompress.data.dataset import Dataset
from snncompress.errors import TargetError
from snncompress.exporting.latency import measure_latency
from snncompress.measure.cost import measure_cost
from snncompress.pruning.targets import parse_latency
from snncompress.run import Run

FIXED_MS = 0.1


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A millisecond for a thousand multiplications, and something for the call."""

    def measure(model: nn.Module, input_shape: Any) -> float:
        return FIXED_MS + measure_cost(model, input_shape).flops / 1000

    monkeypatch.setattr(latency, "measure_latency", measure)
    monkeypatch.setattr(pipeline, "measure_latency", measure)
    return measure


def test_the_target_is_met_and_not_by_far(noisy: Run, data: Dataset, clock: Any, tmp_path: Path) -> None:
    small = prune(noisy, data, replace(QUICK, target_latency="0.6ms"), TRAINING, out=tmp_path / "small")
    found = plan_of(small)["latency"]
    assert found["target_ms"] == 0.6
    assert found["before_ms"] == pytest.approx(clock(noisy.model, IMAGE), rel=0.2)  # without its dead neurons
    assert found["ms"] == clock(small.model, IMAGE) <= 0.6
    assert found["ms"] > 0.6 * 0.8


def test_a_share_and_another_target_at_once(noisy: Run, data: Dataset, clock: Any) -> None:
    half = prune(noisy, data, replace(QUICK, target_latency="50%"), TRAINING)
    assert plan_of(half)["latency"]["ms"] <= plan_of(half)["latency"]["before_ms"] / 2
    both = prune(noisy, data, replace(QUICK, target_latency="50%", target_flops="30%"), TRAINING)
    assert plan_of(both)["flops"] <= 0.3 * noisy.original["flops"]


def test_one_that_is_met_already_removes_only_the_dead(noisy: Run, data: Dataset, clock: Any) -> None:
    run = prune(noisy, data, replace(QUICK, target_latency="1s"), TRAINING)
    assert plan_of(run)["removed_dead"] > 0
    assert sum(plan_of(run)["points"][-1]["widths"].values()) == 20 - plan_of(run)["removed_dead"]


def test_one_that_cannot_be_met(noisy: Run, data: Dataset, clock: Any, tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=r"a latency of 0\.05 ms cannot be met: .* still take 0\.\d+ ms, all of them"):
        prune(noisy, data, replace(QUICK, target_latency="50us"), TRAINING, out=tmp_path / "small")


@pytest.mark.parametrize(("text", "expected"), [("2ms", 2.0), ("800us", 0.8), ("0.01 s", 10.0), ("50%", 4.0)])
def test_ways_to_write_a_latency(text: str, expected: float) -> None:
    assert parse_latency(text, 8.0) == pytest.approx(expected)


@pytest.mark.parametrize("text", ["", "2", "fast", "-2ms", "2 minutes", "0ms", "0%"])
def test_what_is_no_latency(text: str) -> None:
    with pytest.raises(TargetError, match="--target-latency"):
        parse_latency(text, 8.0)


def test_the_real_clock(noisy: Run) -> None:
    assert 0 < measure_latency(noisy.model, IMAGE) < 1000
