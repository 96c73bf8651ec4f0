"""Langevin dynamics: the update by its formula, moments as of stored samples, and posteriors known in closed form."""

from __future__ import annotations

import copy
import math
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
from snncompress.errors import TrainingDivergedError, UsageError
from snncompress.run import Run
from snncompress.training.langevin import Langevin, PosteriorOptions

OPTIONS = TrainOptions(epochs=1, lr=0.01, batch_size=64, save_every=0)
SAMPLES = PosteriorOptions(12)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return small_data(tmp_path_factory.mktemp("data"))


def with_norm() -> Run:
    torch.manual_seed(3)
    layers = (nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 4))
    return snncompress.wrap(nn.Sequential(*layers), IMAGE, classes=CLASSES)


@pytest.mark.parametrize(("prior_std", "temperature"), [(0.3, 1.0), (5.0, 1.0), (1.0, 0.25), (1.0, 0.0)])
def test_the_update_by_its_formula(prior_std: float, temperature: float) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    inputs, targets = torch.randn(7, 3).double(), torch.randint(2, (7,))
    options = PosteriorOptions(10, lr=0.01, prior_std=prior_std, temperature=temperature)
    walk = Langevin(model, F.cross_entropy, options, examples=50)
    for number in range(3):
        plain = copy.deepcopy(model)
        lr = 0.01 * (1 + number / (10 / 100)) ** -0.55
        assert walk.rate() == pytest.approx(lr, rel=1e-12)
        torch.manual_seed(number)
        walk.step(inputs, targets)
        squares = sum(parameter.square().sum() for parameter in plain.parameters())
        (50 * F.cross_entropy(plain(inputs), targets) + squares / (2 * prior_std**2)).backward()
        torch.manual_seed(number)
        for new, old in zip(model.parameters(), plain.parameters(), strict=True):
            noise = math.sqrt(temperature * lr / 2) * torch.randn_like(old)
            assert old.grad is not None
            torch.testing.assert_close(new - noise, old - lr / 4 * old.grad, rtol=1e-12, atol=1e-12)


def test_the_moments_are_those_of_the_samples() -> None:
    model = nn.Linear(3, 2)
    walk = Langevin(model, F.cross_entropy, PosteriorOptions(40, lr=0.1), examples=20)
    samples: dict[str, list[Tensor]] = {"weight": [], "bias": []}
    for _ in range(40):
        walk.step(torch.randn(5, 3), torch.randint(2, (5,)))
        for name, parameter in model.named_parameters():
            samples[name].append(parameter.detach().double())
    for name, values in samples.items():
        torch.testing.assert_close(walk.moments()[f"{name}.mean"], torch.stack(values).mean(0).float())
        torch.testing.assert_close(walk.moments()[f"{name}.variance"], torch.stack(values).var(0).float())
    walk.settle()
    assert torch.equal(model.weight, walk.moments()["weight.mean"])


def test_small_variances_of_large_weights() -> None:
    """Where a sum of squares in single precision would leave nothing."""
    model = nn.Linear(50, 1, bias=False)
    nn.init.constant_(model.weight, 100.0)
    walk = Langevin(model, lambda outputs, _: outputs.sum() * 0, PosteriorOptions(30, lr=2e-6, prior_std=1e9), 1)
    samples = []
    for _ in range(30):
        walk.step(torch.ones(1, 50), torch.zeros(1))
        samples.append(model.weight.detach().double())
    torch.testing.assert_close(
        walk.moments()["weight.variance"], torch.stack(samples).var(0).float(), rtol=1e-5, atol=0
    )


def test_a_posterior_known_in_closed_form() -> None:
    """200 regressions y = w·x + N(0, 1) at once, each with its own posterior N(Σxy/P, 1/P), P = Σx² + 1/σ₀²."""
    prior_std, examples = 0.2, 20
    x, truth = torch.randn(examples, 200), 0.5 * torch.randn(200)
    y = x * truth + torch.randn(examples, 200)
    precision = x.square().sum(0) + 1 / prior_std**2
    mean = (x * y).sum(0) / precision

    class Regressions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(mean.clone())  # from where training converged

        def forward(self, inputs: Tensor) -> Tensor:
            return inputs * self.w

    def negative_log_likelihood(outputs: Tensor, targets: Tensor) -> Tensor:
        return 0.5 * (outputs - targets).square().sum(1).mean()

    # A step this long crosses a posterior in a few: at first its variance is 18% too large, soon 1%.
    options = PosteriorOptions(2000, lr=4 * 0.3 / float(precision.mean()), prior_std=prior_std)
    walk = Langevin(Regressions(), negative_log_likelihood, options, examples)
    for _ in range(options.samples):
        walk.step(x, y)
    moments = walk.moments()
    assert float((moments["w.variance"] * precision).mean()) == pytest.approx(1, abs=0.08)
    away = (moments["w.mean"] - mean) * precision.sqrt()  # in standard deviations of the posterior
    assert abs(float(away.mean())) < 0.05
    assert float(away.square().mean().sqrt()) < 0.25


def test_the_run_keeps_the_moments_and_has_their_mean(data: Dataset, tmp_path: Path) -> None:
    run = train(small_run(), data, OPTIONS, posterior=SAMPLES, out=tmp_path / "run")
    assert run.posterior is not None
    names = dict(run.model.named_parameters())
    assert run.posterior.keys() == {f"{name}.{moment}" for name in names for moment in ("mean", "variance")}
    assert all(bool((run.posterior[f"{name}.variance"] > 0).all()) for name in names)
    assert_equal({f"{name}.mean": tensor.detach() for name, tensor in names.items()}, means(run))
    last = history(tmp_path / "run")[-1]
    assert last["posterior"] == SAMPLES.samples
    assert run.metrics["validation"]["error"] == last["validation_error"]
    assert_same(run, snncompress.load(tmp_path / "run"))
    assert train(run, data, replace(OPTIONS, epochs=0)).posterior is None  # they are not the moments of other weights


def means(run: Run) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in (run.posterior or {}).items() if name.endswith(".mean")}


@pytest.mark.parametrize("start", [small_run, with_norm])
@pytest.mark.parametrize("method", ["none", "dropout", "variance"])
@pytest.mark.parametrize("crash", [9, 15, 21])  # after: training, the sixth sample, the last one
def test_interrupted_sampling_ends_like_an_uninterrupted_one(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: Any, method: str, crash: int
) -> None:
    def make(**more: Any) -> Run:
        return train(start(), data, OPTIONS, method=method, posterior=SAMPLES, **more)

    whole = make(out=tmp_path / "whole")
    assert_same(whole, crash_and_resume(make, monkeypatch, tmp_path / "run", crash))
    assert history(tmp_path / "whole") == history(tmp_path / "run")


@pytest.mark.parametrize("epochs", [0, 1])
@pytest.mark.parametrize("method", ["none", "dropout"])
def test_batch_norms_fit_the_mean_of_the_posterior(epochs: int, method: str) -> None:
    """Their statistics are those of the final weights, not of the walk that led there."""
    run = train(
        with_norm(), batches(), replace(OPTIONS, epochs=epochs), method=method, posterior=PosteriorOptions(5, lr=1e-2)
    )
    features = torch.cat([run.model[0](inputs) for inputs, _ in batches()])  # type: ignore[index]
    torch.testing.assert_close(run.model[1].running_mean, features.mean((0, 2, 3)), rtol=1e-4, atol=1e-5)  # type: ignore[index]


def test_noise_is_off_while_samples_are_drawn(data: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> Tensor:
        raise AssertionError("noise was drawn")

    monkeypatch.setattr(snncompress.registry.load("methods", "dropout").NoiseBranch, "_factors", never)
    train(small_run(), data, replace(OPTIONS, epochs=0), method="dropout", posterior=SAMPLES)


def test_parameters_that_nothing_is_learned_about_stay() -> None:
    model = nn.Sequential(nn.Linear(3, 2))
    model.register_parameter("unused", nn.Parameter(torch.tensor([1.5, -2.0])))
    model.register_parameter("frozen", nn.Parameter(torch.tensor(7.0), requires_grad=False))
    walk = Langevin(model, F.cross_entropy, PosteriorOptions(5), examples=20)
    for _ in range(5):
        walk.step(torch.randn(5, 3), torch.randint(2, (5,)))
    walk.settle()
    assert model.unused.tolist() == [1.5, -2.0]
    assert float(model.frozen) == 7.0
    moments = walk.moments()
    assert moments["unused.mean"].tolist() == [1.5, -2.0]
    assert moments["unused.variance"].tolist() == [0.0, 0.0]


def test_a_walk_that_diverges_says_so_and_keeps_the_state(data: Dataset, tmp_path: Path) -> None:
    for lr in (1e3, 1e30):
        with pytest.raises(TrainingDivergedError, match="smaller --"):
            train(small_run(), data, OPTIONS, posterior=PosteriorOptions(30, lr=lr), out=tmp_path / "run", force=True)
        assert (tmp_path / "run" / "state.safetensors").exists()


@pytest.mark.parametrize(
    "text", ["nonsense", "sgld", "sgld:", "sgld:many", "sgld:-5", "sgld:1e4", "hmc:100", "100", ""]
)
def test_what_is_no_posterior(text: str) -> None:
    with pytest.raises(UsageError, match=r"is not of the form sgld:10000"):
        PosteriorOptions.parse(text)


@pytest.mark.parametrize(
    ("wrong", "option"),
    [
        ({"samples": 0}, "sgld:0"), ({"samples": 1}, "sgld:1"),
        ({"lr": 0.0}, "--posterior-lr"), ({"lr": math.nan}, "--posterior-lr"),
        ({"prior_std": 0.0}, "--prior-std"), ({"prior_std": math.inf}, "--prior-std"),
        ({"temperature": -0.1}, "--posterior-temperature"), ({"temperature": math.nan}, "--posterior-temperature"),
    ],
)  # fmt: skip
def test_impossible_options_are_refused(wrong: dict[str, float], option: str) -> None:
    with pytest.raises(UsageError, match=option):
        PosteriorOptions(**{"samples": 10, **wrong})  # type: ignore[arg-type]


def test_the_step_is_a_modest_one_by_default() -> None:
    walk = Langevin(nn.Linear(2, 2), F.cross_entropy, PosteriorOptions.parse("sgld:100"), examples=500)
    assert walk.lr * 500 / 4 == pytest.approx(0.01)  # the rate of the gradient descent within
