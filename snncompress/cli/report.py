"""``snncompress report``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from snncompress.cli import options as o
from snncompress.errors import DataError
from snncompress.reporting.table import Format, render, rows_json

if TYPE_CHECKING:
    from snncompress.cli.opening import Opened, Request
    from snncompress.cli.screen import Screen
    from snncompress.reporting.rows import Row
    from snncompress.reporting.story import Story
    from snncompress.run import Run


def report(
    sources: Annotated[
        list[str], typer.Argument(metavar="SOURCE...", show_default=False, help="Runs, or models as in train.")
    ],
    layers: Annotated[
        bool, typer.Option("--layers", help="What each layer costs, too; with --latency its share of the time.")
    ] = False,
    compare: Annotated[
        bool,
        typer.Option("--compare", help="Sort the runs by FLOPs, and mark those that no other beats."),
    ] = False,
    format: Annotated[Format, typer.Option(help="Of the table.")] = Format.TEXT,
    html: Annotated[
        Path | None,
        typer.Option(help="Write the last run's story as one page that needs nothing else.", show_default=False),
    ] = None,
    png: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write the page's pictures as PNG files.", show_default=False),
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw error against FLOPs of a pruned run (PNG).")] = None,
    latency: Annotated[
        bool, typer.Option("--latency", help="Time models in onnxruntime and torch, the original too.")
    ] = False,
    latency_batch: Annotated[int, typer.Option(help="Images of the throughput batch.", min=1)] = 256,
    threads: Annotated[int, typer.Option(help="That an operator may use while it is timed.", min=1)] = 1,
    data: o.Data = None,
    checkpoint: o.Checkpoint = None,
    model_arg: o.ModelArg = None,
    input_shape: o.InputShape = None,
    normalize: o.Normalize = None,
    trust_source: o.TrustSource = False,
    data_root: o.DataRoot = None,
    image_size: o.ImageSize = None,
    device: o.Device = "auto",
    json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
) -> None:
    """Shows size, FLOPs, memory and test error (or RMSE), the original beside the compressed.

    The test error is measured once, if the run's data are there, and kept in the run.

    \b
    Examples:
      snncompress report runs/plain runs/small --layers
      snncompress report runs/small --html small.html
      snncompress report runs/small --png pictures
      snncompress report runs/* --compare
      snncompress report runs/small --latency --layers --html small.html
      snncompress report lenet5 --json
    """
    from snncompress.cli.opening import Request
    from snncompress.cli.race import Race
    from snncompress.cli.render import print_json, warn_hollow
    from snncompress.cli.screen import Screen
    from snncompress.cli.telling import tell_run
    from snncompress.reporting.compare import find_fronts, sort_rows

    chosen = Format.JSON if json else format
    rows: list[Row] = []
    data_sets: set[str | None] = set()
    race = Race(threads, sorted({1, latency_batch})) if latency else None
    last: Run | None = None
    story: Story | None = None
    with Screen(quiet, json) as screen:
        for source in sources:
            request = Request(
                source, checkpoint, o.pairs(model_arg, "--model-arg"), o.shape(input_shape), normalize, trust_source,
                data, data_root, False, image_size, device,
            )  # fmt: skip
            opened, error = _open(request, screen)
            last = opened.run
            warn_hollow(last, screen)
            added = _rows(opened.run, error, rows, beside=latency or (chosen is not Format.JSON and not compare))
            rows += added
            data_sets.add(opened.run.data.get("name"))
            if race is not None:
                race.enter(opened.run, added, trust_source)
        if race is not None:
            rows = race.measure(screen)
            last = race.store()
            opened = replace(opened, run=last)
        if compare and len(data_sets) > 1:
            names = ", ".join(sorted(name or "no data" for name in data_sets))
            screen.message(f"the errors are of different data ({names}) and do not compare")
        if html is not None or png is not None:
            story = tell_run(opened, request, rows, _original(opened.run), screen)
    if story is not None:
        _write(story, html, png)
    if plot is not None and last is not None:
        _plot(last, plot)
    fronts = None
    if compare:
        rows = sort_rows(rows)
        fronts = find_fronts(rows)
    if chosen is Format.JSON:
        records = rows_json(rows, fronts)
        print_json(records if race is None else race.add_to(records, rows))
    elif race is not None and chosen is Format.CSV and not layers:
        print(race.render(chosen))
    else:
        speeds = race is not None and chosen is not Format.CSV
        print(render(rows, chosen, layers, fronts) + (f"\n\n{race.render(chosen)}" if race and speeds else ""))
        if last is not None and chosen is Format.TEXT and not compare:
            _show_essentials(last, rows)


def _open(request: Request, screen: Screen) -> tuple[Opened, float | None]:
    """The run and its test error, measured only if nobody has and the data are there."""
    from snncompress.cli.measuring import evaluate_split
    from snncompress.cli.opening import is_own, is_run, open_run

    # A model that is not a run takes its shape from the data.
    opened = open_run(request, with_data=request.data is not None and not is_run(request.source))
    known = opened.run.metrics.get("test")
    if known and is_own(opened.run, request):
        return opened, known["error"]
    try:
        opened = opened if opened.data is not None else open_run(request)
    except DataError as error:
        if request.data is not None:
            raise
        screen.message(f"{opened.run.name}: no test error, since its data are missing ({error})")
        return opened, None
    if opened.data is None or opened.data.test is None:
        return opened, None
    return opened, evaluate_split(opened, "test", request.device, screen).error


def _rows(run: Run, error: float | None, shown: list[Row], beside: bool) -> list[Row]:
    """The run's row, after its original's where that is another model that is not shown yet."""
    from snncompress.reporting.rows import make_row

    row = make_row(
        run.label, run.measured_model(), run.input_shape, run.original, error, run.original["neurons"],
        run.stored_bytes, run.task,
    )  # fmt: skip
    same = row.flops == run.original["flops"] and not run.sparse
    if not beside or same or any(r.flops == run.original["flops"] for r in shown):
        return [row]
    return [_original(run), row]


def _original(run: Run) -> Row:
    from snncompress.reporting.rows import original_row

    name = "original" if run.source is None else f"original {Path(run.source.name).name}"
    return original_row(name, run.original, _original_error(run), run.task)


def _show_essentials(run: Run, rows: list[Row]) -> None:
    """Bars for what is left, if anything is gone."""
    from snncompress.reporting.essentials import render_essentials
    from snncompress.reporting.lineage import read_lineage
    from snncompress.reporting.story import NOWHERE, tell

    story = tell(run, rows, _original(run), NOWHERE if run.path is None else read_lineage(run.path))
    if story.compressed:
        print(f"\n{render_essentials(story)}")


def _write(story: Story, html: Path | None, png: Path | None) -> None:
    from snncompress.files import write_bytes
    from snncompress.reporting.page import render_page
    from snncompress.reporting.png import write_pictures
    from snncompress.reporting.story import draw_up

    if html is not None:
        write_bytes(html, render_page(story).encode())
    if png is not None:
        write_pictures(draw_up(story).all(), png)


def _original_error(run: Run) -> float | None:
    """The test error of the model before pruning, if the run that it came from is there and knows it."""
    from snncompress.run_files import read_header

    parent = run.parent
    error = None
    while parent is not None and (Path(parent) / "run.json").is_file():
        header = read_header(Path(parent))
        error = header["metrics"].get("test", {}).get("error", error)
        parent = header["parent"]
    return error


def _plot(run: Run, out: Path) -> None:
    from snncompress.errors import UsageError
    from snncompress.reporting.tradeoff import plot_run

    if run.plan is None:
        raise UsageError(f"--plot: {run.label} was not pruned, so there is no trade-off to draw")
    plot_run(run, out)
