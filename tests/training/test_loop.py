"""Training: it learns, it leaves its input alone, and an interrupted run ends like an uninterrupted one."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from small_data import CLASSES, IMAGE, batches, small_data, small_run
from torch import Tensor, nn

import snncompress
from snncompress import TrainOptions, train
from snncompress.data.dataset import Dataset
from snncompress.errors import SnncompressError, TrainingDivergedError, UsageError
from snncompress.run import Run
from snncompress.run_folder import RunFolder
from snncompress.training.options import OptimizerName, Schedule

OPTIONS = TrainOptions(epochs=2, lr=0.01, batch_size=64, save_every=0)


class CrashError(Exception):
    """Stands for a SIGKILL right after a state was saved."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return small_data(tmp_path_factory.mktemp("data"))


def crash_at(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Lets the process die after it has saved its state so many times."""
    save, saves = RunFolder.save, []

    def save_and_die(self: RunFolder, *args: Any) -> None:
        save(self, *args)
        saves.append(1)
        if len(saves) == number:
            raise CrashError

    monkeypatch.setattr(RunFolder, "save", save_and_die)


def history(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


def assert_same(run: Run, other: Run) -> None:
    assert run.model.state_dict().keys() == other.model.state_dict().keys()
    for name, tensor in run.model.state_dict().items():
        assert torch.equal(tensor, other.model.state_dict()[name]), name
    assert (run.noise is None) == (other.noise is None)
    if run.noise is not None and other.noise is not None:
        for name, tensor in run.noise.tensors.items():
            assert torch.equal(tensor, other.noise.tensors[name]), name
    assert run.metrics == other.metrics


def test_it_learns_and_leaves_its_input_alone(data: Dataset) -> None:
    run = small_run()
    before = {name: tensor.clone() for name, tensor in run.model.state_dict().items()}
    trained = train(run, data, replace(OPTIONS, epochs=4), method="se-snn")
    assert all(torch.equal(before[name], tensor) for name, tensor in run.model.state_dict().items())
    assert trained.metrics["validation"]["error"] < 30  # 75 by chance
    assert trained.noise is not None
    assert trained.model.state_dict().keys() == before.keys()
    assert trained.original == run.original
    assert trained.path is None
    assert not trained.model.training


def test_epoch_zero_is_the_model_as_it_came(data: Dataset, tmp_path: Path) -> None:
    plain = train(small_run(), data, OPTIONS)
    train(plain, data, replace(OPTIONS, epochs=1), method="se-snn", out=tmp_path / "run")
    first = history(tmp_path / "run")[0]
    assert first["epoch"] == 0
    assert first["validation_error"] == plain.metrics["validation"]["error"]
    assert first["validation_nll"] == pytest.approx(plain.metrics["validation"]["nll"])
    assert "loss" not in first  # nothing was learned yet


@pytest.mark.parametrize("method", ["none", "se-snn"])
@pytest.mark.parametrize("crash", [1, 2, 8, 9, 17])  # after: the start, a step, an epoch, ..., the last step
def test_a_crashed_run_ends_like_an_uninterrupted_one(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, crash: int
) -> None:
    options = replace(OPTIONS, augment="shift")
    whole = train(small_run(), data, options, method=method, out=tmp_path / "whole")
    with monkeypatch.context() as patch, pytest.raises(CrashError):  # noqa: PT012
        crash_at(patch, crash)
        train(small_run(), data, options, method=method, out=tmp_path / "run")
    torch.manual_seed(1234)
    resumed = train(small_run(), data, options, method=method, out=tmp_path / "run", resume=True)
    assert_same(whole, resumed)
    assert history(tmp_path / "whole") == history(tmp_path / "run")
    for name in ("model.safetensors", "probe.safetensors"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "run" / name).read_bytes()
    assert {file.name for file in (tmp_path / "run").iterdir()} == {
        file.name for file in (tmp_path / "whole").iterdir()
    }


def test_momentum_and_batch_norm_resume_too(data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def start() -> Run:
        torch.manual_seed(3)
        layers = (nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 4))
        return snncompress.wrap(nn.Sequential(*layers), IMAGE, classes=CLASSES)

    options = replace(OPTIONS, optimizer=OptimizerName.SGD, schedule=Schedule.LINEAR, weight_decay=0.01)
    whole = train(start(), data, options, method="se-snn", out=tmp_path / "whole")
    with monkeypatch.context() as patch, pytest.raises(CrashError):  # noqa: PT012
        crash_at(patch, 7)
        train(start(), data, options, method="se-snn", out=tmp_path / "run")
    assert_same(whole, train(start(), data, options, method="se-snn", out=tmp_path / "run", resume=True))


def test_ctrl_c_saves_and_says_how_to_go_on(data: Dataset, tmp_path: Path) -> None:
    class Impatient(snncompress.progress.Progress):
        def advance(self, steps: int = 1, **values: float) -> None:
            os.kill(os.getpid(), signal.SIGINT)

    options = replace(OPTIONS, epochs=3, save_every=1e9)
    whole = train(small_run(), data, options)
    with pytest.raises(SnncompressError, match=r"interrupted at step 10 of 24; repeat .* --resume") as caught:
        train(small_run(), data, options, out=tmp_path / "run", progress=Impatient())
    assert caught.value.exit_code == 130
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert_same(whole, train(small_run(), data, options, out=tmp_path / "run", resume=True))


def test_a_loss_that_is_nan_stops_and_the_state_before_it_goes_on(data: Dataset, tmp_path: Path) -> None:
    with pytest.raises(TrainingDivergedError, match="--resume and a smaller --lr"):
        train(small_run(), data, replace(OPTIONS, lr=1e30), out=tmp_path / "run")
    assert (tmp_path / "run" / "state.safetensors").exists()
    healed = train(small_run(), data, OPTIONS, out=tmp_path / "run", resume=True)
    assert all(bool(tensor.isfinite().all()) for tensor in healed.model.state_dict().values())
    assert healed.config["lr"] == OPTIONS.lr


def test_training_again_keeps_the_noise_unless_told_otherwise(data: Dataset) -> None:
    once = train(small_run(), data, replace(OPTIONS, epochs=1), method="se-snn", method_options={"omega": 0.5})
    assert once.noise is not None
    still = train(once, data, replace(OPTIONS, epochs=0), method="se-snn", method_options={"margin": 2})
    assert still.noise is not None
    assert still.noise.json["options"] == {**once.noise.json["options"], "omega": 0.5, "margin": 2.0}
    assert all(torch.equal(tensor, still.noise.tensors[name]) for name, tensor in once.noise.tensors.items())
    part = train(once, data, replace(OPTIONS, epochs=0), method="se-snn", layers=["1"])
    assert part.noise is not None
    assert part.noise.json["layers"] == ["1"]
    assert train(once, data, replace(OPTIONS, epochs=0)).noise is None


def test_the_users_own_batches_and_loss() -> None:
    seen = []

    def smooth(outputs: Tensor, targets: Tensor) -> Tensor:
        seen.append(len(targets))
        return F.cross_entropy(outputs, targets, label_smoothing=0.1)

    options = replace(OPTIONS, epochs=6)
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(*map(torch.cat, zip(*batches(), strict=True))), 50
    )
    for own in (batches(), loader):
        seen.clear()
        run = train(small_run(), own, options, loss=smooth, validation=batches(100, seed=1))
        assert seen == [50] * 8 * options.epochs
        assert run.metrics["validation"]["error"] < 30
        assert run.metrics["validation"]["samples"] == 100
    assert train(small_run(), batches(), OPTIONS, loss=smooth).metrics == {}
    with pytest.raises(UsageError, match="not a generator"):
        train(small_run(), iter(batches()), OPTIONS)


def test_a_loss_that_is_no_classification() -> None:
    pairs = [(inputs, inputs.mean((1, 2, 3)).unsqueeze(1)) for inputs, _ in batches()]
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 1))
    run = train(snncompress.wrap(model, IMAGE), pairs, replace(OPTIONS, epochs=5), method="se-snn", loss=F.mse_loss)
    error = sum(float(F.mse_loss(run.model(inputs), targets).detach()) for inputs, targets in pairs)
    before = sum(float(F.mse_loss(model(inputs), targets).detach()) for inputs, targets in pairs)
    assert error < before / 2


def test_a_module_made_in_python_is_trained_saved_and_reloaded(data: Dataset, tmp_path: Path) -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.ReLU(), nn.Linear(6, 4))

    run = train(snncompress.wrap(build(), IMAGE, classes=CLASSES), data, OPTIONS, method="se-snn", out=tmp_path / "run")
    loaded = snncompress.load(tmp_path / "run", model=build())
    assert_same(run, loaded)


@pytest.mark.parametrize(
    "wrong", [{"epochs": -1}, {"lr": 0.0}, {"lr": float("nan")}, {"batch_size": 0}, {"weight_decay": -0.1}]
)
def test_impossible_options_are_refused(wrong: dict[str, float]) -> None:
    name = next(iter(wrong)).replace("_", "-")
    with pytest.raises(UsageError, match=f"--{name}"):
        TrainOptions(**wrong)  # type: ignore[arg-type]


def test_rates_fall_from_lr_to_zero() -> None:
    for schedule in (Schedule.COSINE, Schedule.LINEAR):
        rates = [TrainOptions(lr=0.5, schedule=schedule).rate(i / 10) for i in range(11)]
        assert rates[0] == 0.5
        assert rates[-1] == pytest.approx(0)
        assert rates == sorted(rates, reverse=True)
    assert TrainOptions(lr=0.5, schedule=Schedule.CONSTANT).rate(0.9) == 0.5
