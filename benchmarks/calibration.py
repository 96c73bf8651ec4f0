"""Table 4 of Yu et al. (AAAI 2021) on CIFAR-10: calibration by a temperature, by dropout and by SE-SNN's own σ.

    python -m benchmarks.calibration --data-root data --checkpoints FOLDER --out runs/calibration

The paper trains ResNet-110 anew. Here the public ResNet-56 (FOLDER/resnet56-4bfd9763.th, test accuracy 93.39%) stays as
it is, and only its classifier is trained, on the pooled features of the 50,000 training images, which are computed once
(ten minutes on one free core) and kept: plainly, with dropout on what it reads, and with SE-SNN noise there
(``-o place=input --aggregate sample``, Eq. 6). What is averaged are 100 samples.

The network has seen all training images, so the test images are halved. Options of the noise are chosen on the first
half alone, by the NLL after the temperature. The first column fits temperatures on that half and reports the second. A
half is noisy: the second column is mean and deviation over random halvings and seeds of the head, and the third that of
the difference to the plain network's temperature on the same halves; the images on which options were chosen are among
those. The last line is what the ECE of so few images is for a network whose probabilities are right.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, pstdev
from typing import Any

import torch
from tabulate import tabulate
from torch import Tensor, nn

import snncompress
from benchmarks.cifar_checkpoints import CHECKPOINTS
from benchmarks.pooled_features import pooled_features
from snncompress.cli.screen import Screen
from snncompress.evaluation.predictions import Predictions, predict
from snncompress.evaluation.reliability import Score, measure_score
from snncompress.evaluation.temperature import fit_temperature, scaled
from snncompress.run import Run
from snncompress.training.options import TrainOptions

MODEL, LAYER, DRAWS = "resnet56", "linear", 100
HALVINGS, SEEDS, BATCH = 20, 3, 500
PERFECT = 300  # draws of labels
TRAINING = {"epochs": 8, "lr": 1e-3, "noise_lr": 1e-2}
DROPOUT: list[dict[str, Any]] = [{"rate": rate} for rate in (0.005, 0.01, 0.02, 0.05, 0.1, 0.3, 0.5)]
SE_SNN: list[dict[str, Any]] = [
    {"place": "input", "aggregate": "sample", "omega": omega, "margin": margin}
    for omega in (0.01, 0.1, 1.0)
    for margin in (-5.0, -4.0, -3.0, -2.0, -1.0)
]
# name: method, whether samples are averaged, the scaling, the paper's ECE
ROWS: dict[str, tuple[str, bool, str, float | None]] = {
    "ResNet, as it is": ("none", False, "none", None),
    "ResNet, Temp.": ("none", False, "temperature", 1.39),
    "Temp. Drop": ("dropout", True, "temperature", 1.09),
    "Res-SNN, Temp.": ("se-snn", True, "temperature", 1.07),
    "Res-SNN, SW Temp.": ("se-snn", True, "sample-wise", 0.90),
    "Res-SNN, SW Temp., by its mean": ("se-snn", False, "sample-wise", None),
}
BASE = "ResNet, Temp."


class Head(nn.Module):
    """The classifier of a network."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.linear = layer

    def forward(self, features: Tensor) -> Tensor:
        """Features (B, K, 1, 1) to logits."""
        return self.linear(features.flatten(1))  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Features:
    """What the classifier reads: of the training images, of the half to choose on, of the half to report."""

    train: list[tuple[Tensor, Tensor]]
    choice: list[tuple[Tensor, Tensor]]
    report: list[tuple[Tensor, Tensor]]


def prepare(arguments: argparse.Namespace, screen: Screen) -> tuple[Run, Features]:
    """The plain head, and all features as batches."""
    data = snncompress.load_data("cifar10", root=arguments.data_root, normalize="imagenet", holdout="test")
    shape, checkpoint = data.image_shape, arguments.checkpoints / CHECKPOINTS[MODEL]
    run = snncompress.load(
        MODEL, checkpoint=checkpoint, classes=data.classes, input_shape=shape, normalize="imagenet"
    )  # fmt: skip
    parts = {"choice": (data.validation, "none"), "report": (data.test, "none")}
    parts |= {f"train{number + 1}": (data.train, "crop-flip") for number in range(arguments.passes)}
    found: dict[str, list[tuple[Tensor, Tensor]]] = {"train": []}
    for seed, (name, (images, augment)) in enumerate(parts.items()):
        assert images is not None
        file = arguments.out / "features" / f"{name}.safetensors"
        features, labels = pooled_features(run, images, LAYER, file, augment, seed, screen)
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
        inputs, truth = features[order, :, None, None].split(BATCH), labels[order].split(BATCH)
        key = "train" if name.startswith("train") else name
        found.setdefault(key, []).extend(zip(inputs, truth, strict=True))
    head = snncompress.wrap(Head(run.model.get_submodule(LAYER)), (64, 1, 1), name="head", classes=data.classes)
    return head, Features(found["train"], found["choice"], found["report"])


def train_head(head: Run, data: Features, method: str, options: dict[str, Any], seed: int) -> Run:
    """The classifier, trained on from the public weights under a kind of noise."""
    training = TrainOptions(**TRAINING, batch_size=BATCH, seed=seed)  # type: ignore[arg-type]
    return snncompress.train(head, data.train, training, method=method, method_options=options, layers=["linear"])


def look(run: Run, batches: Iterable[tuple[Tensor, Tensor]], seed: int) -> Predictions:
    """All predictions of a head."""
    noise = run.attach_noise(run.model)
    found = predict(run.model, noise, batches, [DRAWS] if noise is not None else [], seed=seed)
    if noise is not None:
        noise.detach()
    return found


def measure(
    predictions: Predictions, fit: Tensor, report: Tensor, averaged: bool, scaling: str
) -> tuple[float, Score, Score]:
    """T, and scores on what it was fitted to and on the rest, for images by number."""
    logits = predictions.averaged[DRAWS] if averaged else predictions.logits
    spread, labels = predictions.spread if scaling == "sample-wise" else None, predictions.labels
    pick = (lambda part: None) if spread is None else (lambda part: spread[part])
    temperature = 1.0 if scaling == "none" else fit_temperature(logits[fit], labels[fit], pick(fit))
    one, other = (measure_score(scaled(logits[part], temperature, pick(part)), labels[part]) for part in (fit, report))
    return temperature, one, other


def choose(head: Run, data: Features, method: str, scaling: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
    """The options with the lowest NLL on the first half, after the temperature."""
    found = []
    for options in choices:
        predictions = look(train_head(head, data, method, options, 0), data.choice, 0)
        every = torch.arange(len(predictions.labels))
        temperature, score, _ = measure(predictions, every, every, True, scaling)
        told = f"T {temperature:.3g}, NLL {score.nll:.4f}, ECE {score.ece:.2f}%"
        print(f"{method}, {scaling}, {options}: {told}", flush=True)
        found.append((score.nll, options))
    return min(found, key=lambda pair: pair[0])[1]


def halvings(count: int, images: int) -> list[tuple[Tensor, Tensor]]:
    """Random halves to fit on and to report."""
    orders = [torch.randperm(images, generator=torch.Generator().manual_seed(seed)) for seed in range(count)]
    return [(order[: images // 2], order[images // 2 :]) for order in orders]


def measure_row(
    looks: list[Predictions], first: int, averaged: bool, scaling: str, base: list[float] | None
) -> dict[str, Any]:
    """Scores with the halves as they are, and over random ones; ``looks`` has a set of predictions a seed.

    ``base`` are the ECEs that another row has on the same random halves.
    """
    images = len(looks[0].labels)
    fixed = [measure(each, torch.arange(first), torch.arange(first, images), averaged, scaling)[2] for each in looks]
    halves = halvings(HALVINGS, images)
    found = [[measure(each, fit, report, averaged, scaling)[2] for fit, report in halves] for each in looks]
    differences = [score.ece - other for scores in found for score, other in zip(scores, base or (), strict=False)]
    eces = [score.ece for scores in found for score in scores]
    return {
        "ece": mean(score.ece for score in fixed),
        "nll": mean(score.nll for scores in found for score in scores),
        "error": mean(score.error for score in fixed),
        "ece_halvings": eces,
        "difference": [mean(differences), pstdev(differences)] if differences else None,
    }


def floor(predictions: Predictions) -> list[float]:
    """ECEs of labels that are drawn from the plain network's tempered probabilities: calibrated to perfection."""
    images = len(predictions.labels)
    temperature = fit_temperature(predictions.logits, predictions.labels)
    tempered = scaled(predictions.logits, temperature)
    found = []
    for seed, (_, part) in enumerate(halvings(PERFECT, images)):
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.multinomial(tempered[part].softmax(1), 1, generator=generator).squeeze(1)
        found.append(measure_score(tempered[part], drawn).ece)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", default="data")
    parser.add_argument("--checkpoints", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("runs/calibration"))
    parser.add_argument("--passes", type=int, default=1, help="through the training images, cropped and mirrored anew")
    arguments = parser.parse_args()
    with Screen() as screen:
        head, data = prepare(arguments, screen)
    chosen = {
        "dropout": choose(head, data, "dropout", "temperature", DROPOUT),
        "se-snn": choose(head, data, "se-snn", "sample-wise", SE_SNN),
    }
    print(f"chosen: {chosen}", flush=True)
    everything = [*data.choice, *data.report]
    first = sum(len(labels) for _, labels in data.choice)
    looks = {"none": [look(head, everything, 0)]}
    for method, options in chosen.items():
        looks[method] = [look(train_head(head, data, method, options, seed), everything, seed) for seed in range(SEEDS)]
    results: dict[str, dict[str, Any]] = {}
    lines = []
    for name, (method, averaged, scaling, paper) in ROWS.items():
        base = results[BASE]["ece_halvings"] if BASE in results else None
        row = results[name] = measure_row(looks[method], first, averaged, scaling, base)
        eces, difference = row["ece_halvings"], row["difference"]
        lines.append([
            name, f"{row['ece']:.2f}", f"{mean(eces):.2f} ± {pstdev(eces):.2f}",
            "" if difference is None else f"{difference[0]:+.2f} ± {difference[1]:.2f}",
            f"{row['nll']:.4f}", f"{row['error']:.2f}%", "" if paper is None else f"{paper:.2f}",
        ])  # fmt: skip
    perfect = floor(looks["none"][0])
    (arguments.out / "table.json").write_text(
        json.dumps({"chosen": chosen, "rows": results, "perfect": perfect}, indent=2)
    )
    header = ["", "ECE, second half", "ECE, random halves", "less Temp.'s", "NLL", "error", "paper's ECE (ResNet-110)"]
    print(tabulate(lines, header, tablefmt="github", disable_numparse=True))
    print(f"\nA perfectly calibrated network: {mean(perfect):.2f} ± {pstdev(perfect):.2f} on a random half")


if __name__ == "__main__":
    main()
