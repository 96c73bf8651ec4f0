"""``snncompress demo``."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from snncompress.cli import options as o
from snncompress.errors import UsageError


def commands(out: Path) -> list[list[str]]:
    """The demo is nothing but these commands."""
    plain, noisy, small, scratch = (str(out / name) for name in ("plain", "noisy", "small", "small-from-scratch"))
    return [
        ["train", "lenet5", "--data", "mnist-sample", "--method", "none", "--epochs", "8", "--augment", "shift",
         "--out", plain],
        ["train", plain, "--method", "se-snn", "--epochs", "8", "--augment", "shift", "--out", noisy],
        ["prune", noisy, "--target-flops", "10%", "--finetune-steps", "10", "--final-epochs", "15",
         "--final-lr", "0.003", "--augment", "shift", "--out", small],
        ["train", small, "--from-scratch", "--method", "none", "--epochs", "49", "--lr", "0.003",
         "--augment", "shift", "--out", scratch],
        ["report", plain, scratch, small, "--latency", "--plot", str(out / "tradeoff.png"),
         "--html", str(out / "report.html")],
        ["export", small, "--with-normalization", "--out", str(out / "small.onnx")],
    ]  # fmt: skip


def demo(
    out: Annotated[Path, typer.Option(help="The folder for everything that the demo makes.")] = Path("demo"),
    force: o.Force = False,
    json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
) -> None:
    """Trains, prunes, reports and exports on embedded data, in about two minutes.

    \b
    Examples:
      snncompress demo --out demo
    """
    from snncompress.cli.render import print_json
    from snncompress.cli.steps import call

    if out.exists():
        if not force:
            raise UsageError(f"{out} exists; choose another --out, or add --force")
        if out.is_file() or (any(out.iterdir()) and not (out / "plain" / "run.json").exists()):
            raise UsageError(f"{out} was not made by the demo, so --force does not replace it; choose another --out")
        shutil.rmtree(out)
    began = time.monotonic()
    results: dict[str, Any] = {}
    for command in commands(out):
        result = call(command, quiet=quiet, json=json)
        if json:
            results.setdefault(command[0], result)
    if json:
        print_json({name: results[name] for name in ("report", "export")})
        return
    print(
        f"\nDone in {time.monotonic() - began:.0f} s. {out / 'small.onnx'} is the compact model, ready for onnxruntime;"
        f"\n{out / 'report.html'} shows what was gained and at what cost: open it in a browser."
        f"\nNext, your own model:\n"
        f"\n  snncompress train my_net.py:build --checkpoint my_net.pth --data folder:my_images --out runs/noisy"
        f"\n  snncompress prune runs/noisy --target-flops 30% --max-drop 0.5 --out runs/small"
        f"\n  snncompress export runs/small --out small.onnx"
    )
