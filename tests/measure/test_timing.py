"""The arithmetic of timings; nothing here depends on how quick the machine is."""

from __future__ import annotations

import itertools
import sys
import time
from contextlib import suppress

import pytest
import torch

from snncompress.measure.timing import LEAST_ROUNDS, Timing, machine_name, time_in_turn, torch_threads


def test_ratios_are_taken_within_rounds() -> None:
    """A machine that slows down by ten for some rounds changes no ratio."""
    slow, quick = Timing((4.0, 40.0, 4.0, 40.0, 4.0)), Timing((2.0, 20.0, 2.0, 20.0, 2.0))
    assert quick.times_faster(slow) == 2.0
    assert (slow.median_ms, quick.median_ms) == (4.0, 2.0)
    assert slow.low_ms == 4.0
    assert slow.high_ms == 40.0


def test_calls_take_turns() -> None:
    order: list[str] = []
    times = time_in_turn({name: lambda name=name: order.append(name) for name in "ab"}, rounds=3)  # type: ignore[misc]
    assert {name: len(timing.rounds_ms) for name, timing in times.items()} == {"a": 3, "b": 3}
    changes = sum(before != after for before, after in itertools.pairwise(order))
    assert changes == 7  # a warm-up of each, then three rounds of two blocks


def test_a_spent_budget_leaves_a_few_rounds() -> None:
    (timing,) = time_in_turn({"a": lambda: None}, budget_seconds=0).values()
    assert len(timing.rounds_ms) == LEAST_ROUNDS
    assert min(timing.rounds_ms) > 0


@pytest.mark.skipif(sys.platform == "win32", reason="its clock of threads is too coarse")
def test_waiting_for_others_is_not_the_work_of_a_thread() -> None:
    calls = {"waits": lambda: time.sleep(0.05)}
    (own,) = time_in_turn(calls, rounds=2, one_thread=True).values()
    (passed,) = time_in_turn(calls, rounds=2).values()
    assert max(own.rounds_ms) < 25 < 50 <= min(passed.rounds_ms)


def test_the_machine_has_a_name() -> None:
    assert machine_name().strip()


def test_threads_are_given_back() -> None:
    before = torch.get_num_threads()
    with suppress(ValueError), torch_threads(before + 1):
        assert torch.get_num_threads() == before + 1
        raise ValueError
    assert torch.get_num_threads() == before
