"""``snncompress watch``."""

from __future__ import annotations

import json as json_module
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from snncompress.cli import options as o

if TYPE_CHECKING:
    from rich.console import RenderableType

    from snncompress.reporting.following import Status


def watch(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="The folder of a run, finished or not.", show_default=False)
    ],
    once: Annotated[bool, typer.Option("--once", help="Show where it is now, and exit.")] = False,
    every: Annotated[float, typer.Option(help="Seconds between two looks.", min=0.05)] = 1.0,
    json: Annotated[bool, typer.Option("--json", help="Print its records as JSON, one a line, as they come.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only wait until it is finished.")] = False,
    debug: o.Debug = False,
) -> None:
    """Follows a run that another process trains or prunes, until it is finished or you press Ctrl-C.

    The run itself does not notice: only its files are read.

    \b
    Examples:
      snncompress watch runs/noisy
      snncompress watch runs/small --once
      snncompress watch runs/small --json
    """
    try:
        if json or quiet or not sys.stdout.isatty() or once:
            _print_lines(run, once, every, json, quiet)
        else:
            _draw(run, every)
    except KeyboardInterrupt:
        pass  # that is how one stops watching


def _print_lines(run: Path, once: bool, every: float, json: bool, quiet: bool) -> None:
    """For scripts and pipes: what is new, a line a record."""
    from snncompress.reporting.following import look

    told = 0
    while True:
        status = look(run)
        told = min(told, len(status.records))  # a resumed run forgets what came after its state
        if once and not json:
            if not quiet:
                _show(status)
            return
        for record in () if quiet else status.records[told:]:
            print(json_module.dumps(record) if json else _line(record, status), flush=True)
        told = len(status.records)
        if once or status.complete:
            return
        time.sleep(every)


def _draw(run: Path, every: float) -> None:
    """For a person at a terminal: one picture that changes."""
    from rich.live import Live

    from snncompress.reporting.following import look

    status = look(run)
    with Live(_picture(status), auto_refresh=False) as live:
        while not status.complete:
            time.sleep(every)
            status = look(run)
            live.update(_picture(status), refresh=True)


def _show(status: Status) -> None:
    from rich.console import Console

    Console(highlight=False, width=None if sys.stdout.isatty() else 200).print(_picture(status))


def _picture(status: Status) -> RenderableType:
    """Where the run is, in a few lines."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from snncompress.cli.render import format_seconds
    from snncompress.reporting.terminal import bar, sparkline

    head = Text.assemble((status.name, "bold"), f"  {status.what}")
    way = Text(status.doing)
    if status.share is not None:
        way.append(f"  {bar(status.share, 30)} {100 * status.share:.0f}%", "cyan")
    if status.left_seconds:
        way.append(f"  {format_seconds(status.left_seconds)} left")
    table = Table.grid(padding=(0, 2))
    for name, value in _values(status).items():
        table.add_row(Text(name, "dim"), Text(value))
    if status.errors:
        show, best = status.task.show, min(status.errors)
        words = f"{sparkline(status.errors)}  {show(status.errors[0])} → {show(status.errors[-1])}, best {show(best)}"
        table.add_row(Text(f"validation {status.task.measure}", "dim"), Text(words))
    lines: list[RenderableType] = [head, way, table]
    if status.silent:
        words = f"nothing new for {status.quiet_seconds / 60:.0f} min; if its process has ended, --resume goes on"
        lines.append(Text(words, "yellow"))
    return Group(*lines)


def _values(status: Status) -> dict[str, str]:
    """What the latest record says."""
    from snncompress.reporting.table import format_flops

    last, found = status.last, dict[str, str]()
    if "loss" in last:
        penalty = f"  penalty {last['penalty']:.4f}" if last.get("penalty") else ""
        found["loss"] = f"{last['loss']:.4f}{penalty}"
    if "validation_error_averaged" in last:
        found["by averaging samples"] = status.task.show(last["validation_error_averaged"])
    if "flops" in last:
        found["FLOPs"] = format_flops(last["flops"])
    if "widths" in last:
        found["neurons"] = _some([f"{name} {width}" for name, width in last["widths"].items()])
    if (noise := status.noise()) is not None:
        found[noise[0]] = _some([f"{name} {value:.2f}" for name, value in noise[1].items()])
    return found


def _some(words: list[str], most: int = 8) -> str:
    return "  ".join(words[:most]) + (f"  and {len(words) - most} more" if len(words) > most else "")


def _line(record: dict[str, object], status: Status) -> str:
    """A record in one line, for a log."""
    from snncompress.reporting.table import format_flops

    error = record.get("error" if "phase" in record else "validation_error")
    parts = [f"round {record['round']}" if "phase" in record else f"epoch {record.get('epoch', 0)}"]
    if isinstance(loss := record.get("loss"), float):
        parts.append(f"loss {loss:.4f}")
    if isinstance(flops := record.get("flops"), int):
        parts.append(f"{format_flops(flops)} FLOPs")
    if isinstance(error, float):
        parts.append(f"validation {status.task.word(error)}")
    return f"{parts[0]}: {', '.join(parts[1:])}" if parts[1:] else parts[0]
