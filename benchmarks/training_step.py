"""A training step with noise against the plain one, and against two libraries of Bayesian layers.

    python -m benchmarks.training_step [--quick] [--json FILE]

A step is forward, loss and penalty, backward, Adam, on random images, by the learner that ``snncompress train`` uses,
whatever made the network. Times: all variants live in one process and take turns, so that a busy machine slows them
alike; a ratio is that of two turns of the same round, and of all rounds the median and the quartiles are shown.
Memory: each variant in a process of its own, by how much its peak is above what it held before the network was built.

The libraries (``pip install "snncompress[bench]"``) build the same network the way their documents say. Note that they
do different things: ``reparameterization`` and blitz draw one set of weights for the whole batch, which needs one
convolution; se-snn, sparse-vd and flipout give every image its own noise, which needs two.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from tabulate import tabulate
from torch import Tensor, nn

from snncompress import registry
from snncompress.noise.attach import attach
from snncompress.noise.branch import Clock
from snncompress.training.learner import Learner
from snncompress.training.options import Precision, TrainOptions

BATCH_SIZES = {"lenet5": 256, "vgg16": 32, "resnet56": 128}
EXAMPLES = 50_000  # in the training data that the KL is divided by
LR = 1e-4  # small: the numbers that are computed with should stay ordinary
MEMORY_STEPS = 2  # the first makes the optimizer's state, the second has all at once


@dataclass(frozen=True)
class Result:
    """What one variant of a network took; the quartiles are 25%, 50%, 75% over the rounds."""

    network: str
    batch_size: int
    variant: str
    step_ms: list[float] | None = None
    time_ratio: list[float] | None = None
    peak_mb: float | None = None
    memory_ratio: float | None = None
    missing: str | None = None  # the module that is not installed


def ours(
    method: str | None, precision: Precision = Precision.FLOAT32
) -> Callable[[nn.Module, tuple[int, int, int]], Learner]:
    def make(model: nn.Module, shape: tuple[int, int, int]) -> Learner:
        noise = None if method is None else attach(model, method, shape)
        if noise is not None:
            noise.tell(Clock(0.0, EXAMPLES))
        return Learner(model, noise, TrainOptions(precision=precision))

    return make


def bayesian_torch(kind: str) -> Callable[[nn.Module, tuple[int, int, int]], Learner]:
    """Intel's library, by its conversion of whole networks."""

    def make(model: nn.Module, shape: tuple[int, int, int]) -> Learner:
        from bayesian_torch.models.dnn_to_bnn import dnn_to_bnn, get_kl_loss

        priors = {"prior_mu": 0.0, "prior_sigma": 1.0, "posterior_mu_init": 0.0, "posterior_rho_init": -3.0}
        dnn_to_bnn(model, {**priors, "type": kind, "moped_enable": False, "moped_delta": 0.5})
        return Learner(model, None, TrainOptions(), _elbo(lambda: get_kl_loss(model)))

    return make


def blitz(model: nn.Module, shape: tuple[int, int, int]) -> Learner:
    """Its layers in place of torch's."""
    from blitz.losses import kl_divergence_from_nn
    from blitz.modules import BayesianConv2d, BayesianLinear

    for name, module in list(model.named_modules()):
        new: nn.Module
        if isinstance(module, nn.Linear):
            new = BayesianLinear(module.in_features, module.out_features, bias=module.bias is not None)
        elif isinstance(module, nn.Conv2d):
            same = {key: getattr(module, key) for key in ("kernel_size", "stride", "padding", "dilation", "groups")}
            new = BayesianConv2d(module.in_channels, module.out_channels, bias=module.bias is not None, **same)
        else:
            continue
        model.set_submodule(name, new)
    return Learner(model, None, TrainOptions(), _elbo(lambda: kl_divergence_from_nn(model)))


def _elbo(kl: Callable[[], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda outputs, targets: F.cross_entropy(outputs, targets) + kl() / EXAMPLES


VARIANTS: dict[str, Callable[[nn.Module, tuple[int, int, int]], Learner]] = {
    "plain": ours(None),
    "se-snn": ours("se-snn"),
    "sparse-vd": ours("sparse-vd"),
    "plain, bfloat16": ours(None, Precision.BFLOAT16),
    "se-snn, bfloat16": ours("se-snn", Precision.BFLOAT16),
    "bayesian-torch reparameterization": bayesian_torch("Reparameterization"),
    "bayesian-torch flipout": bayesian_torch("Flipout"),
    "blitz": blitz,
}


def make_step(network: str, variant: str) -> Callable[[], None]:
    """A training step of a new network."""
    torch.manual_seed(0)
    module = registry.load("models", network)
    learner = VARIANTS[variant](getattr(module, network)(), module.INPUT_SHAPE)
    images = torch.randn(BATCH_SIZES[network], *module.INPUT_SHAPE)
    labels = torch.randint(10, (len(images),))
    return lambda: learner.step(images, labels, LR)


def measure_peak(network: str, variant: str) -> float | str:
    """Megabytes that building a network and training it took at most; the missing module if there is one."""
    F.conv2d(torch.randn(1, 8, 9, 9), torch.randn(8, 8, 3, 3, requires_grad=True)).sum().backward()  # starts threads
    before = _peak_mb()
    try:
        step = make_step(network, variant)
    except ModuleNotFoundError as error:
        return str(error.name)
    for _ in range(MEMORY_STEPS):
        step()
    return _peak_mb() - before


def _peak_mb() -> float:
    """Peak of the memory of this process so far."""
    unit = 1 if sys.platform == "darwin" else 1024  # macOS counts bytes, others kilobytes
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def measure_peaks(network: str) -> dict[str, float | str]:
    """The peak of every variant, each in a process of its own."""
    # A new process inherits the peak of the one that starts it: this has to come before the timings.
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        return {variant: pool.apply(measure_peak, (network, variant)) for variant in VARIANTS}


def measure_times(network: str, variants: list[str], rounds: int, seconds: float) -> dict[str, list[float]]:
    """Milliseconds a step of each variant in each round.

    Args:
        network: a key of ``BATCH_SIZES``.
        variants: keys of ``VARIANTS``.
        rounds: in how many each has its turn.
        seconds: that a turn of the first variant lasts at least.
    """
    steps = {variant: make_step(network, variant) for variant in variants}
    for step in steps.values():  # memory is reserved, kernels are chosen
        step()
    count = max(1, round(1000 * seconds / milliseconds(steps[variants[0]], 2)))
    found: dict[str, list[float]] = {variant: [] for variant in variants}
    for index in range(rounds):
        order = variants if index % 2 == 0 else variants[::-1]  # none always profits from its place
        for variant in order:
            found[variant].append(milliseconds(steps[variant], count))
    return found


def milliseconds(step: Callable[[], None], count: int) -> float:
    began = time.perf_counter()
    for _ in range(count):
        step()
    return 1000 * (time.perf_counter() - began) / count


def compare(network: str, peaks: dict[str, float | str], rounds: int, seconds: float) -> list[Result]:
    """All variants of a network against the plain one."""
    installed = {variant: peak for variant, peak in peaks.items() if not isinstance(peak, str)}
    times = measure_times(network, list(installed), rounds, seconds)
    results = []
    for variant, peak in peaks.items():
        if isinstance(peak, str):
            results.append(Result(network, BATCH_SIZES[network], variant, missing=peak))
            continue
        ratios = [one / other for one, other in zip(times[variant], times["plain"], strict=True)]
        memory = (peak, peak / installed["plain"])
        results.append(
            Result(network, BATCH_SIZES[network], variant, _quartiles(times[variant]), _quartiles(ratios), *memory)
        )
    return results


def _quartiles(values: list[float]) -> list[float]:
    return [round(value, 3) for value in statistics.quantiles(values, n=4, method="inclusive")]


def render(results: list[Result]) -> str:
    """A Markdown table."""
    rows = []
    for result in results:
        row = [f"{result.network}, batch {result.batch_size}", result.variant]
        if result.step_ms is None or result.time_ratio is None:
            row.append(f"{result.missing} is not installed")
        else:
            low, middle, high = result.time_ratio
            row += [f"{result.step_ms[1]:.0f}", f"{middle:.2f}", f"{low:.2f} to {high:.2f}"]
            row += [f"{result.peak_mb:.0f}", f"{result.memory_ratio:.2f}"]
        rows.append(row)
    headers = ["network", "step", "ms", "× plain", "quartiles", "peak MB", "× plain"]
    return tabulate(rows, headers, tablefmt="github", disable_numparse=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few rounds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write the numbers")
    parser.add_argument("--network", choices=BATCH_SIZES, action="append", help="only this one; may be repeated")
    arguments = parser.parse_args()
    networks = arguments.network or list(BATCH_SIZES)
    rounds, seconds = (3, 0.2) if arguments.quick else (15, 0.3)
    peaks = {network: measure_peaks(network) for network in networks}
    results = [result for network in networks for result in compare(network, peaks[network], rounds, seconds)]
    print(render(results))
    print(f"\ntorch {torch.__version__}, {torch.get_num_threads()} threads, {rounds} rounds")
    if arguments.json is not None:
        record = {"torch": torch.__version__, "threads": torch.get_num_threads(), "rounds": rounds}
        arguments.json.write_text(json.dumps({**record, "results": [asdict(r) for r in results]}, indent=2) + "\n")


if __name__ == "__main__":
    main()
