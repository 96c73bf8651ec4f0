"""How long calls take, measured in turn, so that their ratios hold on a machine that others use too.

One round runs a block of each call. What slows the machine down for a while slows all blocks of a round down alike, so
ratios are taken within rounds. Where one thread does all the work, its processor time is taken: on an idle machine that
is the time that passes, on a busy one the turns of other programs are not in it.
"""

from __future__ import annotations

import platform
import statistics
import sys
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch

Key = TypeVar("Key", bound=Hashable)

BLOCK_SECONDS = 0.005  # far above the clock's resolution, far below the time in which a machine's load changes
LARGEST_BLOCK = 500
LEAST_ROUNDS, MOST_ROUNDS = 5, 50
BUDGET_SECONDS = 6.0  # after which no round beyond LEAST_ROUNDS begins


@dataclass(frozen=True)
class Timing:
    """The time of one call in each round.

    Attributes:
        rounds_ms: the mean of a block, round by round, in milliseconds.
    """

    rounds_ms: tuple[float, ...]

    @property
    def median_ms(self) -> float:
        """Half of the rounds were quicker."""
        return statistics.median(self.rounds_ms)

    @property
    def low_ms(self) -> float:
        """A tenth of the rounds were quicker."""
        return self._decile(0)

    @property
    def high_ms(self) -> float:
        """A tenth of the rounds were slower."""
        return self._decile(-1)

    def times_faster(self, than: Timing) -> float:
        """How many times as long the other takes: the median over rounds in which both were measured."""
        pairs = zip(than.rounds_ms, self.rounds_ms, strict=True)
        return statistics.median(other / own for other, own in pairs)

    def _decile(self, which: int) -> float:
        return statistics.quantiles(self.rounds_ms, n=10, method="inclusive")[which]


def time_in_turn(
    calls: Mapping[Key, Callable[[], object]],
    *,
    rounds: int = MOST_ROUNDS,
    budget_seconds: float = BUDGET_SECONDS,
    one_thread: bool = False,
) -> dict[Key, Timing]:
    """Measures calls in rounds, after a warm-up.

    Args:
        calls: what to measure, by name.
        rounds: how many at most.
        budget_seconds: no further round begins after so long, but a few are always measured.
        one_thread: the calls do all their work in the thread that calls them.
    """
    # Windows counts a thread's time in ticks that are longer than a block.
    clock = time.thread_time if one_thread and sys.platform != "win32" else time.perf_counter
    blocks = {}
    for name, call in calls.items():
        call()  # the first call allocates, and chooses algorithms
        seconds = _run(call, 1, clock)
        blocks[name] = max(1, min(LARGEST_BLOCK, round(BLOCK_SECONDS / max(seconds, 1e-9))))
    times: dict[Key, list[float]] = {name: [] for name in calls}
    least, began = min(LEAST_ROUNDS, rounds), time.perf_counter()
    for index in range(rounds):
        if index >= least and time.perf_counter() - began > budget_seconds:
            break
        for name, call in calls.items():
            if blocks[name] > 1:
                call()  # brings back into the caches what the others have put out of them
            times[name].append(1000 * _run(call, blocks[name], clock))
    return {name: Timing(tuple(measured)) for name, measured in times.items()}


def _run(call: Callable[[], object], times: int, clock: Callable[[], float]) -> float:
    """Seconds of one call, the mean of several."""
    start = clock()
    for _ in range(times):
        call()
    return (clock() - start) / times


def machine_name() -> str:
    """What the processor calls itself; a time means nothing without it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Torch's operators use so many threads meanwhile."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
