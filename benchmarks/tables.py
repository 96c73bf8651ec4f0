"""The papers' tables with ours beside them.

    python -m benchmarks.tables all --quick --data-root data
    python -m benchmarks.tables lenet5-neurons sparse-vd --quick --json
    python -m benchmarks.tables --write README.md docs/results.md

Published rows come from `snncompress/reporting/published.toml`; ours from the entries of the model zoo that name the
table in their recipe, and from `benchmarks/results/TABLE.json`. With --quick nothing is trained: stored weights are
measured again where their data are there (`snncompress zoo verify`), stored results are read, and what is missing is
shown as missing. Without it, recipes and benchmarks of the table are first run anew into --out, which takes hours to
days and is resumable. --write puts tables between the marks of files, which name the command. Exit code 1 if stored
weights do not have their figures.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import results, sparse_vd
from benchmarks.commands import snncompress
from snncompress.errors import DataError
from snncompress.reporting.published import published_tables
from snncompress.reporting.table import UNKNOWN, grid
from snncompress.run_files import load
from snncompress.zoo.entries import ZooEntry, list_zoo
from snncompress.zoo.measuring import Measured, load_own_data, measure, verify_zoo
from snncompress.zoo.recipe import Figures

# The benchmark that stores a table's rows with --store.
BENCHMARKS = {
    "snr-spr": "weight_curves",
    "variance-layers": "variance_layers",
    "parameterizations": "parameterizations",
    "criteria": "criteria",
}
# column: its title, and how a number is printed
COLUMNS = {
    "size": ("size, %", ".2f"),
    "flops": ("FLOPs, M", ".3f"),
    "memory": ("memory, %", ".2f"),
    "error": ("error, %", ".2f"),
    "error_before": ("validation error before the last fine-tuning, %", ".2f"),
    "validation_error": ("validation error, %", ".2f"),
    "sparsity": ("zeros a layer, %", ""),
    "ratio": ("all : kept", ".0f"),
    "temperature": ("temperature", ""),
    "test_error": ("test error", ".4g"),
    "snr": ("SNR", ".1f"),
    "spr": ("SPR", ".1f"),
    "magnitude": ("magnitude", ".1f"),
    "random": ("random", ".1f"),
    "accuracy_mean": ("mean propagation, %", ".2f"),
    "accuracy_one": ("one sample, %", ".2f"),
    "accuracy_averaged": ("20 averaged, %", ".2f"),
    "elbo": ("ELBO", ",.1f"),
    "data_term": ("data term", ",.1f"),
    "kl": ("KL", ",.1f"),
    "accuracy_before": ("accuracy before, %", ".2f"),
    "accuracy": ("accuracy, %", ".2f"),
    "speedup": ("speed-up", ".2f"),
}
MISSING = "missing"
MARKS = re.compile(r"(?<=<!-- python -m benchmarks\.tables )(.*?)( --quick -->\n).*?(?=\n<!-- end -->)", re.DOTALL)
# what becomes of an entry of the zoo that has weights
STATES = {
    "verified": "Verified on this machine",
    "stored": "Not verified, for their data are not here",
    "made": "Made anew",
    "failed": "FAILED to have their figures",
}


@dataclass(frozen=True)
class Line:
    """A line of ours: its method, what stands in its columns, where it comes from, and whether that may be trusted."""

    values: dict[str, Any]
    origin: str
    state: str  # verified, failed, stored, made or missing

    def to_json(self) -> dict[str, Any]:
        """For scripts."""
        return {**self.values, "from": self.origin, "state": self.state}


def of_figures(figures: Figures | Measured) -> dict[str, Any]:
    """The columns that the figures of a model fill."""
    averaged = getattr(figures, "samples", None) is not None
    return {
        "size": figures.weights_percent,
        "flops": figures.flops / 1e6,
        "memory": figures.memory_percent,
        "error": figures.error,
        "ratio": figures.ratio,
        "accuracy": 100 - figures.error,
        "speedup": 100 / figures.flops_percent,
        **({"accuracy_averaged": 100 - figures.error} if averaged else {}),
        **(_of_seeds(figures) if isinstance(figures, Figures) else {}),
    }


def _of_seeds(figures: Figures) -> dict[str, Any]:
    before = {} if figures.original is None else {"accuracy_before": 100 - figures.original[0]}
    spread = {"spread": figures.spread} if len(figures.seeds) > 1 else {}  # one seed tells nothing of it
    return {**spread, "seeds": list(figures.seeds), **before}


def check(entry: ZooEntry, data_root: str) -> Line:
    """An entry's stored figures, verified where that is possible."""
    method, figures = {"method": f"ours: {entry.name}"}, entry.recipe.figures
    if figures is None or not entry.stored:
        return Line(method, f"not made yet: `python -m benchmarks.store_zoo {entry.name}`", MISSING)
    values = {**method, **of_figures(figures)}
    try:
        result = verify_zoo(entry.name, data_root=data_root)
    except DataError:
        return Line(values, f"zoo:{entry.name}", "stored")
    if result.passed:
        return Line(values, f"zoo:{entry.name}", "verified")
    return Line({**method, **of_figures(result.measured)}, f"zoo:{entry.name}: {', '.join(result.failed)}", "failed")


def beside(entry: ZooEntry) -> list[Line]:
    """The shape of an entry's result, trained as long from new weights, where its recipe did that."""
    figures = entry.recipe.figures
    if figures is None or figures.scratch is None:
        return []
    error, spread = figures.scratch
    values = of_figures(figures)
    values |= {"error": error, "accuracy": 100 - error, **({"spread": spread} if "spread" in values else {})}
    return [Line({"method": f"ours: {entry.name}, from new weights", **values}, "the same recipe", "stored")]


def make(entry: ZooEntry, data_root: str, out: Path) -> Line:
    """An entry made anew from its recipe, with seed 0; one that needs files of the user's is only checked."""
    if entry.recipe.files:
        return check(entry, data_root)
    folder = out / entry.name
    snncompress("zoo", "run", entry.name, "--out", str(folder), "--data-root", data_root, "--resume")
    run, figures = load(folder / entry.recipe.result), entry.recipe.figures
    split, samples = (figures.split, figures.samples) if figures is not None else ("test", None)
    measured = measure(run, load_own_data(run, data_root), split, samples)
    return Line({"method": f"ours: {entry.name}", **of_figures(measured)}, f"zoo:{entry.name}, seed 0", "made")


def stored(table: str) -> list[Line]:
    """What the table's benchmark has left."""
    if table not in BENCHMARKS:
        return []
    result = results.read(table)
    if result is None:
        return [Line({"method": "ours"}, f"not made yet: `python -m benchmarks.{BENCHMARKS[table]} --store`", MISSING)]
    origin = f"benchmarks.{BENCHMARKS[table]} at {result['commit'][:9]}{' and changes' if result['modified'] else ''}"
    return [Line({**row, "method": f"ours: {row['method']}"}, origin, "stored") for row in result["rows"]]


def collect(table: str, data_root: str, quick: bool, out: Path) -> list[Line]:
    """All lines of ours, those of the zoo first."""
    entries = [entry for entry in list_zoo() if table in entry.recipe.tables]
    if not quick and table in BENCHMARKS:
        words = ["--data-root", data_root, "--out", str(out / table), "--store"]
        subprocess.run([sys.executable, "-m", f"benchmarks.{BENCHMARKS[table]}", *words], check=True)
    lines: list[Line] = []
    for entry in entries:
        made = [check(entry, data_root) if quick else make(entry, data_root, out), *beside(entry)]
        if table == sparse_vd.TABLE and entry.stored:
            zeros = sparse_vd.show_zeros(sparse_vd.sparsity(load(entry.folder))[0])
            made = [replace(line, values={**line.values, "sparsity": zeros}) for line in made]
        lines += made
    lines += stored(table)
    return lines or [Line({"method": "ours"}, "no recipe of the zoo names this table", MISSING)]


def render(table: dict[str, Any], lines: list[Line]) -> str:
    """A table in Markdown."""
    columns = table["columns"]
    header = ["Method", "From", *(COLUMNS[column][0] for column in columns)]
    rows = [
        [row["method"], "published", *(str(row.get(column, UNKNOWN)) for column in columns)] for row in table["rows"]
    ]
    for line in lines:
        cells = [_cell(line.values, column) for column in columns]
        rows.append([line.values["method"], line.origin, *cells])
    note = f"\n\n{table['note']}" if "note" in table else ""
    source = "" if table["source"] == "none" else f"\n\nPublished: {table['source']}."
    return f"### {table['title']}\n\n{grid(header, rows, left=2, markdown=True)}{source}{note}"


def render_all(found: dict[str, list[Line]]) -> str:
    """Tables by their names, one below the other."""
    tables = published_tables()
    return "\n\n".join(render(tables[name], lines) for name, lines in found.items())


def judge(lines: list[Line]) -> str:
    """What was verified, and what could not be, in words."""
    zoo = [line for line in lines if line.origin.startswith("zoo:")]
    names = {state: sorted({line.origin for line in zoo if line.state == state}) for state in STATES}
    parts = [f"{STATES[state]}: {', '.join(found)}." for state, found in names.items() if found]
    return " ".join(parts) or "Nothing of the zoo stands in these tables."


def refresh(text: str, data_root: str) -> str:
    """A document with what the commands in its marks print between them, but for what could be verified."""

    def write(found: re.Match[str]) -> str:
        names, end = found.groups()
        return names + end + render_all({name: collect(name, data_root, True, Path()) for name in names.split()})

    return MARKS.sub(write, text)


def _cell(values: dict[str, Any], column: str) -> str:
    value = values.get(column)
    if value is None:
        return UNKNOWN
    if isinstance(value, str):
        return value
    spread = values.get("spread") if column in ("error", "accuracy", "accuracy_averaged") else None
    shown = format(value, COLUMNS[column][1])
    return shown if spread is None else f"{shown} ± {spread:.2f}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tables = published_tables()
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"all, {', '.join(tables)}")
    parser.add_argument("--quick", action="store_true", help="train nothing")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--data-root", default="data")
    parser.add_argument("--out", type=Path, default=Path("runs/tables"), help="for what is made without --quick")
    parser.add_argument("--write", type=Path, nargs="+", default=[], metavar="FILE", help="train and print nothing")
    given = parser.parse_args(arguments)
    if unknown := set(given.names) - {"all", *tables}:
        parser.error(f"unknown: {', '.join(sorted(unknown))} (known: all, {', '.join(tables)})")
    if given.write:
        for file in given.write:
            file.write_text(refresh(file.read_text(encoding="utf-8"), given.data_root), encoding="utf-8")
        return 0
    if not given.names:
        parser.error("name a table, or all")
    names = list(tables) if "all" in given.names else given.names
    found = {name: collect(name, given.data_root, given.quick, given.out) for name in names}
    if given.json:
        shown = {name: {**tables[name], "ours": [line.to_json() for line in found[name]]} for name in names}
        print(json.dumps(shown, indent=2, ensure_ascii=False))
    else:
        print(render_all(found))
        print("\n" + judge([line for lines in found.values() for line in lines]))
    return int(any(line.state == "failed" for lines in found.values() for line in lines))


if __name__ == "__main__":
    sys.exit(main())
