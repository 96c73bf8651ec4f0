"""``report --latency``: the speed of all models of a report, measured together and remembered in their runs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from snncompress.errors import RunError
from snncompress.exporting.speed import Contender, Speed, measure_speed, original_model
from snncompress.measure.timing import machine_name
from snncompress.reporting.rows import add_times
from snncompress.reporting.speed_table import render_speed, speed_json
from snncompress.run_files import store_metrics

if TYPE_CHECKING:
    from snncompress.progress import Progress
    from snncompress.reporting.rows import Row
    from snncompress.reporting.table import Format
    from snncompress.run import Run


@dataclass(frozen=True)
class _Lane:
    """A row of the report: its run, or that of which it is the original, and the model; None if it cannot be built."""

    row: Row
    run: Run
    is_run: bool
    contender: Contender | None


class Race:
    """Models that are timed in turn once all of them are known."""

    def __init__(self, threads: int, batches: Sequence[int]) -> None:
        self.threads, self.batches = threads, batches
        self.lanes: list[_Lane] = []
        self.speeds: list[Speed | None] = []  # of each lane
        self.rows: list[Row] = []  # of each lane

    def enter(self, run: Run, rows: Sequence[Row], trust: bool) -> None:
        """A run, and before it the original where the report shows that too: there are one or two rows."""
        for row in rows:
            is_run = row is rows[-1]
            model = run.model if is_run else original_model(run, trust=trust)
            contender = None if model is None else Contender(row.name, model, run.input_shape)
            self.lanes.append(_Lane(row, run, is_run, contender))

    def measure(self, progress: Progress) -> list[Row]:
        """Times all of them; the rows of the report, with the share of each layer."""
        contenders = [lane.contender for lane in self.lanes if lane.contender is not None]
        found = iter(measure_speed(contenders, batches=self.batches, threads=self.threads, progress=progress))
        self.speeds = [None if lane.contender is None else next(found) for lane in self.lanes]
        if None in self.speeds:
            progress.message("the original model cannot be built any more, so its speed is not shown")
        self.rows = [
            lane.row if speed is None else add_times(lane.row, speed.profile.layers, speed.profile.between)
            for lane, speed in zip(self.lanes, self.speeds, strict=True)
        ]
        return list(self.rows)

    def store(self) -> Run:
        """Notes each run's speed in its folder; the last run, with the note."""
        run = self.lanes[-1].run
        for lane, speed in zip(self.lanes, self.speeds, strict=True):
            if not lane.is_run or speed is None:
                continue
            note = {"latency": self._note(lane, speed)}
            run = replace(lane.run, metrics={**lane.run.metrics, **note})
            with suppress(RunError):  # it is only a note: a run that others own may be measured, too
                run = store_metrics(lane.run, note)
        return run

    def _note(self, lane: _Lane, speed: Speed) -> dict[str, Any]:
        """A speed beside that of its original, where that was measured too."""
        before = next(
            (
                other
                for near, other in zip(self.lanes, self.speeds, strict=True)
                if other is not None and other is not speed and near.run.name == lane.run.name
                and near.row.flops == lane.run.original["flops"] and near.row.flops_sparse == near.row.flops
            ),
            None,
        )  # fmt: skip
        note = {"machine": machine_name(), "own": speed_json(speed), "original": None, "against": None}
        if before is None:
            return note
        pairs = zip(speed.latencies, before.latencies, strict=True)
        ratios = tuple(replace(own, times_faster=own.timing.times_faster(was.timing)) for own, was in pairs)
        own = speed_json(replace(speed, latencies=ratios))
        return note | {"own": own, "original": speed_json(before), "against": before.name}

    def render(self, format: Format) -> str:
        """The tables."""
        return render_speed([speed for speed in self.speeds if speed is not None], format)

    def add_to(self, records: list[dict[str, Any]], rows: Sequence[Row]) -> list[dict[str, Any]]:
        """Records with a key ``latency`` each; ``rows`` are those of the report in the records' order."""
        speeds = {id(row): speed for row, speed in zip(self.rows, self.speeds, strict=True)}
        found = [speeds[id(row)] for row in rows]
        return [
            {**record, "latency": None if speed is None else speed_json(speed)}
            for record, speed in zip(records, found, strict=True)
        ]
