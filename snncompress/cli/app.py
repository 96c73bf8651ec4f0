"""All commands together."""

from __future__ import annotations

from typing import Annotated

import typer

from snncompress import __version__
from snncompress.cli.attack import attack
from snncompress.cli.calibrate import calibrate
from snncompress.cli.curve import curve
from snncompress.cli.demo import demo
from snncompress.cli.evaluate import evaluate
from snncompress.cli.export import export
from snncompress.cli.list import list_
from snncompress.cli.prune import prune
from snncompress.cli.report import report
from snncompress.cli.restore import restore
from snncompress.cli.train import train
from snncompress.cli.verify import verify
from snncompress.cli.watch import watch
from snncompress.cli.zoo import zoo

app = typer.Typer(
    name="snncompress",
    add_completion=False,
    rich_markup_mode=None,  # rich panels take as long to import as everything else together
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
for command, name in (
    (train, "train"),
    (prune, "prune"),
    (watch, "watch"),
    (report, "report"),
    (restore, "restore"),
    (export, "export"),
    (verify, "verify"),
    (evaluate, "evaluate"),
    (attack, "attack"),
    (calibrate, "calibrate"),
    (curve, "curve"),
    (list_, "list"),
    (demo, "demo"),
):
    app.command(name)(command)
app.add_typer(zoo, name="zoo")


def _version(asked: bool) -> None:
    if asked:
        print(f"snncompress {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Makes PyTorch image classifiers smaller with stochastic neural networks.

    Start with: snncompress demo
    """
