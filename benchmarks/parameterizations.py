"""Table 1 of Neklyudov et al. (2019): five parameterizations of a posterior, on LeNet-5-Caffe and full MNIST.

    python -m benchmarks.parameterizations --data-root data --out runs/parameterizations

trains LeNet-5 plainly, then with a variance layer in place of its first dense layer (400,000 weights), first on shifted
images, then on the images as they are, so that the convolutions give what such layers need. Then that layer and the
classifier are trained anew under each parameterization, on the features of those convolutions, which are computed
once: a collapse of α takes dozens of epochs, and so each takes seconds. All rows get the same features and the same
epochs. The paper trains all layers from the beginning, and longer. Ten minutes a row. What is there already is not
trained or measured again, so that rows can be shared between processes with --only. Epochs and rates were chosen
without a look at the test images, which are looked at here, once.
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
from benchmarks.commands import SHIFT, ensure_run, parse, read, status
from snncompress.cli.screen import Screen
from snncompress.data.batches import Batches
from snncompress.data.dataset import Images
from snncompress.models.initial import reinitialize
from snncompress.reporting.published import published_tables
from snncompress.run import Run
from snncompress.run_files import load
from snncompress.training.options import Schedule, TrainOptions

PLAIN_EPOCHS, FEATURE_EPOCHS, DENSE_EPOCHS = 10, 20, 60
BATCH, SAMPLES = 128, 20
TABLE = "parameterizations"
COLUMNS = ("elbo", "data_term", "kl", "accuracy_mean", "accuracy_averaged")
PAPER = {row["method"]: tuple(row[column] for column in COLUMNS) for row in published_tables()[TABLE]["rows"]}
# name: method, its options, its learning rate, and the paper's columns
ROWS: dict[str, tuple[str, dict[str, str], float, tuple[float, ...]]] = {
    "zero-mean": ("variance", {}, 0.01, PAPER["zero-mean"]),
    "layer": ("vd", {"alpha": "layer"}, 0.1, PAPER["layer"]),
    "neuron": ("vd", {"alpha": "neuron"}, 0.1, PAPER["neuron"]),
    "weight": ("vd", {"alpha": "weight"}, 0.01, PAPER["weight"]),
    "additive": ("sparse-vd", {}, 0.01, PAPER["additive"]),
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


def train(name: str, source: Run, out: Path, screen: Screen) -> None:
    """One row, unless it is there: new dense layers on the features of ``source``, then put into its place."""
    method, options, noise_lr, _ = ROWS[name]
    if status(out / name) == "complete":
        return
    data = snncompress.load_data("mnist", root=source.data["root"])
    training = TrainOptions(DENSE_EPOCHS, noise_lr=noise_lr, batch_size=BATCH, schedule=Schedule.LINEAR)
    common: dict[str, Any] = {"method": method, "method_options": options, "force": True, "progress": screen}
    torch.manual_seed(0)
    head = Head(source.model)
    reinitialize(head)
    order = torch.Generator().manual_seed(0)
    dense = snncompress.train(
        snncompress.wrap(head, (800, 1, 1), name=name),
        DataLoader(features(source, data.train), BATCH, shuffle=True, generator=order),
        training, layers=["fc1"], validation=list(DataLoader(features(source, data.validation), 1000)),
        out=out / f"{name}-dense", **common,
    )  # fmt: skip
    head.load_state_dict(dense.model.state_dict())  # its layers are those of source
    whole = replace(source, noise=dense.noise, path=None)
    snncompress.train(whole, data, replace(training, epochs=0), out=out / name, **common)


def measure(out: Path, name: str) -> dict[str, Any]:
    """What a row's run was measured to be on the test images, once: the bound takes minutes."""
    file = out / f"{name}.json"
    if not file.exists():
        file.write_text(json.dumps(read("evaluate", str(out / name), "--samples", str(SAMPLES)), indent=2))
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def main() -> None:
    arguments = parse(__doc__, "runs/parameterizations", ROWS, stores=True)
    plain, shifted, convolutions = (arguments.out / name for name in ("plain", "shifted", "features"))
    data = ["--data", "mnist", "--data-root", arguments.data_root]
    ensure_run(plain, ["lenet5", *data, "--method", "none", *SHIFT, "--epochs", str(PLAIN_EPOCHS)])
    variance = ["--method", "variance", "--noise-lr", "0.03", "--epochs", str(FEATURE_EPOCHS)]
    variance += ["--batch-size", str(BATCH), "--schedule", "linear"]
    ensure_run(shifted, [str(plain), *variance, "--layers", "fc1", *SHIFT])
    ensure_run(convolutions, [str(shifted), *variance])
    for name in arguments.only or ROWS:
        with Screen(quiet=False, json=False) as screen:
            train(name, load(convolutions), arguments.out, screen)
        measure(arguments.out, name)
    if arguments.only:
        return
    rows, kept = [], []
    for name, (*_, paper) in ROWS.items():
        result = measure(arguments.out, name)
        bound = result["elbo"]
        accuracies = 100 - result["error"], 100 - result["averaged"]["error"]
        ours = (bound["elbo"], bound["data"], bound["kl"], *accuracies)
        shown = [f"{value:,.1f} ({theirs:,.1f})" for value, theirs in zip(ours, paper, strict=True)]
        shown[1] = f"{bound['data']:,.1f} ± {bound['deviation']:.1f} ({paper[1]:,.1f})"
        rows.append([name, *shown])
        kept.append({"method": name, **dict(zip(COLUMNS, ours, strict=True))})
    if arguments.store:
        stored.write(TABLE, kept)
    header = ["parameterization", "ELBO (paper)", "data term", "KL", "mean propagation, %", f"{SAMPLES} averaged, %"]
    print(tabulate(rows, header, tablefmt="github", disable_numparse=True))


if __name__ == "__main__":
    main()
