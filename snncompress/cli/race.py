"""``report --latency``: the speed of all models of a report, measured together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from snncompress.exporting.speed import Contender, Speed, measure_speed, original_model
from snncompress.reporting.speed_table import render_speed, speed_json

if TYPE_CHECKING:
    from torch import nn

    from snncompress.progress import Progress
    from snncompress.reporting.table import Format
    from snncompress.run import Run


class Race:
    """Models that are timed in turn once all of them are known."""

    def __init__(self, threads: int, batches: Sequence[int]) -> None:
        self.threads, self.batches = threads, batches
        self.rows: list[Contender | None] = []  # one for each row of the report; None for what cannot be built
        self.speeds: list[Speed | None] = []

    def enter(self, run: Run, names: Sequence[str], trust: bool) -> None:
        """A run, and before it the original where the report shows that too: names has one or two of them."""
        models: list[nn.Module | None] = [run.model]
        if len(names) == 2:
            models.insert(0, original_model(run, trust=trust))
        for name, model in zip(names, models, strict=True):
            self.rows.append(None if model is None else Contender(name, model, run.input_shape))

    def measure(self, progress: Progress) -> None:
        """Times all of them."""
        contenders = [contender for contender in self.rows if contender is not None]
        found = iter(measure_speed(contenders, batches=self.batches, threads=self.threads, progress=progress))
        self.speeds = [None if contender is None else next(found) for contender in self.rows]
        for contender in self.rows:
            if contender is None:
                progress.message("the original model cannot be built any more, so its speed is not shown")

    def render(self, format: Format) -> str:
        """The tables."""
        return render_speed([speed for speed in self.speeds if speed is not None], format)

    def add_to(self, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The report's records with a key ``latency`` each."""
        return [
            {**record, "latency": None if speed is None else speed_json(speed)}
            for record, speed in zip(records, self.speeds, strict=True)
        ]
