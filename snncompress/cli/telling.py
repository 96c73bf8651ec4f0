"""From an opened run to what its page tells: what it came from, and what its neurons were worth."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from snncompress.cli.opening import Opened, Request, is_run, open_run
from snncompress.errors import SnncompressError

if TYPE_CHECKING:
    from snncompress.cli.screen import Screen
    from snncompress.pruning.spread import Spread
    from snncompress.reporting.rows import Row
    from snncompress.reporting.story import Story
    from snncompress.run import Run


def tell_run(opened: Opened, request: Request, rows: list[Row], original: Row, screen: Screen) -> Story:
    """The story of a run; what cannot be found out is a note in it, not a failure."""
    from snncompress.reporting.lineage import read_lineage
    from snncompress.reporting.story import NOWHERE, tell

    try:
        spreads, notes = _spreads(opened, request, screen)
    except SnncompressError as error:
        spreads, notes = [], [f"How importance was spread is not shown: {error}."]
    path = opened.run.path
    return tell(opened.run, rows, original, NOWHERE if path is None else read_lineage(path), spreads, notes)


def _spreads(opened: Opened, request: Request, screen: Screen) -> tuple[list[Spread], list[str]]:
    """Histograms of what pruning began with, or of what a run with noise has."""
    from snncompress.pruning.spread import neuron_spreads, of_weights, weight_spreads

    run, plan = opened.run, opened.run.plan
    if plan is None and run.noise is None and run.posterior is None:
        return [], []
    before = run if plan is None else _parent(run, request)
    if before is None:
        where = " is not there" if run.parent is None else f", {run.parent}, is gone"
        return [], [f"How importance was spread is not shown: the run that pruning began with{where}."]
    if "layers" in plan if plan is not None else of_weights(run):
        return weight_spreads(before, plan), []
    if plan is None and run.noise_method != "se-snn":
        return [], []
    data = opened.data if opened.data is not None else open_run(request).data
    if data is None:
        return [], ["How importance was spread is not shown: that takes training images; give --data."]
    screen.start("look at neurons", 1)
    found = neuron_spreads(before, plan, data, request.device)
    screen.finish()
    return found, []


def _parent(run: Run, request: Request) -> Run | None:
    if run.parent is None or not is_run(run.parent):
        return None
    return open_run(replace(request, source=str(Path(run.parent)), checkpoint=None), with_data=False).run
