"""How a network stands attacks: its accuracy at every strength, over images and seeds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from snncompress import registry
from snncompress.data.dataset import Images, has_pixels, to_float
from snncompress.data.task import Task
from snncompress.errors import DataError, UsageError
from snncompress.evaluation.attacks.plan import AttackPlan
from snncompress.evaluation.attacks.victim import Gradient, Victim
from snncompress.evaluation.sampling import own_random_numbers
from snncompress.progress import Progress
from snncompress.run import Run

BATCH = 250  # images at a time: with their samples of the noise they still fit a processor's cache
SHOWN = 8  # images that a picture can show


@dataclass(frozen=True)
class Attacked:
    """The outcome of an attack.

    Attributes:
        attack: its name.
        plan: what it was told, strengths filled in.
        gradient: which gradient it followed.
        images: how many were attacked.
        accuracy: right answers at each strength in percent, a list a seed.
        success: images that became what the attack wanted, in percent, a list a seed: a class that was drawn for a
            targeted attack, else any wrong one.
        l2: the mean Euclidean length of the changes at each strength, over all seeds.
        shortest: the same three of the shortest changes that were found, for ``cw``: accuracy, success, l2.
        examples: a few attacked images (strengths, images, C, H, W), the answers to them (strengths, images), and their
            labels.
    """

    attack: str
    plan: AttackPlan
    gradient: Gradient
    images: int
    accuracy: tuple[tuple[float, ...], ...]
    success: tuple[tuple[float, ...], ...]
    l2: tuple[float, ...]
    shortest: dict[str, float] | None
    examples: tuple[Tensor, Tensor, Tensor]

    def mean(self, what: str = "accuracy") -> list[float]:
        """The mean over seeds at each strength; ``what`` is accuracy or success."""
        return torch.tensor(getattr(self, what), dtype=torch.float64).mean(0).tolist()

    def spread(self, what: str = "accuracy") -> list[float]:
        """The standard deviation over seeds at each strength."""
        return torch.tensor(getattr(self, what), dtype=torch.float64).std(0, correction=0).tolist()

    def to_json(self) -> dict[str, Any]:
        """Plain data, without the pictures."""
        return {
            "attack": self.attack,
            "eps": list(self.plan.eps),
            "accuracy": self.mean(),
            "accuracy_std": self.spread(),
            "success": self.mean("success"),
            "success_std": self.spread("success"),
            "l2": list(self.l2),
            "shortest": self.shortest,
            "targeted": self.plan.targeted,
            "gradient": str(self.gradient),
            "gradient_samples": self.plan.gradient_samples,
            "ensemble_samples": self.plan.ensemble_samples,
            "steps": self.plan.steps,
            "seeds": self.plan.seeds,
            "images": self.images,
        }


def attack(
    runs: Run | Sequence[Run],
    images: Images,
    name: str = "fgs",
    plan: AttackPlan | None = None,
    *,
    gradient: Gradient | None = None,
    device: torch.device | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Attacked:
    """Attacks a network, or several whose probabilities are averaged, on labelled images; none of them is changed.

    Args:
        runs: what is attacked: the stochastic network where a run has noise, else the plain one.
        images: a part of a data set, pixels 0..1 or 0..255.
        name: an attack of ``snncompress list attacks``.
        plan: strengths, samples, steps and so on.
        gradient: which gradient is followed; when absent, the expected one, and that of the averaged prediction for
            several networks.
        device: where it happens.
        seed: of the first repetition's noise, random starts and drawn classes.
        progress: is told what happens, a step a gradient or a prediction.
    """
    module = registry.load("attacks", name)
    runs = [runs] if isinstance(runs, Run) else list(runs)
    plan = plan or AttackPlan()
    plan = replace(plan, eps=plan.eps or module.EPS)
    gradient = gradient or (Gradient.EXPECTED if len(runs) == 1 else Gradient.AVERAGED)
    device, progress = device or torch.device("cpu"), progress or Progress()
    _check(runs, images)
    count = min(len(images), plan.limit or len(images))
    if count == 0:
        raise DataError("there are no images to attack; check the data set and its split")
    victim = Victim(
        runs, gradient=gradient, gradient_samples=plan.gradient_samples, ensemble_samples=plan.ensemble_samples,
        device=device, tick=progress.advance,
    )  # fmt: skip
    extra = int(getattr(module, "FINDS_SHORTEST", False))
    batches = -(-count // BATCH)
    progress.start(name, plan.seeds * batches * (module.count_gradients(plan) + len(plan.eps) + extra))
    tallies = []
    for number in range(plan.seeds):
        with own_random_numbers(victim.members[0].model, seed + number):
            tallies.append(_attack_once(module, victim, _batches(images, count, device), plan))
    progress.finish()
    table = torch.stack([tally.sums for tally in tallies]) / count  # (seeds, strengths, 3)
    table[..., :2] *= 100
    shortest = None
    if extra:
        shortest = dict(zip(("accuracy", "success", "l2"), table[:, -1].mean(0).tolist(), strict=True))
    table = table[:, : len(plan.eps)]
    accuracy, success = (tuple(tuple(row) for row in table[..., part].tolist()) for part in (0, 1))
    lengths = tuple(table[..., 2].mean(0).tolist())
    return Attacked(
        name, plan, gradient, count, accuracy, success, lengths, shortest, tallies[0].examples(len(plan.eps))
    )


@dataclass
class _Tally:
    """Sums over images at each strength, (strengths, 3): right answers, successes, lengths; and the first images."""

    sums: Tensor
    pictures: list[Tensor]
    answers: list[Tensor]
    labels: Tensor

    def examples(self, strengths: int) -> tuple[Tensor, Tensor, Tensor]:
        return torch.stack(self.pictures[:strengths]), torch.stack(self.answers[:strengths]), self.labels


def _attack_once(
    module: ModuleType, victim: Victim, batches: Iterator[tuple[Tensor, Tensor]], plan: AttackPlan
) -> _Tally:
    """All images at all strengths, and the shortest changes behind them where an attack finds such."""
    sums: dict[int, Tensor] = {}
    pictures: list[Tensor] = []
    replies: list[Tensor] = []
    first = torch.empty(0)
    for pixels, labels in batches:
        first = first if len(first) else labels[:SHOWN].cpu()
        aims = _draw(labels, victim, pixels) if plan.targeted else labels
        for index, attacked in enumerate(module.attack(victim, pixels, aims, plan)):
            answers = victim.predict(attacked).argmax(-1)
            success = answers == aims if plan.targeted else answers != labels
            length = (attacked - pixels).flatten(1).norm(dim=1)
            found = torch.stack([(answers == labels).float(), success.float(), length]).cpu().double().sum(1)
            if index not in sums:
                pictures.append(attacked[:SHOWN].cpu())
                replies.append(answers[:SHOWN].cpu())
            sums[index] = sums.get(index, 0) + found
    return _Tally(torch.stack(list(sums.values())), pictures, replies, first)


def _check(runs: Sequence[Run], images: Images) -> None:
    for run in runs:
        if run.task is Task.REGRESSION:
            raise UsageError(f"attacks are for classifiers, but {run.name} predicts a number")
        if run.input_shape != images.shape:
            raise UsageError(f"{run.label} takes {run.input_shape}, but the images are {images.shape}; they must agree")
    if not has_pixels(images.shape):
        raise UsageError("attacks change pixels between 0 and 1, but these samples are features; give images")


def _batches(images: Images, count: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    for indices in torch.arange(count).split(BATCH):
        pixels, labels = images.batch(indices)
        yield to_float(pixels.to(device)), labels.to(device)


def _draw(labels: Tensor, victim: Victim, pixels: Tensor) -> Tensor:
    """A class for each image that is not its own."""
    with torch.no_grad():
        classes = victim.logits(pixels[:1], 0).shape[-1]
    return (labels + torch.randint(1, classes, labels.shape).to(labels.device)) % classes
