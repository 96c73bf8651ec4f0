"""How long the way from a plain LeNet-5 to the SE-SNN row takes (full MNIST), what it is spent on, and Torch-Pruning's.

    python -m benchmarks.speed --data-root data --out runs/speed

trains a plain LeNet-5-Caffe, then times what the zoo's recipe `lenet5-mnist` does with it: retraining with SE-SNN
noise, pruning, fine-tuning. Prints the seconds and what they were spent on, and what a removed neuron costs as the
network shrinks. Beside it Torch-Pruning's iterative pruner (`pip install "snncompress[bench]"`) brings the same plain
network down to the same FLOPs, by Taylor importance, with as many rounds, as many fine-tuning steps and as many epochs
at the end, by the same learner. Errors are those of the validation images.
"""

from __future__ import annotations

import argparse
import copy
import functools
import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate
from torch import nn

import snncompress as library
from benchmarks.commands import follow, status
from snncompress.pruning import neurons, session
from snncompress.pruning.options import PruneOptions
from snncompress.pruning.subject import Subject
from snncompress.run import Run
from snncompress.run_files import load
from snncompress.run_folder import RunFolder
from snncompress.training import epoch_end
from snncompress.training.feed import Cursor, Feed, make_feed, pick_device
from snncompress.training.learner import Learner
from snncompress.training.options import TrainOptions

RECIPE = "lenet5-mnist"
# what the time is spent on: where that is done
WATCHED: dict[str, list[tuple[Any, str]]] = {
    "training": [(Learner, "step")],
    "batches": [(Cursor, "take")],
    "scoring": [(Subject, "rank"), (epoch_end, "observe")],
    "surgery": [(Subject, "remove"), (neurons, "find_dead"), (neurons, "check_exact"), (neurons, "outputs")],
    "evaluation": [(session, "validate"), (session, "reestimate"), (epoch_end, "validate"), (epoch_end, "reestimate")],
    "saving": [(RunFolder, "save"), (RunFolder, "save_point"), (RunFolder, "finish")],
}


class Stopwatch:
    """Seconds by what they were spent on, and when neurons went."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.removals: list[tuple[float, int]] = []  # when, and how many neurons were left

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Watches all that happens meanwhile."""
        places = [(kind, owner, name) for kind, places in WATCHED.items() for owner, name in places]
        originals = [getattr(owner, name) for _, owner, name in places]
        began = time.perf_counter()
        for (kind, owner, name), original in zip(places, originals, strict=True):
            setattr(owner, name, self._timed(kind, original))
        try:
            yield
        finally:
            for (_, owner, name), original in zip(places, originals, strict=True):
                setattr(owner, name, original)
            self.seconds["all"] += time.perf_counter() - began

    def _timed(self, kind: str, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return original(*args, **kwargs)
            finally:
                now = time.perf_counter()
                self.seconds[kind] += now - began
                if original.__name__ == "remove":
                    self.removals.append((now, sum(args[0].widths().values())))

        return timed

    def shares(self) -> dict[str, float]:
        """Seconds by what they were spent on; the rest is what nobody watched."""
        found = {kind: self.seconds[kind] for kind in WATCHED}
        return {**found, "the rest": self.seconds["all"] - sum(found.values()), "all": self.seconds["all"]}

    def by_width(self, stages: int = 4) -> list[list[str]]:
        """Seconds for each removed neuron, by how many were left."""
        rounds = list(zip(self.removals, self.removals[1:], strict=False))
        rows = []
        for stage in range(stages):
            part = rounds[stage * len(rounds) // stages : (stage + 1) * len(rounds) // stages]
            if part:
                (began, before), (ended, after) = part[0][0], part[-1][1]
                rows.append([f"{before} to {after}", f"{(ended - began) / max(before - after, 1):.3f}"])
        return rows


def ours(out: Path, data_root: str, clock: Stopwatch) -> Run:
    """SE-SNN retraining, pruning and fine-tuning, timed."""
    if status(out / "noisy") is not None:
        raise SystemExit(f"{out} holds a run that cannot be timed any more; choose another --out")
    with clock.watch():
        return load(follow(RECIPE, out, data_root, until="small"))


def torch_pruning(plain: Run, small: Run, feeds: tuple[Feed, Feed], rounds: int) -> nn.Module:
    """Its own iterative pruner, with our learner and batches between its rounds and at the end."""
    import torch_pruning as tp

    options = TrainOptions()
    model = copy.deepcopy(plain.model)
    example = torch.zeros(1, *plain.input_shape)
    importance = tp.importance.TaylorImportance()
    flops = library.measure_cost(small.model, plain.input_shape).flops
    ratio = _ratio(plain, flops, lambda share, network: _pruner(tp, network, example, importance, share, 1))
    pruner = _pruner(tp, model, example, importance, ratio, rounds)
    learner = Learner(model, None, options)
    cursor, step = Cursor(feeds[0].train), 0
    for _ in range(rounds):
        images, labels = cursor.take(step)
        model.zero_grad()
        learner.loss(model(images), labels).backward()  # what Taylor importance reads
        pruner.step()
        learner.rebuild()
        for _ in range(PruneOptions().finetune_steps):
            learner.step(*cursor.take(step), lr=options.lr)
            step += 1
    final = TrainOptions(lr=small.config["lr"], epochs=small.config["epochs"])
    cursor, total = Cursor(feeds[1].train), final.epochs * len(feeds[1].train)
    for step in range(total):
        learner.step(*cursor.take(step), lr=final.rate(step / total))
    return model


def _pruner(tp: Any, model: nn.Module, example: torch.Tensor, importance: Any, ratio: float, rounds: int) -> Any:
    ignored = [model.get_submodule("fc2")]
    return tp.pruner.BasePruner(
        model, example, importance, pruning_ratio=ratio, iterative_steps=rounds, ignored_layers=ignored
    )


def _ratio(plain: Run, flops: int, make: Callable[[float, nn.Module], Any]) -> float:
    """The smallest share of every layer that must go, to a thousandth."""
    for thousandth in range(500, 1000):
        model = copy.deepcopy(plain.model)
        sum(p.sum() for p in model.parameters()).backward()  # any gradient: only the widths are looked at
        make(thousandth / 1000, model).step()
        if library.measure_cost(model, plain.input_shape).flops <= flops:
            return thousandth / 1000
    raise SystemExit("Torch-Pruning cannot meet the target")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", default="data")
    parser.add_argument("--out", type=Path, default=Path("runs/speed"))
    arguments = parser.parse_args()
    clock = Stopwatch()
    start = load(follow(RECIPE, arguments.out, arguments.data_root, until="plain"))
    small = ours(arguments.out, arguments.data_root, clock)

    dataset = library.load_data("mnist", root=arguments.data_root)
    between = load(arguments.out / "cut").config["training"]
    options = [TrainOptions(augment=each["augment"], batch_size=each["batch_size"]) for each in (between, small.config)]
    first, last = (make_feed(dataset, None, each, start.normalization, pick_device("auto")) for each in options)
    points = json.loads((arguments.out / "cut" / "curve.json").read_text())
    began = time.perf_counter()
    theirs = torch_pruning(start, small, (first, last), max(point["round"] for point in points))
    seconds = time.perf_counter() - began

    rows = []
    for method, model, spent in (("ours", small.model, clock.seconds["all"]), ("Torch-Pruning", theirs, seconds)):
        cost = library.measure_cost(model, start.input_shape)
        widths = "-".join(str(len(layer.weight)) for layer in model.children() if hasattr(layer, "weight"))
        assert last.validation is not None
        error = library.evaluate(model, last.validation).error
        rows.append({"method": f"{method}, {widths}", "seconds": spent, "flops": cost.flops / 1e6, "error": error})
    shown = [[r["method"], f"{r['seconds']:.0f}", f"{r['flops']:.3f}", f"{r['error']:.2f}%"] for r in rows]
    print(tabulate(shown, ["", "seconds", "FLOPs, M", "validation error"], tablefmt="github", disable_numparse=True))
    shares = [[kind, f"{spent:.0f}", f"{spent / clock.seconds['all']:.1%}"] for kind, spent in clock.shares().items()]
    print("\n" + tabulate(shares, ["spent on", "seconds", "share"], tablefmt="github", disable_numparse=True))
    print("\n" + tabulate(clock.by_width(), ["neurons left", "seconds a removed neuron"], tablefmt="github"))


if __name__ == "__main__":
    main()
