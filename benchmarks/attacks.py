"""Figure 2 of SE-SNN on full MNIST: accuracy of a plain network, VIB and SE-SNN under FGS and CW attacks.

    python -m benchmarks.attacks --data-root data --out runs/attacks

trains perceptrons of 1024, 1024 and 256 hidden neurons, the last of which are stochastic in VIB and SE-SNN: ω and β are
chosen by FGS attacks on validation images (seed 0), then two seeds of each are attacked on the test images, once: by
FGS on all of them, one of each by CW on the first 200. Networks that were trained with attacked images, one of each,
meet FGS and PGD. Checks tell whether a defence is only bad aim: gradients as float32 rounds them, more samples in each,
those of the mean network, and PGD. About an hour on one core. What is there already is not made again, so that it can
be interrupted; --only fgs checks leaves the slower parts out.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tabulate import tabulate

from benchmarks.commands import Command, ensure_run, parse, read
from snncompress.reporting.charts import COLOURS
from snncompress.reporting.tradeoff import figure_of, write_figure

SEEDS = (0, 1)
CW_SEEDS = (0,)  # the attack takes as long as training
EPOCHS, HARD_EPOCHS = "10", "5"  # the latter of networks that learn from attacked images, three times as slow
LAST = ["--layers", "last-hidden"]
# method: the candidates that are compared on validation images
CANDIDATES: dict[str, dict[str, Command]] = {
    "baseline": {"": ["--method", "none"]},
    "vib": {f"beta{b}": ["--method", "vib", "-o", f"beta={b}", *LAST] for b in ("0.001", "0.01")},
    "se-snn": {
        f"omega{w}": ["--method", "se-snn", "--aggregate", "both", "--omega", w, "--margin", "16", *LAST]
        for w in ("0.1", "1")
    },
}
FGS = ["--attack", "fgs"]
TUNE = [*FGS, "--split", "validation", "--limit", "2000"]
CW = ["--attack", "cw", "--limit", "200", "--steps", "100", "--gradient-samples", "10", "--eps", "0:4:0.5"]
PGD = ["--attack", "pgd", "--limit", "500", "--gradient-samples", "10", "--eps", "0.1,0.2,0.3"]
ADVERSARIAL = "0.3"
ROUNDED = "fgs, rounded, 20 samples"
FEW = [*FGS, "--limit", "2000", "--eps", "0:0.5:0.1"]
CHECKS: dict[str, Command] = {  # of seed 0, on the first test images
    "fgs, 20 samples": FEW,
    "fgs, 200 samples": [*FEW, "--gradient-samples", "200"],
    "fgs, 1 sample": [*FEW, "--gradient-samples", "1"],
    "fgs, of the mean network": [*FEW, "--gradient", "mean"],
    ROUNDED: [*FEW, "--gradient", "rounded"],
    "fgs, rounded, 1 sample": [*FEW, "--gradient", "rounded", "--gradient-samples", "1"],
    "pgd, 10 samples": PGD,
}
SECTIONS = ("fgs", "checks", "cw", "adversarial")
SHOWN = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)


def train(out: Path, data_root: str, method: str, choice: str, seed: int, adversarial: bool = False) -> Path:
    """A run, trained unless it is there."""
    parts = [method, choice, "adversarial" if adversarial else "", f"seed{seed}"]
    folder = out / "-".join(part for part in parts if part)
    model = ["mlp", "--data", "mnist", "--data-root", data_root, "--model-arg", "widths=1024-1024-256"]
    more = ["--adversarial", f"fgs:{ADVERSARIAL}"] if adversarial else []
    epochs = HARD_EPOCHS if adversarial else EPOCHS
    ensure_run(folder, [*model, *CANDIDATES[method][choice], *more, "--epochs", epochs, "--seed", str(seed)])
    return folder


def attacked(folder: Path, options: Command) -> dict[str, Any]:
    """What an attack says, remembered in a file beside the run's."""
    name = "".join(letter if letter.isalnum() or letter in ".-" else "_" for letter in " ".join(options))
    file = folder / "attacked" / f"{name}.json"
    if not file.exists():
        print(f"attack {folder.name} {' '.join(options)}", flush=True)
        result = read("attack", str(folder), *options)
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(result))
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def choose(out: Path, data_root: str, method: str) -> str:
    """The candidate with the best mean accuracy over all strengths on attacked validation images."""
    scores = {}
    for choice in CANDIDATES[method]:
        if len(CANDIDATES[method]) == 1:
            return choice
        folder = train(out, data_root, method, choice, 0)
        scores[choice] = statistics.fmean(attacked(folder, TUNE)["accuracy"])
    print(method, {name: round(score, 2) for name, score in scores.items()}, flush=True)
    return max(scores, key=scores.__getitem__)


def over_seeds(results: list[dict[str, Any]]) -> dict[str, list[float]]:
    """Mean and standard deviation of curves."""
    curves = [result["accuracy"] for result in results]
    columns = list(zip(*curves, strict=True))
    return {
        "eps": results[0]["eps"],
        "accuracy": [statistics.fmean(column) for column in columns],
        "std": [statistics.pstdev(column) for column in columns],
    }


def gather(out: Path, data_root: str, sections: Sequence[str]) -> dict[str, Any]:
    """Trains and attacks all that these sections need and is not there yet; the numbers of every curve."""
    chosen = {method: choose(out, data_root, method) for method in CANDIDATES}
    found: dict[str, Any] = {"chosen": chosen}
    first = {method: train(out, data_root, method, chosen[method], 0) for method in chosen}
    if "checks" in sections:
        found["checks"] = {
            name: {method: over_seeds([attacked(folder, options)]) for method, folder in first.items()}
            for name, options in CHECKS.items()
        }
    for section, options, seeds in (("fgs", FGS, SEEDS), ("cw", CW, CW_SEEDS)):
        if section in sections:
            results: dict[str, list[dict[str, Any]]] = {method: [] for method in chosen}
            for seed in seeds:
                for method in chosen:
                    results[method].append(attacked(train(out, data_root, method, chosen[method], seed), options))
            found[section] = {method: over_seeds(each) for method, each in results.items()}
            if section == "cw":
                found["shortest"] = {
                    method: {
                        key: statistics.fmean(result["shortest"][key] for result in each) for key in ("l2", "success")
                    }
                    for method, each in results.items()
                }
    if "adversarial" in sections:
        hard = {method: train(out, data_root, method, chosen[method], 0, adversarial=True) for method in chosen}
        for name, options in (("adversarial", FGS), ("adversarial pgd", PGD)):
            found[name] = {method: over_seeds([attacked(folder, options)]) for method, folder in hard.items()}
    return found


def draw(found: dict[str, Any], out: Path) -> None:
    """The curves as in Figure 2, and what rounded gradients would make of them."""
    panels = [
        ("FGS", found.get("fgs"), "Largest change of a pixel"),
        ("FGS, gradients rounded by float32", found.get("checks", {}).get(ROUNDED), "Largest change of a pixel"),
        ("FGS, trained with attacked images", found.get("adversarial"), "Largest change of a pixel"),
        ("CW", found.get("cw"), "Euclidean length of the change"),
    ]
    panels = [panel for panel in panels if panel[1]]
    figure, panes = figure_of(out, len(panels))
    figure.set_size_inches(3.75 * len(panels), 3.9)
    for axes, (title, curves, label) in zip(panes, panels, strict=True):
        for (method, curve), colour, mark in zip(curves.items(), COLOURS, "osD", strict=False):
            low, high = ([m + s * d for m, d in zip(curve["accuracy"], curve["std"], strict=True)] for s in (-1, 1))
            axes.plot(curve["eps"], curve["accuracy"], color=colour, marker=mark, markersize=4, label=method)
            axes.fill_between(curve["eps"], low, high, color=colour, alpha=0.16, linewidth=0)
        axes.set_title(title, loc="left", fontsize=10)
        axes.set(xlabel=label, ylim=(-3, 103))
        axes.grid(True, color="#dddddd", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    panes[0].set_ylabel("Accuracy on test images (%)")
    panes[0].legend(frameon=False)
    write_figure(figure, out)


def rows_of(name: str, curves: dict[str, Any]) -> list[list[str]]:
    """A line a method at the strengths that a table shows."""
    rows = []
    for method, curve in curves.items():
        at = dict(zip(curve["eps"], zip(curve["accuracy"], curve["std"], strict=True), strict=True))
        cells = ["" if e not in at else f"{at[e][0]:.1f}" + (f" ± {at[e][1]:.1f}" if at[e][1] else "") for e in SHOWN]
        rows.append([name, method, *cells])
    return rows


def lengths_table(found: dict[str, Any]) -> str:
    """CW: accuracy at some lengths, and the lengths that were found."""
    lengths = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0)
    rows = []
    for method, curve in found["cw"].items():
        at = dict(zip(curve["eps"], zip(curve["accuracy"], curve["std"], strict=True), strict=True))
        cells = [f"{at[length][0]:.1f}" + (f" ± {at[length][1]:.1f}" if at[length][1] else "") for length in lengths]
        short = found["shortest"][method]
        rows.append([method, *cells, f"{short['l2']:.2f}", f"{short['success']:.1f}%"])
    header = ["CW", *(f"L2 {length:g}" for length in lengths), "mean L2 found", "success, judged again"]
    return tabulate(rows, header, tablefmt="github", disable_numparse=True)


def main() -> None:
    arguments = parse(__doc__, "runs/attacks", SECTIONS)
    found = gather(arguments.out, arguments.data_root, arguments.only or SECTIONS)
    (arguments.out / "table.json").write_text(json.dumps(found, indent=2))
    draw(found, arguments.out / "attacks.png")
    rows = rows_of("FGS", found.get("fgs", {}))
    for name, curves in found.get("checks", {}).items():
        rows += rows_of(f"check: {name}", curves)
    rows += rows_of("trained with attacked images: FGS", found.get("adversarial", {}))
    rows += rows_of("trained with attacked images: PGD", found.get("adversarial pgd", {}))
    print(
        tabulate(rows, ["attack", "method", *(f"ε = {e:g}" for e in SHOWN)], tablefmt="github", disable_numparse=True)
    )
    if "cw" in found:
        print(lengths_table(found))
    print("chosen on validation images:", found["chosen"])


if __name__ == "__main__":
    main()
