"""Training and pruning of models that predict a number, from Python."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from crashing import assert_same, crash_and_resume, history
from small_data import make_table, to_csr, write_table
from torch import Tensor, nn

import snncompress
from snncompress.data.dataset import Dataset
from snncompress.data.sources import load_data
from snncompress.data.task import Task
from snncompress.errors import ModelError, RunError, UsageError
from snncompress.files import read_json, write_json
from snncompress.progress import Progress
from snncompress.pruning.options import PruneOptions
from snncompress.pruning.pipeline import preview, prune
from snncompress.pruning.points import restore_point
from snncompress.run import Run
from snncompress.run_files import load
from snncompress.training.feed import task_of
from snncompress.training.langevin import PosteriorOptions
from snncompress.training.learner import Learner
from snncompress.training.loop import train
from snncompress.training.options import TrainOptions

OPTIONS = TrainOptions(epochs=3, lr=0.02, batch_size=50)
PRUNING = PruneOptions(target_flops="60%", finetune_steps=4, final_epochs=2)


class Listener(Progress):
    def __init__(self) -> None:
        self.messages: list[str] = []
        self.values: set[str] = set()

    def advance(self, steps: int = 1, **values: float) -> None:
        self.values |= set(values)

    def message(self, text: str) -> None:
        self.messages.append(text)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return load_data(write_table(tmp_path_factory.mktemp("data") / "table.npz"))


def start(data: Dataset) -> Run:
    torch.manual_seed(0)
    run = load("mlp", arguments={"widths": "12-8"}, classes=data.classes, input_shape=data.image_shape)
    return replace(run, normalization=data.normalization)


def rows(seed: int = 0) -> list[tuple[Tensor, Tensor]]:
    """The problem as a user's own batches, targets in double precision."""
    features, targets = make_table(200, seed)
    inputs = torch.from_numpy((features - features.mean(0)) / features.std(0)).float()[:, :, None, None]
    return list(zip(inputs.split(50), torch.from_numpy(targets).split(50), strict=True))


def test_a_number_is_learned(data: Dataset) -> None:
    listener = Listener()
    run = train(start(data), data, replace(OPTIONS, epochs=10), method="dropout", progress=listener)
    assert run.task is Task.REGRESSION
    assert run.metrics["validation"]["error"] < 0.6  # 1.1 by guessing the mean
    last = listener.messages[-1]
    assert last.endswith(f", validation RMSE {run.metrics['validation']['error']:.4g}")
    assert "RMSE" in listener.values
    assert "error" not in listener.values


def test_history_keeps_its_keys(data: Dataset, tmp_path: Path) -> None:
    train(start(data), data, OPTIONS, out=tmp_path / "run")
    lines = (tmp_path / "run" / "history.jsonl").read_text().splitlines()
    last = json.loads(lines[-1])
    assert last["error"] == pytest.approx(math.sqrt(2 * last["loss"]))
    assert last["validation_nll"] == pytest.approx(last["validation_error"] ** 2 / 2 + math.log(2 * math.pi) / 2)


def test_a_run_remembers_its_task(data: Dataset, tmp_path: Path) -> None:
    out = tmp_path / "run"
    train(start(data), data, OPTIONS, out=out)
    assert load(out).task is Task.REGRESSION
    header = read_json(out / "run.json")
    assert (header["task"], header["classes"], header["format"]) == ("regression", ["target"], 1)
    write_json(out / "run.json", {key: value for key, value in header.items() if key != "task"})
    assert load(out).task is Task.CLASSIFICATION  # as older runs were
    write_json(out / "run.json", header | {"task": "guessing"})
    with pytest.raises(RunError, match="there is no task 'guessing'"):
        load(out)


def test_many_sparse_features_write_a_small_header(tmp_path: Path) -> None:
    counts = np.random.RandomState(0).poisson(0.02, (60, 5000))
    np.savez(tmp_path / "words.npz", **to_csr(counts), features=5000, labels=np.arange(60) % 2)
    data = load_data(f"npz:{tmp_path / 'words.npz'}")
    for normalize in (None, "0.5/2"):
        run = load(
            "mlp", arguments={"widths": "4"}, classes=data.classes, input_shape=data.image_shape, normalize=normalize
        )
        train(run, data, replace(OPTIONS, epochs=1), out=tmp_path / "run", force=True)
        assert len(read_json(tmp_path / "run" / "run.json")["normalization"]["mean"]) == 1
        assert load(tmp_path / "run").normalization == run.normalization


def test_own_batches_of_floats_need_no_loss() -> None:
    listener = Listener()
    model = nn.Sequential(nn.Flatten(), nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
    wrapped = snncompress.wrap(model, (6, 1, 1))
    run = train(wrapped, rows(), OPTIONS, validation=rows(1), progress=listener)
    assert run.task is Task.REGRESSION
    assert ", validation RMSE " in listener.messages[-1]
    by_hand = train(wrapped, rows(), OPTIONS, loss=lambda out, y: (out[:, 0] - y.float()).square().mean() / 2)
    assert all(torch.equal(a, b) for a, b in zip(run.model.parameters(), by_hand.model.parameters(), strict=True))
    small = prune(run, rows(), PRUNING, OPTIONS, validation=rows(1), progress=listener)
    assert small.task is Task.REGRESSION
    assert ", validation RMSE " in listener.messages[-1]


def test_asking_a_loader_for_its_first_batch_draws_nothing() -> None:
    inputs, targets = (torch.cat(each) for each in zip(*rows(), strict=True))
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(inputs, targets), 50, shuffle=True)
    before = torch.get_rng_state()
    assert task_of(loader) is Task.REGRESSION
    assert torch.equal(torch.get_rng_state(), before)


def test_a_model_of_several_outputs_is_refused(data: Dataset, tmp_path: Path) -> None:
    run = load("mlp", classes=("0", "1", "2"), input_shape=(6, 1, 1))
    with pytest.raises(ModelError, match="their targets are single numbers"):
        train(run, data, OPTIONS, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_soft_targets_are_for_classifiers(data: Dataset) -> None:
    with pytest.raises(UsageError, match="--distill: soft targets are probabilities of classes, but mlp predicts"):
        train(start(data), data, OPTIONS, teacher=start(data))
    with pytest.raises(UsageError, match="--distill: soft targets"):
        prune(start(data), data, PRUNING, OPTIONS, teacher=start(data))


def test_limits_are_in_the_units_of_the_target(data: Dataset, tmp_path: Path) -> None:
    listener = Listener()
    run = train(start(data), data, replace(OPTIONS, epochs=10), method="se-snn", out=tmp_path / "run")
    begun = run.metrics["validation"]["error"]
    with pytest.raises(
        UsageError, match=rf"has a validation RMSE of {Task.REGRESSION.show(begun)}, more than 0.01; raise --max-error"
    ):
        prune(run, data, replace(PRUNING, max_error=0.01), OPTIONS)
    hasty = replace(PRUNING, target_flops="5%", max_drop=0.02, finetune_steps=0, final_epochs=0, step=2)
    small = prune(run, data, hasty, replace(OPTIONS, lr=1e-5), out=tmp_path / "small", progress=listener)
    assert small.plan is not None
    assert small.metrics["validation"]["error"] <= begun + 0.02
    assert small.plan["stopped"].startswith("validation RMSE ")
    assert small.plan["stopped"].endswith(f"exceeds the budget of {Task.REGRESSION.show(begun + 0.02)}")
    assert any(message.startswith("round 1: ") and ", validation RMSE " in message for message in listener.messages)
    with pytest.raises(UsageError, match=r"no point has a validation RMSE of at most 0.001; the best has 0\.\d+$"):
        restore_point(load(tmp_path / "small"), under=0.001)
    assert preview(run, data, PRUNING, OPTIONS).steps > 0


def test_pace_has_no_slack_of_a_point() -> None:
    learner = Learner(nn.Linear(2, 1), None, OPTIONS, task=Task.REGRESSION)
    inputs, targets = torch.randn(8, 2), torch.randn(8)
    predicted = learner.model(inputs)[:, 0].detach()
    learner.step(inputs, targets, lr=0.0)
    assert learner.means()["error"] == pytest.approx(float((predicted - targets).square().mean().sqrt()), rel=1e-5)
    assert set(learner.shown()) == {"loss", "penalty", "RMSE"}


@pytest.mark.parametrize("number", [1, 4, 9, 20, 30])
def test_training_resumes_exactly(data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def make(**more: Any) -> Run:
        options, walk = replace(OPTIONS, save_every=0), PosteriorOptions(20)
        return train(start(data), data, options, method="dropout", posterior=walk, **more)

    whole = make(out=tmp_path / "whole")
    assert_same(crash_and_resume(make, monkeypatch, tmp_path / "cut", number), whole)
    assert history(tmp_path / "cut") == history(tmp_path / "whole")


@pytest.mark.parametrize("number", [1, 3, 9, 14, 20])
def test_pruning_resumes_exactly(data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    run = train(start(data), data, OPTIONS, method="se-snn")

    def make(**more: Any) -> Run:
        return prune(run, data, PRUNING, replace(OPTIONS, save_every=0), **more)

    whole = make(out=tmp_path / "whole")
    assert_same(crash_and_resume(make, monkeypatch, tmp_path / "cut", number), whole)
    assert history(tmp_path / "cut") == history(tmp_path / "whole")
