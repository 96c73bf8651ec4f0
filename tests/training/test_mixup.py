from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from crashing import assert_same, crash_and_resume
from small_data import small_data, small_run
from torch import Tensor, nn

from snncompress import TrainOptions, train
from snncompress.data.dataset import Dataset
from snncompress.errors import UsageError
from snncompress.run import Run
from snncompress.training.adversarial import AdversarialOptions
from snncompress.training.distillation import Teacher
from snncompress.training.learner import Learner
from snncompress.training.mixup import blend

OPTIONS = TrainOptions(epochs=2, lr=0.01, batch_size=64, save_every=0, mixup=1.0)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return small_data(tmp_path_factory.mktemp("data"))


def test_every_image_is_blended_with_the_one_whose_target_is_given() -> None:
    images, targets = torch.randn(8, 1, 3, 3), torch.arange(8)
    found = blend(images, targets, 1.0, seed=0)
    expected = found.share * images + (1 - found.share) * images[found.others]
    torch.testing.assert_close(found.inputs, expected)
    assert sorted(found.others.tolist()) == targets.tolist()


@pytest.mark.parametrize(("a", "near_whole"), [(1.0, 0.2), (0.1, 0.81)])
def test_shares_are_at_least_a_half_and_follow_beta(a: float, near_whole: float) -> None:
    images, targets = torch.randn(2, 1, 3, 3), torch.arange(2)
    shares = torch.tensor([blend(images, targets, a, seed).share for seed in range(1000)])
    assert 0.5 <= shares.min() < shares.max() <= 1
    assert float((shares > 0.9).float().mean()) == pytest.approx(near_whole, abs=0.06)


def test_the_loss_is_that_of_both_targets_by_their_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 4)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    inputs, targets = torch.randn(16, 3), torch.randint(0, 4, (16,))
    found = blend(inputs, targets, 1.0, seed=0)
    monkeypatch.setattr("snncompress.training.learner.blend", lambda *given: found)
    learner = Learner(model, None, OPTIONS)
    learner.step(inputs, targets, lr=0.01)
    log_p = F.linear(found.inputs, *before).log_softmax(1)
    soft = found.share * F.one_hot(targets, 4) + (1 - found.share) * F.one_hot(found.others, 4)
    assert learner.means()["loss"] == pytest.approx(float(-(soft * log_p).sum(1).mean()), rel=1e-5)


def test_a_teacher_judges_the_blends(data: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[Tensor] = []
    blended: list[Tensor] = []
    mix = Teacher.mix

    def listen(self: Teacher, loss: Tensor, outputs: Tensor, inputs: Tensor) -> Tensor:
        judged.append(inputs)
        return mix(self, loss, outputs, inputs)

    def note(*given: Any) -> Any:
        found = blend(*given)
        blended.append(found.inputs)
        return found

    monkeypatch.setattr(Teacher, "mix", listen)
    monkeypatch.setattr("snncompress.training.learner.blend", note)
    train(small_run(), data, OPTIONS, teacher=small_run())
    assert judged
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(blended, judged, strict=True))


@pytest.mark.parametrize(("views", "times"), [(2, 2), (None, 6)])
def test_views_that_come_again_are_blended_as_before_so_that_the_teacher_judges_them_once(
    data: Dataset, monkeypatch: pytest.MonkeyPatch, views: int | None, times: int
) -> None:
    judged: list[Tensor] = []
    judge = Teacher._judge
    monkeypatch.setattr(Teacher, "_judge", lambda self, inputs: (judged.append(inputs), judge(self, inputs))[1])
    train(small_run(), data, replace(OPTIONS, epochs=6, augment="shift", views=views), teacher=small_run())
    batches = -(-len(data.train) // OPTIONS.batch_size)
    assert len(judged) == times * batches


def test_it_learns_and_an_interrupted_run_ends_alike(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(**more: Any) -> Run:
        return train(small_run(), data, replace(OPTIONS, epochs=4), **more)

    whole = make(out=tmp_path / "whole")
    assert whole.metrics["validation"]["error"] < 30  # 75 by chance
    assert_same(whole, crash_and_resume(make, monkeypatch, tmp_path / "run", 9))


def test_what_it_does_not_go_with(data: Dataset) -> None:
    with pytest.raises(UsageError, match="--mixup 0 is out of range"):
        replace(OPTIONS, mixup=0)
    with pytest.raises(UsageError, match="leave --mixup or --adversarial out"):
        train(small_run(), data, OPTIONS, adversarial=AdversarialOptions.parse("fgs:0.1"))
