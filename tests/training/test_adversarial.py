"""Adversarial training: the loss by its formula, pixels that stay pixels, and the same weights after a crash."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from crashing import assert_same, crash_and_resume, history
from small_data import IMAGE, batches, small_data, small_run

from snncompress import AdversarialOptions, AttackPlan, TrainOptions, attack, registry, train
from snncompress.data.dataset import Dataset, Normalization
from snncompress.errors import UsageError
from snncompress.evaluation.likelihood import default_loss
from snncompress.noise.attach import attach
from snncompress.run import Run
from snncompress.training.adversarial import Attacker
from snncompress.training.learner import Learner

OPTIONS = TrainOptions(epochs=2, lr=0.01, batch_size=64, save_every=0)
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return small_data(tmp_path_factory.mktemp("data"))


def test_a_step_by_its_formula() -> None:
    """Half of the loss is that of images moved by ε·sign of the gradient, cut off at 0 and 1."""
    run = small_run()
    pixels, targets = torch.rand(20, *IMAGE), torch.arange(20) % 4
    normalization = Normalization((0.3,), (0.2,))
    model, plain = run.model, copy.deepcopy(run.model)
    learner = Learner(model, None, OPTIONS, attacker=Attacker(AdversarialOptions(0.1), normalization, IMAGE, CPU))
    learner.step(normalization(pixels), targets, lr=0.05)
    x = pixels.clone().requires_grad_()
    F.cross_entropy(plain(normalization(x)), targets).backward()
    assert x.grad is not None
    moved = (pixels + 0.1 * x.grad.sign()).clamp(0, 1)
    plain.zero_grad()
    losses = [F.cross_entropy(plain(normalization(images)), targets) for images in (pixels, moved)]
    loss = (losses[0] + losses[1]) / 2
    assert learner.means()["loss"] == pytest.approx(float(loss.detach()), rel=1e-5)
    loss.backward()
    optimizer = torch.optim.Adam(plain.parameters(), lr=0.05)
    optimizer.step()
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


def test_attacked_images_are_images() -> None:
    normalization = Normalization((0.4, 0.5, 0.6), (0.2, 0.3, 0.4))
    attacker = Attacker(AdversarialOptions(0.3), normalization, (3, 8, 8), CPU)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 4))
    pixels = torch.rand(6, 3, 8, 8)
    made = attacker.attack(model, default_loss, normalization(pixels), torch.arange(6) % 4)
    mean, std = (torch.tensor(each).view(3, 1, 1) for each in (normalization.mean, normalization.std))
    back = made * std + mean
    assert float(back.min()) >= -1e-6
    assert float(back.max()) <= 1 + 1e-6
    assert float((back - pixels).abs().max()) == pytest.approx(0.3, abs=1e-5)
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("method", ["se-snn", "vib", "sparse-vd"])
def test_the_penalty_is_not_counted_twice(method: str) -> None:
    run = small_run()
    noise = attach(run.model, method, IMAGE)
    inputs, targets = torch.rand(20, *IMAGE), torch.arange(20) % 4
    learner = Learner(
        run.model, noise, OPTIONS, attacker=Attacker(AdversarialOptions(1e-6), run.normalization, IMAGE, CPU)
    )
    run.model(inputs)
    alone = float(noise.penalty().detach())
    learner.step(inputs, targets, lr=1e-9)
    assert learner.means()["penalty"] == pytest.approx(alone, rel=0.05)


def test_it_makes_a_network_harder_to_fool(data: Dataset) -> None:
    options = replace(OPTIONS, epochs=10)
    plain = train(small_run(), data, options)
    hard = train(small_run(), data, options, adversarial=AdversarialOptions(0.06))
    plan = AttackPlan((0.05,))
    accuracies = [attack(run, data.train, "pgd", plan).mean()[0] for run in (plain, hard)]
    assert accuracies[1] > accuracies[0] + 2  # points, of 486 images
    assert hard.config["adversarial"] == {"attack": "fgs", "eps": 0.06}


@pytest.mark.parametrize("method", ["none", *registry.entries("methods")])
def test_it_resumes_exactly(data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    def make(**more: Any) -> Run:
        return train(small_run(), data, OPTIONS, method=method, adversarial=AdversarialOptions(0.1), **more)

    whole = make(out=tmp_path / "whole")
    assert_same(whole, crash_and_resume(make, monkeypatch, tmp_path / "run", 5))
    assert history(tmp_path / "whole") == history(tmp_path / "run")


@pytest.mark.parametrize("text", ["fgs", "fgs:", "fgs:x", "fgs:0", "fgs:-1", "fgs:2", "fgs:nan", "pgd:0.1", ""])
def test_what_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--adversarial"):
        AdversarialOptions.parse(text)


def test_it_needs_pixels() -> None:
    assert AdversarialOptions.parse("fgs:0.25") == AdversarialOptions(0.25)
    with pytest.raises(UsageError, match="must know what pixels are"):
        train(small_run(), batches(), OPTIONS, adversarial=AdversarialOptions(0.1))
    with pytest.raises(UsageError, match="these samples are features"):
        Attacker(AdversarialOptions(0.1), Normalization((0.0,), (1.0,)), (7, 1, 1), CPU)
