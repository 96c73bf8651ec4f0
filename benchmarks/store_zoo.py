"""Makes an entry of the model zoo: follows its recipe once a seed, measures what comes out, and stores the first.

    python -m benchmarks.store_zoo lenet5-mnist --seeds 0 1 2 --data-root data --out runs/zoo

also measures the networks before they were made smaller and those of the same shape that were trained from new
weights, where the recipe names them (`original`, `scratch`), and writes `run.json`, `model.safetensors`,
`probe.safetensors` and, after pruning, `plan.json` into `model_zoo/NAME`, and `[figures]` into its `recipe.toml`. The
stored run is that of the first seed, not the best one. What is there already is not made again, so that it can be
interrupted, or shared between processes by their seeds with --only-run. Later, or on another machine,

    python -m benchmarks.store_zoo lenet5-mnist --seeds 3 4 --add

puts the errors of further seeds beside those of the figures, and leaves the stored run as it is. With --until RESULT
what the recipe makes after its result, such as the network from new weights, is left out and stands in no figure.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.commands import snncompress, status
from snncompress.cli.screen import Screen
from snncompress.run_files import load
from snncompress.zoo.entries import find_zoo
from snncompress.zoo.measuring import Measured, load_own_data, measure, state
from snncompress.zoo.storing import store, write_figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--data-root", default="data")
    parser.add_argument("--out", type=Path, default=Path("runs/zoo"), help="holds a folder a seed")
    parser.add_argument("--file", nargs="*", default=[], help="KEY=PATH, for recipes that need files")
    parser.add_argument("--split", default="test", choices=["test", "validation"])
    parser.add_argument("--samples", type=int, help="state the error of so many averaged samples")
    parser.add_argument("--only-run", action="store_true", help="store nothing")
    parser.add_argument("--until", help="stop after the step that makes this run")
    parser.add_argument("--add", action="store_true", help="further seeds for an entry that has figures")
    arguments = parser.parse_args()
    entry = find_zoo(arguments.name)
    if arguments.add and entry.recipe.figures is None:
        parser.error(f"{entry.name} has no figures yet that seeds could be added to; leave --add out")
    folders = [arguments.out / f"{entry.name}-seed{seed}" for seed in arguments.seeds]
    options = [word for file in arguments.file for word in ("--file", file)]
    options += ["--resume"] if arguments.until is None else ["--resume", "--until", arguments.until]
    for seed, folder in zip(arguments.seeds, folders, strict=True):
        place = ["--out", str(folder), "--data-root", arguments.data_root]
        snncompress("zoo", "run", entry.name, "--seed", str(seed), *place, *options)
    if arguments.only_run:
        return
    with Screen() as screen:

        def measured(name: str | None, samples: int | None = None) -> list[Measured]:
            """The runs of that name, one a seed; none if they were not made."""
            made = name is not None and all(status(folder / name) == "complete" for folder in folders)
            named = [load(folder / str(name)) for folder in folders] if made else []
            return [
                measure(run, load_own_data(run, arguments.data_root), arguments.split, samples, progress=screen)
                for run in named
            ]

        results = measured(entry.recipe.result, arguments.samples)
        beside = measured(entry.recipe.original), measured(entry.recipe.scratch)
    figures = state(arguments.seeds, results, arguments.split, arguments.samples, *beside)
    if arguments.add:
        assert entry.recipe.figures is not None  # looked at before anything was made
        write_figures(entry, entry.recipe.figures.joined(figures))
    else:
        store(entry, load(folders[0] / entry.recipe.result), figures, folders[0])
    snncompress("zoo", "verify", entry.name, "--data-root", arguments.data_root)


if __name__ == "__main__":
    main()
