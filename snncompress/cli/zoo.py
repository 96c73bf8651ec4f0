"""``snncompress zoo``: list, show, run, verify."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from snncompress.cli import options as o
from snncompress.data.place import data_place
from snncompress.errors import SnncompressError
from snncompress.zoo.entries import PREFIX, ZooEntry, default_out, find_zoo, list_zoo
from snncompress.zoo.recipe import show_errors

if TYPE_CHECKING:
    from snncompress.checks import Check
    from snncompress.zoo.recipe import Figures
    from snncompress.zoo.running import Followed

zoo = typer.Typer(
    help="Recipes that lead to a result, and the result where it is small: zoo:NAME is a SOURCE of every command.",
    rich_markup_mode=None,
    no_args_is_help=True,
)
Name = Annotated[str, typer.Argument(metavar="NAME", help="An entry of snncompress zoo list.", show_default=False)]
Seed = Annotated[int, typer.Option(help="Of every step.")]
File = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY=PATH", help="A file that the recipe needs; repeatable.", show_default=False),
]
UNKNOWN = "–"


@zoo.command("list")
def list_(json: o.Json = False, quiet: o.Quiet = False, debug: o.Debug = False) -> None:
    """Lists the entries with their figures.

    \b
    Examples:
      snncompress zoo list
      snncompress zoo list --json
    """
    from snncompress.cli.render import print_json
    from snncompress.reporting.table import grid

    entries = list_zoo()
    if json:
        print_json([_record(entry) for entry in entries])
        return
    header = ["Name", "Model", "Data", "Error", "FLOPs", "Weights", "File", "Stored"]
    cells = [
        [each.name, each.recipe.model, each.recipe.data, *_cells(each.recipe.figures), "yes" if each.stored else "no"]
        for each in entries
    ]
    print(grid(header, cells, left=3, markdown=False))


def _cells(figures: Figures | None) -> list[str]:
    from snncompress.reporting.table import format_bytes, format_flops

    if figures is None:
        return [UNKNOWN] * 4
    return [
        show_errors(figures.task, figures.errors),
        f"{format_flops(figures.flops)} ({figures.flops_percent:.2f}%)",
        f"{figures.weights:,} ({figures.weights_percent:.2f}%)",
        format_bytes(figures.file_bytes),
    ]


def _record(entry: ZooEntry) -> dict[str, Any]:
    from dataclasses import asdict

    recipe = entry.recipe
    figures = None if recipe.figures is None else asdict(recipe.figures)
    known = {"summary": recipe.summary, "model": recipe.model, "data": recipe.data, "licence": recipe.licence}
    return {"name": entry.name, **known, "stored": entry.stored, "figures": figures}


@zoo.command("show")
def show(
    name: Name,
    seed: Seed = 0,
    out: Annotated[
        Path | None, typer.Option(help="The folder that the commands write to.  [default: runs/NAME-seedS]")
    ] = None,
    data_root: o.DataRoot = None,
    json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
) -> None:
    """Shows an entry: its figures, the commands that lead to it, and its card.

    \b
    Examples:
      snncompress zoo show lenet5-mnist
    """
    from snncompress.cli.render import print_json

    entry = find_zoo(name)
    recipe = entry.recipe
    files = {key: key.upper() for key in recipe.files}  # whoever copies a command sees what to put there
    values = recipe.values(entry.name, out or default_out(entry.name, seed), data_place(data_root), seed, files)
    commands = [(step.about, ["snncompress", *step.fill(values)]) for step in recipe.steps]
    if json:
        steps = [{"about": about, "command": words} for about, words in commands]
        print_json({**_record(entry), "files": recipe.files, "steps": steps, "card": entry.card})
        return
    print(f"{entry.name}: {recipe.summary}\n\nmodel {recipe.model}, data {recipe.data} ({recipe.licence})")
    print(f"weights: {f'stored, {PREFIX}{entry.name} is a SOURCE' if entry.stored else 'not stored'}")
    if recipe.figures is not None:
        error, flops, weights, size = _cells(recipe.figures)
        print(f"{recipe.figures.split} error {error}, {flops} FLOPs, {weights} weights, {size}")
        beside = {
            "before it was made smaller": recipe.figures.original_errors,
            "the same shape trained as long from new weights": recipe.figures.scratch_errors,
        }
        for what, errors in beside.items():
            if errors:
                print(f"{what}: {show_errors(recipe.figures.task, errors)}")
    for key, text in recipe.files.items():
        print(f"needs --file {key}=PATH: {text}")
    for number, (about, words) in enumerate(commands, 1):
        print(f"\n{number}. {about}\n   {shlex.join(words)}")
    print(f"\n{entry.card.rstrip()}")


@zoo.command("run")
def run(
    name: Name,
    seed: Seed = 0,
    out: Annotated[
        Path | None, typer.Option(help="The folder for all that it makes.  [default: runs/NAME-seedS]")
    ] = None,
    data_root: o.DataRoot = None,
    file: File = None,
    until: Annotated[
        str | None, typer.Option(help="Stop after the step that makes this run, such as the result.", metavar="RUN")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where the run in --out was interrupted.")] = False,
    device: o.Device = "auto",
    json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
) -> None:
    """Makes an entry's result anew, step by step from its recipe, and puts it beside the recipe's figures.

    \b
    Examples:
      snncompress zoo run lenet5-mnist --data-root data
      snncompress zoo run lenet5-mnist --data-root data --seed 1 --resume
      snncompress zoo run lenet5-mnist --data-root data --until small
    """
    from snncompress.cli.render import print_json, show_checks
    from snncompress.zoo.running import Followed

    entry = find_zoo(name)
    out = out or default_out(entry.name, seed)
    files = {key: str(value) for key, value in o.pairs(file, "--file").items()}
    values = entry.recipe.values(entry.name, out, data_place(data_root), seed, files)
    count = len(entry.recipe.steps if until is None else entry.recipe.until(until))
    followed = Followed(out, entry.name, entry.recipe, seed, files)
    followed.begin(resume)
    results = _follow(followed, count, values, device, quiet, json)
    made = out / (until or entry.recipe.result)
    finished = made.name == entry.recipe.result
    checks = _compare(entry, made, data_root, device, quiet, json) if finished else []
    if json:
        compared = [check.to_json() for check in checks]
        print_json({"name": entry.name, "seed": seed, "run": str(made), "steps": results, "checks": compared})
        return
    print(f"\n{made} is {'what the recipe leads to' if finished else 'made; --resume goes on from there'}")
    if checks:
        show_checks(checks)


def _follow(followed: Followed, count: int, values: dict[str, str], device: str, quiet: bool, json: bool) -> list[Any]:
    """Runs those of the first steps that are not done yet; returns what they print as JSON."""
    from snncompress.cli.steps import call

    results, steps = [], followed.recipe.steps
    for number, step in enumerate(steps[:count]):
        words = followed.words(number, values)
        if words is not None:
            if not json:
                print(f"\nstep {number + 1} of {len(steps)}: {step.about}", end="")
            results.append(call([*words, *_device(words, device)], quiet=quiet, json=json))
        followed.end(number)
    return results


def _compare(entry: ZooEntry, made: Path, data_root: Path | None, device: str, quiet: bool, json: bool) -> list[Check]:
    """A new result beside the recipe's figures; nothing where it has none."""
    from snncompress.cli.screen import Screen
    from snncompress.run_files import load
    from snncompress.zoo.measuring import compare, load_own_data, measure

    figures = entry.recipe.figures
    if figures is None:
        return []
    run = load(made)
    data = load_own_data(run, data_root, device=device)
    with Screen(quiet, json) as screen:
        measured = measure(run, data, figures.split, figures.samples, device, screen)
    return compare(figures, measured, data, stored=False)


def _device(words: list[str], device: str) -> list[str]:
    """The device for commands that compute; what a recipe says itself stays."""
    computing = words[0] in ("train", "prune", "evaluate") and "--device" not in words
    return ["--device", device] if computing and device != "auto" else []


@zoo.command("verify")
def verify(
    name: Name,
    data_root: o.DataRoot = None,
    download: o.Download = False,
    device: o.Device = "auto",
    json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
) -> None:
    """Measures an entry's stored weights and compares them with the recipe's figures; exit code 1 if they differ.

    \b
    Examples:
      snncompress zoo verify lenet5-sample
      snncompress zoo verify lenet5-mnist --data-root data
    """
    from snncompress.cli.render import print_json, show_checks
    from snncompress.cli.screen import Screen
    from snncompress.zoo.measuring import verify_zoo

    with Screen(quiet, json) as screen:
        result = verify_zoo(name, data_root=data_root, download=download, device=device, progress=screen)
    if json:
        print_json(result.to_json())
    else:
        show_checks(result.checks)
    if not result.passed:
        raise SnncompressError(
            f"{PREFIX}{result.name} does not have its recipe's figures: {', '.join(result.failed)}; "
            "restore its files, or make it again with python -m benchmarks.store_zoo"
        )
