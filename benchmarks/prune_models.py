"""Models that people have, with random weights, pruned to half of their FLOPs.

    python -m benchmarks.prune_models [MODEL ...]

For each model, in a process of its own: plan and compact (ranked by magnitude, all layers shrunk alike, no
fine-tuning), compare the compact model with the masked one, save, load, export to ONNX and compare again. Prints the
seconds and the peak memory of planning and compaction (everything up to the small model, the loaded libraries
included), how far images spread a logit (of the largest one, as the differences are), the seconds of the rest, and the
hidden layers that lose nothing. Aim: under 30 s and 4 GB each, differences up to 1e-4 of the logits' scale.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from tabulate import tabulate
from torch import nn

import snncompress
from snncompress.data.batches import IterableBatches
from snncompress.measure.cost import measure_cost
from snncompress.pruning.allocation import shrink_to
from snncompress.pruning.masking import masked
from snncompress.pruning.scoring import least_important
from snncompress.pruning.subject import Subject
from snncompress.pruning.targets import Targets
from snncompress.run import Run
from snncompress.run_files import save_run
from snncompress.training.learner import Learner

ZOO = ["lenet5", "vgg16", "resnet20", "resnet56", "wrn16-2"]
TORCHVISION = [
    "resnet18", "resnet50", "mobilenet_v2", "mobilenet_v3_small", "densenet121", "efficientnet_b0", "convnext_tiny",
    "regnet_y_400mf", "googlenet", "squeezenet1_1", "shufflenet_v2_x1_0", "vgg11_bn", "vit_b_16", "swin_t",
]  # fmt: skip
MODELS = ZOO + [f"torchvision:{name}" for name in TORCHVISION]
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)
SHARE, SECONDS, GIGABYTES, DIFFERENCE = 0.5, 30, 4, 1e-4


def randomize(model: nn.Module) -> None:
    """Norms with scales as after training, and no layer of zeros: fresh networks are too simple to compare."""
    for module in model.modules():
        if isinstance(module, NORMS):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.uniform_(module.bias, -0.5, 0.5)
        elif isinstance(module, nn.Conv2d | nn.Linear) and not bool(module.weight.any()):
            nn.init.normal_(module.weight, std=0.02)


def draw_images(count: int, shape: tuple[int, ...]) -> torch.Tensor:
    """Coloured clouds under noise: images of noise alone look all the same to a network that averages."""
    clouds = F.interpolate(torch.rand(count, shape[0], 4, 4), tuple(shape[1:]), mode="bilinear")
    return (clouds + 0.2 * torch.rand(count, *shape) - 0.1).clamp(0, 1)


def settle(model: nn.Module, images: torch.Tensor) -> None:
    """Gives batch norms the statistics of images; with others, random layers lose what an image is."""
    norms = [module for module in model.modules() if isinstance(module, NORMS)]
    for norm in norms:
        norm.train()
        norm.momentum = 1.0
    if norms:
        model(images)
    model.eval()


def prune(run: Run) -> tuple[Run, Subject, list[Any]]:
    """The run at half of its FLOPs; what it was made with; the neurons that went."""
    subject = Subject(Learner(run.model, None, snncompress.TrainOptions()), None, run.input_shape)
    target = int(SHARE * subject.cost().flops)
    budget = subject.budget(Targets(flops=target), minimum=1, round_to=1)
    widths = shrink_to(budget, dict.fromkeys(budget.full, 1.0))
    ranked = subject.rank("magnitude", IterableBatches([], device=torch.device("cpu")), count=0)
    gone = least_important(ranked, widths)
    subject.remove(gone)
    return replace(run, model=subject.model.eval()), subject, gone


def difference(wanted: torch.Tensor, got: torch.Tensor) -> float:
    return float((wanted - got).abs().max() / wanted.abs().max())


@torch.no_grad()
def try_model(name: str) -> dict[str, Any]:
    torch.manual_seed(0)
    run = snncompress.load(name, classes=[str(number) for number in range(10)] if name in ZOO else ())
    randomize(run.model)
    images = draw_images(16, run.input_shape)
    settle(run.model.eval(), images)
    start = time.perf_counter()
    small, subject, gone = prune(run)
    seconds = time.perf_counter() - start
    peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # kilobytes on Linux
    start = time.perf_counter()
    with masked(run.model, gone):
        wanted = run.model(images)
    share = measure_cost(small.model, small.input_shape).flops / run.original["flops"]
    result = {
        "model": name, "flops_percent": 100 * share, "seconds": seconds, "peak_gb": peak_gb,
        "masked": difference(wanted, small.model(images)), "unprunable": subject.unprunable,
        "spread": float((wanted.amax(0) - wanted.amin(0)).max() / wanted.abs().max()),
        "neurons": sum(subject.costs.full.values()), "families": len(subject.costs.full),
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        save_run(small, Path(folder))
        result["loaded"] = difference(wanted, snncompress.load(folder).model(images))
        exported = snncompress.export_onnx(small, Path(folder) / "model.onnx")
    return {**result, "onnx": exported.relative_difference, "rest_seconds": time.perf_counter() - start}


def good(result: dict[str, Any]) -> bool:
    """Whether a model came out as it should."""
    differences = max(result["masked"], result["loaded"], result["onnx"])
    fast = result["seconds"] < SECONDS and result["peak_gb"] < GIGABYTES
    return fast and differences <= DIFFERENCE and result["flops_percent"] <= 100 * SHARE


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--json", type=Path, help="also write the results here")
    arguments = parser.parse_args()
    results = []
    for name in arguments.models:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            results.append(pool.apply(try_model, (name,)))
        print(f"{name}: {'good' if good(results[-1]) else 'NOT GOOD'}", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2))
    rows = [
        [
            r["model"], f"{r['neurons']:,}", f"{r['flops_percent']:.2f}%", f"{r['seconds']:.1f} s",
            f"{r['peak_gb']:.1f} GB", f"{r['masked']:.0e}", f"{r['loaded']:.0e}", f"{r['onnx']:.0e}",
            f"{r['spread']:.2f}", f"{r['rest_seconds']:.0f} s", len(r["unprunable"]),
        ]
        for r in results
    ]  # fmt: skip
    header = [
        "model",
        "neurons",
        "FLOPs left",
        "plan and compact",
        "peak",
        "masked",
        "loaded",
        "ONNX",
        "spread",
        "rest",
        "fixed",
    ]
    print("\n" + tabulate(rows, header, tablefmt="github", disable_numparse=True))
    for result in results:
        if result["unprunable"]:
            print(f"\n{result['model']}: fixed are {', '.join(result['unprunable'])}")


if __name__ == "__main__":
    main()
