"""``snncompress list``."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated

import typer

from snncompress import registry
from snncompress.cli import options as o

Kind = StrEnum("Kind", {kind.upper(): kind for kind in registry.KINDS})  # type: ignore[misc]
MORE = {
    "models": "Also: torchvision:NAME (any classifier there), path/to/my_net.py:function, zoo:NAME (see zoo list).",
    "methods": "Also: none (plain training).",
    "corrections": "Also: none (cross-entropy).",
}


def list_(
    kind: Annotated[Kind, typer.Argument(help="What to list.", show_default=False)],
    json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
) -> None:
    """Lists the models, data, methods, criteria or attacks there are.

    \b
    Examples:
      snncompress list models
    """
    from rich.console import Console
    from rich.table import Table

    from snncompress.cli.render import print_json

    found = registry.entries(kind)
    if json:
        print_json([{"name": entry.name, "summary": entry.summary} for entry in found.values()])
        return
    table = Table.grid(padding=(0, 2))
    for entry in found.values():
        table.add_row(entry.name, entry.summary)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 200)  # grep wants whole lines
    console.print(table)
    if kind in MORE:
        console.print(f"\n{MORE[kind]}")
