from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from crashing import assert_same, crash_and_resume, history
from small_data import CLASSES, IMAGE, batches, small_data, small_run
from torch import Tensor, nn

from snncompress import TrainOptions, train, wrap
from snncompress.data.dataset import Dataset
from snncompress.errors import UsageError
from snncompress.models.layers import find_zeros
from snncompress.run import Run
from snncompress.training.langevin import PosteriorOptions
from snncompress.training.learner import Learner

OPTIONS = TrainOptions(epochs=3, lr=0.01, batch_size=64, save_every=0, average=2)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return small_data(tmp_path_factory.mktemp("data"))


def watch_steps(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Tensor]]:
    """The weights after each step that is taken."""
    passed: list[dict[str, Tensor]] = []
    step = Learner.step

    def note(self: Learner, *given: Any, **more: Any) -> None:
        step(self, *given, **more)
        passed.append({name: p.detach().clone() for name, p in self.model.named_parameters()})

    monkeypatch.setattr(Learner, "step", note)
    return passed


def test_the_result_is_the_mean_of_the_weights_after_the_last_epochs_steps(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed = watch_steps(monkeypatch)
    run = train(small_run(), data, OPTIONS, out=tmp_path / "run")
    last = passed[len(passed) // 3 :]  # two epochs of three
    for name, parameter in run.model.named_parameters():
        mean = torch.stack([weights[name].double() for weights in last]).mean(0)
        torch.testing.assert_close(parameter.double(), mean, rtol=1e-6, atol=1e-7)
    *_, before, after = history(tmp_path / "run")
    assert (before["epoch"], after["epoch"], after["averaged"]) == (3, 3, 2)
    assert run.metrics["validation"]["error"] == after["validation_error"]
    assert run.metrics["validation"]["nll"] != before["validation_nll"]


def test_batch_norms_have_the_statistics_of_the_mean() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, len(CLASSES)))
    own = batches()
    run = train(wrap(model, IMAGE), own, OPTIONS)
    flatten, linear, norm, *_ = run.model
    with torch.no_grad():
        outputs = linear(flatten(torch.cat([inputs for inputs, _ in own])))
    torch.testing.assert_close(norm.running_mean, outputs.mean(0), rtol=1e-4, atol=1e-4)


def test_zeros_stay(data: Dataset) -> None:
    run = small_run()
    first = next(layer for layer in run.model.modules() if isinstance(layer, nn.Linear))
    with torch.no_grad():
        first.weight[:, ::2] = 0
    zeros = find_zeros(run.model)
    trained = train(replace(run, sparse=True), data, OPTIONS)
    assert all(torch.equal(mask, zeros[name]) for name, mask in find_zeros(trained.model).items())


@pytest.mark.parametrize("method", ["none", "se-snn"])
@pytest.mark.parametrize("crash", [4, 17])  # before weights are gathered, and in the midst of it
def test_an_interrupted_run_ends_alike(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, crash: int
) -> None:
    def make(**more: Any) -> Run:
        return train(small_run(), data, OPTIONS, method=method, **more)

    whole = make(out=tmp_path / "whole")
    assert_same(whole, crash_and_resume(make, monkeypatch, tmp_path / "run", crash))
    assert history(tmp_path / "whole") == history(tmp_path / "run")


def test_what_it_does_not_go_with(data: Dataset) -> None:
    for average in (0, 4):
        with pytest.raises(UsageError, match=f"--average {average} is out of range; give 1 to --epochs"):
            replace(OPTIONS, average=average)
    with pytest.raises(UsageError, match="leave --average or --posterior out"):
        train(small_run(), data, OPTIONS, posterior=PosteriorOptions(10))
