"""Evaluation by samples: scores worked out by hand, random numbers that are its own, and the evidence lower bound."""

from __future__ import annotations

import copy
from dataclasses import asdict
from typing import Any

import pytest
import torch
from small_data import IMAGE, batches, small_run
from torch import Tensor, nn

from snncompress.errors import DataError, ModelError, UsageError
from snncompress.evaluation.accuracy import evaluate
from snncompress.evaluation.sampling import evaluate_samples, evaluate_stochastic, measure_elbo
from snncompress.noise.attach import Noise, attach
from snncompress.noise.branch import Mode
from snncompress.progress import Progress
from snncompress.registry import entries
from snncompress.run import NoiseRecord, Run

DATA = batches(90, size=40)  # the last one is smaller


def noisy(method: str, **options: Any) -> tuple[nn.Module, Noise]:
    """A model with noise that can be seen, in the mode of training."""
    model = small_run().model.train()
    return model, attach(model, method, IMAGE, options)


def noisy_run(method: str, **options: Any) -> Run:
    run = small_run()
    noise = attach(run.model, method, IMAGE, options)
    noise.detach()
    return Run(**{**run.__dict__, "noise": NoiseRecord.of(noise)})


def test_by_hand() -> None:
    model, noise = noisy("dropout")
    result = evaluate_samples(model, noise, DATA, 3, seed=7)
    torch.manual_seed(7)
    model.eval()
    with torch.no_grad():
        logits = [torch.stack([model(inputs) for _ in range(3)]) for inputs, _ in DATA]
    p = torch.cat(logits, 1).double().softmax(-1)  # (3, 90, 4)
    labels = torch.cat([labels for _, labels in DATA])
    errors = 100 * (p.argmax(-1) != labels).double().mean(1)
    truth = p[:, torch.arange(90), labels]
    assert result.draws == 3
    assert result.one.samples == result.averaged.samples == 90
    assert result.one.error == pytest.approx(float(errors.mean()))
    assert result.spread == pytest.approx(float(errors.std(correction=0)))
    assert result.one.nll == pytest.approx(float(-truth.log().mean()), rel=1e-5)
    assert result.averaged.error == pytest.approx(100 * float((p.mean(0).argmax(-1) != labels).double().mean()))
    assert result.averaged.nll == pytest.approx(float(-truth.mean(0).log().mean()), rel=1e-5)
    assert result.averaged.nll < result.one.nll  # Jensen: surprise is convex in the probability
    assert result.spread > 0


@pytest.mark.parametrize("method", entries("methods"))
def test_the_same_seed_gives_the_same_and_leaves_the_callers_random_numbers_alone(method: str) -> None:
    model, noise = noisy(method)
    state = torch.get_rng_state()
    first = evaluate_samples(model, noise, DATA, 2, seed=3)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(99)
    assert evaluate_samples(model, noise, DATA, 2, seed=3) == first
    assert evaluate_samples(model, noise, DATA, 2, seed=4).one.nll != first.one.nll


def test_one_draw_is_one_sample() -> None:
    model, noise = noisy("vd", log_alpha=-1)
    result = evaluate_samples(model, noise, DATA, 1)
    assert result.spread == 0
    assert result.one.error == result.averaged.error
    assert result.one.nll == pytest.approx(result.averaged.nll, rel=1e-6)


@pytest.mark.parametrize(
    ("method", "leaf", "value"),
    [("se-snn", "bias", -200.0), ("sparse-vd", "log_sigma2", -40.0), ("vd", "log_alpha", -20.0)],
)
def test_without_variance_a_sample_is_the_mean(method: str, leaf: str, value: float) -> None:
    model, noise = noisy(method)
    for branch in noise.branches.values():
        nn.init.constant_(branch.get_parameter(leaf), value)
    result = evaluate_samples(model, noise, DATA, 4)
    with noise.mode(Mode.MEAN):
        mean = evaluate(model, DATA)
    for sampled in (result.one, result.averaged):
        assert sampled.error == mean.error
        assert sampled.nll == pytest.approx(mean.nll, abs=1e-3)  # √1e-8 of a deviation is left to be differentiable
    assert result.spread == 0


def test_zero_means() -> None:
    """Around zero, the sign of a weight is lost: the opposite weights give the same samples."""
    model, noise = noisy("vd", log_alpha=1)
    around_zero = evaluate_samples(model, noise, DATA, 2, mode=Mode.ZERO)
    assert around_zero != evaluate_samples(model, noise, DATA, 2)
    with torch.no_grad():
        for name in noise.branches:
            model.get_submodule(name).weight.neg_()  # type: ignore[operator, union-attr]
    assert evaluate_samples(model, noise, DATA, 2, mode=Mode.ZERO) == around_zero
    assert all(branch.mode is Mode.SAMPLE for branch in noise.branches.values())


@pytest.mark.parametrize(("method", "options"), [("sparse-vd", {}), ("vd", {"prior": "ard"}), ("variance", {})])
@pytest.mark.parametrize("draws", [1, 4])
def test_the_bound_is_data_less_divergence(method: str, options: dict[str, Any], draws: int) -> None:
    model, noise = noisy(method, **options)
    bound = measure_elbo(model, noise, DATA, draws, seed=5)
    assert bound is not None
    found = evaluate_samples(model, noise, DATA, draws, seed=5)
    nll = found.one.nll
    assert bound.deviation == pytest.approx(0 if draws == 1 else 90 * found.nll_spread / 3**0.5)  # 4 − 1 samples
    assert (bound.deviation > 0) == (draws > 1)
    assert bound.data == pytest.approx(-90 * nll)
    assert bound.kl == noise.kl()
    assert (bound.kl > 0) == (method != "variance")
    assert bound.elbo == pytest.approx(-90 * nll - bound.kl)


@pytest.mark.parametrize("method", ["se-snn", "dropout"])
def test_methods_without_a_divergence_have_no_bound(method: str) -> None:
    assert measure_elbo(*noisy(method), DATA) is None


@pytest.mark.parametrize("method", entries("methods"))
def test_a_run_in_all_ways(method: str) -> None:
    run = noisy_run(method)
    before = copy.deepcopy(run.model.state_dict())
    training = batches(120, seed=2)
    result = evaluate_stochastic(run, DATA, training, 3, seed=1)
    model = copy.deepcopy(run.model)
    noise = run.attach_noise(model)
    assert noise is not None
    assert result.sampled == evaluate_samples(model, noise, DATA, 3, seed=1)
    assert result.elbo == measure_elbo(model, noise, training, result.sampled.draws, seed=1)
    with noise.mode(Mode.MEAN):
        assert result.mean == evaluate(model, DATA)
    assert not any("forward" in module.__dict__ for module in run.model.modules())
    assert all(torch.equal(tensor, before[name]) for name, tensor in run.model.state_dict().items())
    plain = result.to_json()
    assert plain["error"] == result.mean.error
    assert plain["averaged"] == {**asdict(result.sampled.averaged), "draws": 3}
    assert plain["one_sample"]["spread"] == result.sampled.spread
    if result.elbo is not None:
        assert plain["elbo"]["elbo"] == plain["elbo"]["data"] - plain["elbo"]["kl"]


def test_what_cannot_be_sampled_is_refused() -> None:
    with pytest.raises(UsageError, match=r"mlp was not trained with noise.*leave --samples out"):
        evaluate_stochastic(small_run(), DATA, DATA, 3)
    with pytest.raises(UsageError, match="--samples 0 is out of range"):
        evaluate_stochastic(noisy_run("vd"), DATA, DATA, 0)


def test_modes_are_restored_and_norms_gather_nothing() -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 4))
    noise = attach(model, "se-snn", IMAGE)
    model.train()
    model[1].eval()  # a frozen batch norm stays frozen
    modes = [module.training for module in model.modules()]
    evaluate_samples(model, noise, DATA, 2)
    assert [module.training for module in model.modules()] == modes
    assert int(model[1].num_batches_tracked) == 0
    state = torch.get_rng_state()
    with noise.mode(Mode.MEAN):
        with pytest.raises(DataError, match="4 classes"):
            evaluate_samples(model, noise, [(inputs, labels + 4) for inputs, labels in DATA], 2)
        assert all(branch.mode is Mode.MEAN for branch in noise.branches.values())
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), state)


def test_outputs_and_labels_are_checked() -> None:
    model, noise = noisy("vd")
    inputs, labels = DATA[0]
    for wrong, error, message in (
        ((inputs, labels - 1), DataError, "from -1 to 2"),
        ((inputs, labels + 1), DataError, "model has 4 classes and the data at least 5"),
        ((inputs * torch.nan, labels), ModelError, "NaN or infinite"),
        ((inputs[:5], labels), ModelError, r"for 40 images is shape \(5, 4\)"),
    ):
        with pytest.raises(error, match=message):
            evaluate_samples(model, noise, [wrong], 2)


def test_no_images() -> None:
    with pytest.raises(DataError, match="no images"):
        evaluate_stochastic(noisy_run("vd"), [], DATA, 2)


def test_progress() -> None:
    class Heard(Progress):
        def __init__(self) -> None:
            self.heard: list[Any] = []

        def start(self, task: str, total: int, done: int = 0) -> None:
            self.heard.append((task, total))

        def advance(self, steps: int = 1, **values: float) -> None:
            self.heard.append(steps)

    progress = Heard()
    evaluate_stochastic(noisy_run("vd"), DATA, batches(), 2, progress=progress)
    assert progress.heard == [
        ("evaluate mlp", 3), 1, 1, 1, ("evaluate samples", 3), 1, 1, 1, ("ELBO", 8), *[1] * 8
    ]  # fmt: skip


def test_probabilities_are_averaged_not_logits() -> None:
    """Two samples that are sure of different classes: the average is torn, and its surprise bounded."""

    class Sure(nn.Linear):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            row = torch.tensor([1000.0, 0.0] if self.calls % 2 else [0.0, 10.0])
            return row.expand(len(x), 2)

    model = Sure(1, 2)
    result = evaluate_samples(model, Noise("none", None, {}, {}), [(torch.zeros(4, 1), torch.zeros(4).long())], 2)
    assert result.one.error == 50
    assert result.averaged.error == 0
    assert result.averaged.nll == pytest.approx(0.6931, abs=1e-3)
