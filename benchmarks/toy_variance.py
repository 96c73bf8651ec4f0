"""The toy problem of Neklyudov et al. (2019), §3.2: four classes through a bottleneck of two zero-mean neurons.

    python -m benchmarks.toy_variance --out docs/toy_variance.png

trains six hidden linear layers, the fifth a Gaussian variance layer with two outputs, for four seeds (some ten seconds
each), prints the accuracies, and draws samples of the two activations, as in the paper's Figure 1, for the first two
seeds that tell all classes apart (others may stay where two classes look alike: 75%).
"""

from __future__ import annotations

import argparse
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn

import snncompress
from snncompress.evaluation.sampling import StochasticEvaluation, evaluate_stochastic
from snncompress.noise.branch import Mode
from snncompress.run import Run

CENTRES = torch.tensor([(3.0, 3.0), (3.0, 10.0), (10.0, 3.0), (10.0, 10.0)])
WIDTH, BATCH = 200, 200
Batches = list[tuple[Tensor, Tensor]]


def make_data(count: int, seed: int) -> Batches:
    """Points of four Gaussians with unit covariance, as images of one row and two columns."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(4, (count,), generator=generator)
    points = (CENTRES[labels] + torch.randn(count, 2, generator=generator) - 6.5) / 3.5  # around zero
    return list(zip(points.view(-1, 1, 1, 2).split(BATCH), labels.split(BATCH), strict=True))


def build(seed: int) -> nn.Sequential:
    """Six hidden linear layers and a classifier; the fifth, ``bottleneck``, has two outputs.

    ReLU follows all hidden layers but the bottleneck, where it would hide every sample that is negative.
    """
    torch.manual_seed(seed)
    model = nn.Sequential()
    model.add_module("flatten", nn.Flatten())
    for index, (inputs, outputs) in enumerate(pairwise([2, *[WIDTH] * 4, 2, WIDTH, 4]), 1):
        model.add_module("bottleneck" if index == 5 else f"layer{index}", nn.Linear(inputs, outputs))
        if index not in (5, 7):
            model.add_module(f"relu{index}", nn.ReLU())
    return model


def train(seed: int, epochs: int) -> Run:
    """The toy network with its bottleneck trained by variances only."""
    run = snncompress.wrap(build(seed), (1, 1, 2), name="toy")
    options = snncompress.TrainOptions(epochs=epochs, lr=3e-3, noise_lr=3e-2, seed=seed)
    return snncompress.train(run, make_data(4000, seed), options, method="variance", layers=["bottleneck"])


def measure(run: Run, seed: int) -> StochasticEvaluation:
    """Accuracies on new points."""
    return evaluate_stochastic(run, make_data(2000, seed + 1000), make_data(4000, seed), 20)


@torch.no_grad()
def activations(run: Run, batches: Batches) -> tuple[Tensor, Tensor]:
    """One sample of the bottleneck's two outputs for every point, and the points' classes."""
    noise = run.attach_noise(run.model)
    assert noise is not None
    found: list[Tensor] = []
    handle = run.model.get_submodule("bottleneck").register_forward_hook(lambda _, __, output: found.append(output))
    with noise.mode(Mode.SAMPLE):
        for points, _ in batches:
            run.model(points)
    handle.remove()
    noise.detach()
    return torch.cat(found), torch.cat([labels for _, labels in batches])


def plot(runs: dict[int, Run], out: Path) -> None:
    """A picture a run, by seed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(runs), figsize=(4.5 * len(runs), 4.5), squeeze=False)
    for (seed, run), axis in zip(runs.items(), axes[0], strict=True):
        values, labels = activations(run, make_data(2000, seed + 1000))
        for index, (x, y) in enumerate(CENTRES.tolist()):
            chosen = values[labels == index]
            axis.scatter(chosen[:, 0], chosen[:, 1], s=5, alpha=0.5, label=f"class at ({x:.0f}, {y:.0f})")
        axis.set(title=f"seed {seed}", xlabel="neuron 1", ylabel="neuron 2")
        axis.set_xscale("symlog", linthresh=0.1)
        axis.set_yscale("symlog", linthresh=0.1)
        axis.set_xticks([-1e4, -1e2, -1, 0, 1, 1e2, 1e4])
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="lower center", ncols=4, markerscale=2, frameon=False)
    figure.suptitle("Samples of a variance layer's two activations: the mean is zero, the spread tells the class")
    figure.tight_layout(rect=(0, 0.05, 1, 1))
    figure.savefig(out, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/toy_variance.png"))
    parser.add_argument("--epochs", type=int, default=60)
    arguments = parser.parse_args()
    runs = {}
    for seed in range(4):
        run = train(seed, arguments.epochs)
        result = measure(run, seed)
        if result.sampled.averaged.error < 5 and len(runs) < 2:
            runs[seed] = run
        print(
            f"seed {seed}: accuracy by one sample {100 - result.sampled.one.error:.2f}%, by 20 averaged "
            f"{100 - result.sampled.averaged.error:.2f}%, by mean propagation {100 - result.mean.error:.2f}%"
        )
    plot(runs, arguments.out)


if __name__ == "__main__":
    main()
