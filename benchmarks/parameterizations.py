"""Table 1 of Neklyudov et al. (2019): five parameterizations of a posterior, on LeNet-5-Caffe and full MNIST.

    python -m benchmarks.parameterizations --data-root data --out runs/parameterizations

trains LeNet-5 plainly, then its first dense layer (400,000 weights) under each parameterization, and prints ELBO, data
term, KL and accuracies beside the paper's. A collapse of α takes a hundred epochs and more. So the dense layers are
trained alone first, on the features of the plain network's convolutions, which are computed once (an epoch takes
seconds); then all layers together, twice. The paper trains all layers from the beginning. Forty minutes a row.
What is there already is not trained again, so that it can be interrupted, or shared between processes with --only.
Epochs and rates were chosen on the validation split; the test images are looked at here, once.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import snncompress
from benchmarks import results as stored
from benchmarks.commands import ensure_run, parse, read, status
from snncompress.cli.screen import Screen
from snncompress.data.batches import Batches
from snncompress.data.dataset import Images
from snncompress.reporting.published import published_tables
from snncompress.run import Run
from snncompress.run_files import load
from snncompress.training.options import Schedule, TrainOptions

PLAIN_EPOCHS, DENSE_EPOCHS, JOINT_EPOCHS = 20, 100, 20  # the data terms are compared, so features must be good
JOINT_PHASES = 2  # the learning rate falls to zero in each: after one, single neurons still resist the collapse
BATCH, SAMPLES = 128, 20
TABLE = "parameterizations"
COLUMNS = ("elbo", "data_term", "kl", "accuracy_mean", "accuracy_averaged")
PAPER = {row["method"]: tuple(row[column] for column in COLUMNS) for row in published_tables()[TABLE]["rows"]}
# name: method, its options, its learning rate, and the paper's columns
ROWS: dict[str, tuple[str, dict[str, str], float, tuple[float, ...]]] = {
    "zero-mean": ("variance", {}, 0.03, PAPER["zero-mean"]),
    "layer": ("vd", {"alpha": "layer"}, 0.1, PAPER["layer"]),
    "neuron": ("vd", {"alpha": "neuron"}, 0.1, PAPER["neuron"]),
    "weight": ("vd", {"alpha": "weight"}, 0.03, PAPER["weight"]),
    "additive": ("sparse-vd", {}, 0.03, PAPER["additive"]),
}


class Head(nn.Module):
    """The dense layers of a LeNet-5."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.fc1, self.fc2 = model.get_submodule("fc1"), model.get_submodule("fc2")

    def forward(self, features: Tensor) -> Tensor:
        """Features (B, 800, 1, 1) to logits."""
        return self.fc2(self.fc1(features.flatten(1)).relu())  # type: ignore[no-any-return]


@torch.no_grad()
def features(run: Run, images: Images) -> TensorDataset:
    """What fc1 reads for every image, and the labels."""
    found: list[Tensor] = []
    handle = run.model.get_submodule("fc1").register_forward_pre_hook(lambda _, inputs: found.append(inputs[0]))
    for batch, _ in Batches(images, 1000, run.normalization, device=torch.device("cpu")):
        run.model(batch)
    handle.remove()
    return TensorDataset(torch.cat(found)[:, :, None, None], images.labels)


def train(name: str, plain: Run, out: Path, screen: Screen) -> None:
    """One row, unless it is there: the dense layers alone, then all."""
    method, options, noise_lr, _ = ROWS[name]
    data = snncompress.load_data("mnist", root=plain.data["root"])
    common: dict[str, Any] = {"method": method, "method_options": options, "force": True, "progress": screen}
    training = TrainOptions(DENSE_EPOCHS, noise_lr=noise_lr, batch_size=BATCH, schedule=Schedule.LINEAR)
    dense = out / f"{name}-dense"
    if status(dense) != "complete":
        order = torch.Generator().manual_seed(0)
        snncompress.train(
            snncompress.wrap(Head(plain.model), (800, 1, 1), name=name),
            DataLoader(features(plain, data.train), BATCH, shuffle=True, generator=order),
            training, layers=["fc1"], validation=list(DataLoader(features(plain, data.validation), 1000)),
            out=dense, **common,
        )  # fmt: skip
    for phase in range(1, JOINT_PHASES + 1):
        folder = out / (name if phase == JOINT_PHASES else f"{name}-joint{phase}")
        if status(folder) == "complete":
            continue
        if phase > 1:
            joint = load(out / f"{name}-joint{phase - 1}")
        else:
            head = load(dense, model=Head(plain.model))  # puts its weights into the layers of `plain`
            joint = replace(plain, noise=head.noise, path=None)
        snncompress.train(joint, data, replace(training, epochs=JOINT_EPOCHS), out=folder, **common)


def main() -> None:
    arguments = parse(__doc__, "runs/parameterizations", ROWS, stores=True)
    folder = arguments.out / "plain"
    data = ["--data", "mnist", "--data-root", arguments.data_root]
    ensure_run(folder, ["lenet5", *data, "--method", "none", "--epochs", str(PLAIN_EPOCHS)])
    for name in arguments.only or ROWS:
        with Screen(quiet=False, json=False) as screen:
            train(name, load(folder), arguments.out, screen)
    if arguments.only:
        return
    rows, results, kept = [], {}, []
    for name, (*_, paper) in ROWS.items():
        result = results[name] = read("evaluate", str(arguments.out / name), "--samples", str(SAMPLES))
        bound = result["elbo"]
        accuracies = 100 - result["error"], 100 - result["averaged"]["error"]
        ours = (bound["elbo"], bound["data"], bound["kl"], *accuracies)
        rows.append([name, *(f"{value:,.1f} ({theirs:,.1f})" for value, theirs in zip(ours, paper, strict=True))])
        kept.append({"method": name, **dict(zip(COLUMNS, ours, strict=True))})
    (arguments.out / "table.json").write_text(json.dumps(results, indent=2))
    if arguments.store:
        stored.write(TABLE, kept)
    header = ["parameterization", "ELBO (paper)", "data term", "KL", "mean propagation, %", f"{SAMPLES} averaged, %"]
    print(tabulate(rows, header, tablefmt="github", disable_numparse=True))


if __name__ == "__main__":
    main()
