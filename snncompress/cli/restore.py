"""``snncompress restore``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from snncompress.cli import options as o
from snncompress.errors import UsageError


def restore(
    ctx: typer.Context,
    source: Annotated[Path, typer.Argument(metavar="RUN", help="A pruned run's folder.", show_default=False)],
    keep_best_under: Annotated[
        float | None,
        typer.Option(
            help="Take the cheapest point with at most this validation error (%; or RMSE).", show_default=False
        ),
    ] = None,
    point: Annotated[int | None, typer.Option(help="Take this point, counted from 0.", show_default=False)] = None,
    out: Annotated[
        Path | None, typer.Option(help="The folder for the restored run; without it the points are listed.")
    ] = None,
    trust_source: o.TrustSource = False,
    config: o.Config = None,
    force: o.Force = False,
    json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
) -> None:
    """Brings back a model that pruning has passed: any point of the trade-off curve.

    \b
    Examples:
      snncompress restore runs/small
      snncompress restore runs/small --keep-best-under 1.5 --out runs/better
      snncompress restore runs/small --point 12 --out runs/earlier
    """
    from snncompress.cli.opening import is_run
    from snncompress.cli.render import show_points, show_run
    from snncompress.pruning.points import points_of, restore_point
    from snncompress.run_files import load

    if not is_run(str(source)):
        raise UsageError(f"{source} is not a run; give the folder of one that was pruned")
    run = load(source, trust=trust_source)
    if out is None:
        if keep_best_under is not None or point is not None:
            raise UsageError("where to? give --out FOLDER")
        show_points(points_of(run), run.task, json)
        return
    restored = restore_point(run, under=keep_best_under, point=point, out=out, force=force, command=o.typed(ctx))
    show_run(restored, json)
