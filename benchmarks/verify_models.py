"""Every model of the zoo and those of torchvision that people prune, whole and pruned: exported and verified.

    python -m benchmarks.verify_models --out runs/verify.jsonl [MODEL ...]

For each model, in a process of its own: random weights, batch norms with random scales and with statistics of images
(so that folding them is tested) and no layer of zeros; exported to ONNX as it is and pruned to half of its FLOPs, and
each file verified as `snncompress verify` does: ONNX's checker, shapes, outputs at batch 1, 7 and 256 (16 for images of
224 pixels, where 256 take gigabytes and minutes; --largest), and answers. Labels are those of torch: the error that
onnxruntime gets is the share of answers that differ. Prints a line a file: opset, bytes, batch norms of the model and
of the file, the largest difference of an output at each batch, of the largest output, how far images spread one (the
same unit), and the seconds of export and verification. What OUT holds already is not done again. Ends with exit code 1
if a file fails.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate

import snncompress
from benchmarks.prune_models import NORMS, TORCHVISION, draw_images, prune, randomize, settle
from snncompress import registry
from snncompress.data.dataset import Normalization, TensorImages
from snncompress.exporting.answers import CHUNK
from snncompress.exporting.verify import verify_onnx
from snncompress.measure.cost import measure_cost
from snncompress.reporting.table import UNKNOWN, format_bytes
from snncompress.run import Run

MODELS = [*registry.entries("models"), *(f"torchvision:{name}" for name in TORCHVISION)]
LARGEST, LARGEST_OF_BIG = 256, 16
BIG = 128  # pixels a side, from which the largest batch is smaller


def logits(run: Run, images: torch.Tensor) -> torch.Tensor:
    """What torch says of each image."""
    return torch.cat([run.model(run.normalization(chunk)) for chunk in images.split(CHUNK)])


def verify(run: Run, images: torch.Tensor, largest: int) -> dict[str, Any]:
    """Exports a model and verifies the file."""
    import onnx

    start = time.perf_counter()
    outputs = logits(run, images)
    labelled = TensorImages(images, outputs.argmax(1), device=torch.device("cpu"))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.onnx"
        exported = snncompress.export_onnx(run, file, images=images[:16])
        found = verify_onnx(file, run, labelled, batches=(1, 7, largest)).to_json()
        operators = [node.op_type for node in onnx.load(file).graph.node]
    return {
        "flops_percent": 100 * measure_cost(run.model, run.input_shape).flops / run.original["flops"],
        "opset": exported.opset,
        "bytes": exported.size_bytes,
        "norms": sum(isinstance(module, NORMS) for module in run.model.modules()),
        "norms_left": operators.count("BatchNormalization"),
        "spread": float((outputs.amax(0) - outputs.amin(0)).max() / outputs.abs().max()),
        "differences": {str(check["batch"]): check.get("relative") for check in found["checks"] if "batch" in check},
        "checks": found["checks"],
        "passed": found["passed"],
        "seconds": time.perf_counter() - start,
    }


@torch.no_grad()
def try_model(name: str, largest: int | None) -> list[dict[str, Any]]:
    """A model as it is, and pruned."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    vision = name.startswith("torchvision:")
    run = snncompress.load(name, classes=() if vision else [str(number) for number in range(10)])
    run = replace(run, normalization=Normalization.parse("imagenet" if vision else "0.5/0.25", run.input_shape[0]))
    randomize(run.model.eval())
    largest = largest or (LARGEST_OF_BIG if run.input_shape[1] >= BIG else LARGEST)
    images = draw_images(largest, run.input_shape)
    settle(run.model, run.normalization(images))
    results = [{"model": name, "pruned": False, **verify(run, images, largest)}]
    small, _, _ = prune(run)
    return [*results, {"model": name, "pruned": True, **verify(small, images, largest)}]


def cells(result: dict[str, Any]) -> list[str]:
    differences = ", ".join(UNKNOWN if value is None else f"{value:.0e}" for value in result["differences"].values())
    return [
        result["model"], f"{result['flops_percent']:.1f}%", str(result["opset"]), format_bytes(result["bytes"]),
        f"{result['norms']} → {result['norms_left']}", ", ".join(result["differences"]), differences,
        f"{result['spread']:.2g}", f"{result['seconds']:.0f} s", "pass" if result["passed"] else "FAIL",
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--out", type=Path, required=True, help="a line of JSON for each file")
    parser.add_argument("--largest", type=int, help="the largest batch of all models")
    arguments = parser.parse_args()
    results = [json.loads(line) for line in arguments.out.read_text().splitlines()] if arguments.out.exists() else []
    for name in arguments.models:
        if any(result["model"] == name for result in results):
            continue
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            found = pool.apply(try_model, (name, arguments.largest))
        results += found
        with arguments.out.open("a") as file:
            file.writelines(json.dumps(result) + "\n" for result in found)
        print(f"{name}: {'pass' if all(result['passed'] for result in found) else 'FAIL'}", flush=True)
    shown = [result for name in arguments.models for result in results if result["model"] == name]
    header = ["model", "FLOPs", "opset", "file", "batch norms", "batches", "differences", "spread", "time", ""]
    print("\n" + tabulate([cells(result) for result in shown], header, tablefmt="github", disable_numparse=True))
    sys.exit(0 if all(result["passed"] for result in shown) else 1)


if __name__ == "__main__":
    main()
