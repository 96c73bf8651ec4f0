"""A training step of pruned networks on a CPU: thin convolutions with the batch last against torch's own.

    python -m benchmarks.thin_step [--quick]

The networks are those of the zoo that have such convolutions. Both ways live in one process and take turns, so that a
busy machine slows them alike; a ratio is that of two turns of the same round, and of all rounds the median is shown.
"""

from __future__ import annotations

import argparse
import copy
import statistics
from contextlib import nullcontext

import torch
from tabulate import tabulate

from benchmarks.training_step import milliseconds
from snncompress.run_files import load
from snncompress.training.learner import Learner
from snncompress.training.options import TrainOptions
from snncompress.zoo.entries import find_zoo

NETWORKS = ("lenet5-mnist", "lenet5-tiny", "lenet5-sparse")
BATCH_SIZES = (1024, 256, 64)
LR = 1e-5  # small: the numbers that are computed with should stay ordinary


def compare(name: str, batch_size: int, rounds: int, steps: int) -> list[str]:
    """A row of the table."""
    run = load(find_zoo(name).need_weights())
    images, labels = torch.randn(batch_size, *run.input_shape), torch.randint(10, (batch_size,))
    ours, torchs = (Learner(copy.deepcopy(run.model), None, TrainOptions(), sparse=run.sparse) for _ in range(2))
    torchs._fast = nullcontext()
    taken: dict[Learner, list[float]] = {ours: [], torchs: []}
    for index in range(rounds + 1):
        for learner, times in taken.items():
            found = milliseconds(lambda learner=learner: learner.step(images, labels, LR), steps)
            if index:  # in the first, kernels are compiled
                times.append(found)
    ratios = [other / our for our, other in zip(taken[ours], taken[torchs], strict=True)]
    middles = [f"{statistics.median(taken[learner]):.1f}" for learner in (torchs, ours)]
    return [f"zoo:{name}", str(batch_size), *middles, f"{statistics.median(ratios):.2f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few rounds")
    rounds = 5 if parser.parse_args().quick else 15
    rows = [compare(name, size, rounds, steps=20) for name in NETWORKS for size in BATCH_SIZES]
    print(tabulate(rows, ["network", "batch", "torch, ms", "ours, ms", "times faster"], tablefmt="github"))
    print(f"\ntorch {torch.__version__}, {torch.get_num_threads()} threads, {rounds} rounds")


if __name__ == "__main__":
    main()
