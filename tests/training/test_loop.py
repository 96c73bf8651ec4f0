"""Training: it learns, it leaves its input alone, and an interrupted run ends like an uninterrupted one."""

from __future__ import annotations

import math
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from crashing import assert_equal, assert_same, crash_and_resume, history
from small_data import CLASSES, IMAGE, batches, small_data, small_run
from torch import Tensor, nn

import snncompress
from snncompress import TrainOptions, train
from snncompress.data.dataset import Dataset
from snncompress.errors import SnncompressError, TrainingDivergedError, UsageError
from snncompress.noise.attach import attach
from snncompress.registry import entries
from snncompress.run import Run
from snncompress.training.learner import Learner
from snncompress.training.options import OptimizerName, Schedule

OPTIONS = TrainOptions(epochs=2, lr=0.01, batch_size=64, save_every=0)
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((method, {}) for method in entries("methods")),
    *(("se-snn", {"aggregate": kind}) for kind in ("sample", "both")),
    ("se-snn", {"place": "input"}),
    *(("vd", {"alpha": "neuron", "prior": prior, "kl_warmup": "0:2"}) for prior in ("student", "ard")),
    *(("variance", {"noise": kind}) for kind in ("bernoulli", "uniform")),
    *(("dropout", {"noise": kind}) for kind in ("gaussian", "beta")),
    ("sparse-vd", {"kl_warmup": "1:3", "kl_scale": 0.1}),
    ("vd", {"alpha": "weight"}),
]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return small_data(tmp_path_factory.mktemp("data"))


def with_norm() -> Run:
    torch.manual_seed(3)
    layers = (nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 6), nn.ReLU())
    return snncompress.wrap(nn.Sequential(*layers, nn.Linear(6, 4)), IMAGE, classes=CLASSES)


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
    def make(**more: Any) -> Run:
        return train(small_run(), data, replace(OPTIONS, augment="shift"), method=method, **more)

    whole = make(out=tmp_path / "whole")
    assert_same(whole, crash_and_resume(make, monkeypatch, tmp_path / "run", crash))
    assert history(tmp_path / "whole") == history(tmp_path / "run")
    for name in ("model.safetensors", "probe.safetensors"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "run" / name).read_bytes()
    assert {file.name for file in (tmp_path / "run").iterdir()} == {
        file.name for file in (tmp_path / "whole").iterdir()
    }


@pytest.mark.parametrize(("method", "options"), VARIANTS)
def test_every_method_resumes_exactly(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, options: dict[str, Any]
) -> None:
    def make(**more: Any) -> Run:
        return train(with_norm(), data, OPTIONS, method=method, method_options=options, **more)

    whole = make(out=tmp_path / "whole")
    assert_same(whole, crash_and_resume(make, monkeypatch, tmp_path / "run", 5))
    assert history(tmp_path / "whole") == history(tmp_path / "run")
    assert_same(whole, snncompress.load(tmp_path / "run", model=with_norm().model))


def test_momentum_resumes_too(data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = replace(OPTIONS, optimizer=OptimizerName.SGD, schedule=Schedule.LINEAR, weight_decay=0.01, noise_lr=0.02)

    def make(**more: Any) -> Run:
        return train(with_norm(), data, options, method="se-snn", **more)

    whole = make(out=tmp_path / "whole")
    assert_same(whole, crash_and_resume(make, monkeypatch, tmp_path / "run", 7))


@pytest.mark.parametrize("method", entries("methods"))
def test_the_history_shows_the_state_of_the_noise(data: Dataset, tmp_path: Path, method: str) -> None:
    run = train(small_run(), data, OPTIONS, method=method, out=tmp_path / "run")
    lines = history(tmp_path / "run")
    assert [line["epoch"] for line in lines] == [0, 1, 2]
    assert run.noise is not None
    for line in lines:
        assert list(line["noise"]) == run.noise.json["layers"]
        assert all(math.isfinite(value) for layer in line["noise"].values() for value in layer.values())
        assert "validation_error" in line
        sampled = {"validation_error_one_sample", "validation_error_averaged"}
        assert (sampled <= line.keys()) == (method in ("vd", "variance"))
        assert ("validation_error_zero_mean" in line) == (method == "vd")
    assert {f"validation_{key}": value for key, value in run.metrics["validation"].items()}.items() <= lines[-1].items()


@pytest.mark.parametrize(
    ("method", "leaf", "key"),
    [("sparse-vd", "log_sigma2", "sparsity"), ("vd", "log_alpha", "mean"), ("variance", "log_sigma", "mean")],
)
def test_the_summary_is_of_the_parameters(data: Dataset, tmp_path: Path, method: str, leaf: str, key: str) -> None:
    run = train(small_run(), data, OPTIONS, method=method, out=tmp_path / "run")
    assert run.noise is not None
    for name, layer in history(tmp_path / "run")[-1]["noise"].items():
        found = next(value for word, value in layer.items() if word.endswith(key))
        zeros = run.model.get_parameter(f"{name}.weight") == 0  # settled: those that drowned
        wanted = zeros.float() if key == "sparsity" else run.noise.tensors[f"{name}.{leaf}"]
        assert found == pytest.approx(float(wanted.mean()), abs=1e-6)


def test_means_that_drown_are_seen_in_the_history(data: Dataset, tmp_path: Path) -> None:
    """The phase transition: at first the means know everything, in the end nobody misses them."""
    plain = train(small_run(), data, replace(OPTIONS, epochs=8))
    options = replace(OPTIONS, epochs=8, lr=0.03, noise_lr=1.0)
    strong = {"kl_scale": 30}
    run = train(plain, data, options, method="vd", method_options=strong, layers=["3"], out=tmp_path / "run")
    first, *_, last = history(tmp_path / "run")
    assert max(first["validation_error"], first["validation_error_averaged"]) < 20
    assert first["validation_error_zero_mean"] > 50
    assert max(last["validation_error_averaged"], last["validation_error_zero_mean"]) < 20
    assert last["validation_error_one_sample"] > last["validation_error_averaged"]
    assert run.hollow == ["3"]


@pytest.mark.parametrize("optimizer", OptimizerName)
def test_the_noise_has_a_rate_of_its_own(optimizer: OptimizerName) -> None:
    inputs, targets = batches()[0]

    def step(noise_lr: float | None) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        model = small_run().model
        noise = attach(model, "vd", IMAGE)
        learned = {name: parameter for name, parameter in noise.named_parameters() if parameter.requires_grad}
        before = {name: parameter.detach().clone() for name, parameter in learned.items()}
        learner = Learner(model, noise, replace(OPTIONS, lr=0.01, noise_lr=noise_lr, optimizer=optimizer))
        torch.manual_seed(0)
        learner.step(inputs, targets, lr=0.005)  # halfway down the schedule
        return model.state_dict(), {name: parameter.detach() - before[name] for name, parameter in learned.items()}

    weights, moved = step(0.02)
    others, further = step(0.06)
    assert_equal(weights, others)
    assert all(float(change.abs().max()) > 0 for change in moved.values())
    for name, change in moved.items():
        torch.testing.assert_close(further[name], 3 * change, rtol=1e-3, atol=1e-6)
    assert_equal(step(None)[1], step(0.1)[1])  # ten times the weights' rate is the method's own choice


@pytest.mark.parametrize("method", entries("methods"))
def test_the_same_method_goes_on_from_its_branches(data: Dataset, tmp_path: Path, method: str) -> None:
    once = train(small_run(), data, replace(OPTIONS, epochs=1), method=method, out=tmp_path / "once")
    again = train(once, data, replace(OPTIONS, epochs=0), method=method, out=tmp_path / "again")
    assert once.noise is not None
    assert again.noise is not None
    assert again.noise.json == once.noise.json
    assert_equal(again.noise.tensors, once.noise.tensors)
    assert_equal(again.model.state_dict(), once.model.state_dict())
    assert history(tmp_path / "again")[0]["validation_nll"] == once.metrics["validation"]["nll"]


def test_ctrl_c_saves_and_says_how_to_go_on(data: Dataset, tmp_path: Path) -> None:
    class Impatient(snncompress.progress.Progress):
        def advance(self, steps: int = 1, **values: float) -> None:
            os.kill(os.getpid(), signal.SIGINT)

    options = replace(OPTIONS, epochs=3, save_every=1e9)
    before = signal.getsignal(signal.SIGINT)  # a shell's background job ignores it
    whole = train(small_run(), data, options)
    with pytest.raises(SnncompressError, match=r"interrupted at step 10 of 24; repeat .* --resume") as caught:
        train(small_run(), data, options, out=tmp_path / "run", progress=Impatient())
    assert caught.value.exit_code == 130
    assert signal.getsignal(signal.SIGINT) is before
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


def test_another_alpha_begins_anew(data: Dataset) -> None:
    once = train(small_run(), data, replace(OPTIONS, epochs=1), method="vd")
    other = train(once, data, replace(OPTIONS, epochs=0), method="vd", method_options={"alpha": "weight"})
    assert other.noise is not None
    for name in ("1", "3", "5"):
        log_alpha = other.noise.tensors[f"{name}.log_alpha"]
        assert log_alpha.shape == other.model.get_parameter(f"{name}.weight").shape
        assert bool((log_alpha == other.noise.json["options"]["log_alpha"]).all())


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
    "wrong",
    [
        {"epochs": -1}, {"lr": 0.0}, {"lr": math.nan}, {"batch_size": 0}, {"weight_decay": -0.1},
        {"noise_lr": 0.0}, {"noise_lr": math.nan},
    ],
)  # fmt: skip
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
