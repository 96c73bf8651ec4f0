"""RMSE, likelihood, samples and losses of models that predict a number, against NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from snncompress.data.task import Task
from snncompress.errors import DataError, ModelError
from snncompress.evaluation.accuracy import evaluate
from snncompress.evaluation.likelihood import average, default_loss, faults, log_likelihood
from snncompress.evaluation.sampling import evaluate_samples, measure_elbo
from snncompress.noise.attach import attach
from snncompress.progress import Progress

LOG_2PI = math.log(2 * math.pi)


def pairs(targets_shape: tuple[int, ...] = (30,)) -> list[tuple[Tensor, Tensor]]:
    inputs, targets = torch.randn(30, 4, 1, 1), 5 * torch.randn(targets_shape)
    return list(zip(inputs.split(8), targets.split(8), strict=True))


def model(outputs: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, outputs))


@pytest.mark.parametrize("shape", [(30,), (30, 1)])
def test_rmse_against_numpy(shape: tuple[int, ...]) -> None:
    batches, net = pairs(shape), model()
    seen: dict[str, float] = {}

    class Listener(Progress):
        def advance(self, steps: int = 1, **values: float) -> None:
            seen.update(values)

    found = evaluate(net, batches, Listener())
    predicted = np.concatenate([net(inputs).detach().double().numpy().ravel() for inputs, _ in batches])
    targets = np.concatenate([targets.double().numpy().ravel() for _, targets in batches])
    squared = np.mean((predicted - targets) ** 2)
    assert found.error == pytest.approx(np.sqrt(squared), rel=1e-6)
    assert found.nll == pytest.approx(squared / 2 + LOG_2PI / 2, rel=1e-6)
    assert found.samples == 30
    assert seen == {"RMSE": found.error}


def test_the_loss_is_the_likelihood_without_its_constant() -> None:
    outputs, targets = torch.randn(9, 1, requires_grad=True), torch.randn(9, dtype=torch.float64)
    loss = default_loss(outputs, targets)
    loss.backward()
    assert outputs.grad is not None
    torch.testing.assert_close(loss, F.mse_loss(outputs[:, 0], targets.float()) / 2)
    torch.testing.assert_close(loss, -log_likelihood(outputs, targets).mean() - LOG_2PI / 2)
    torch.testing.assert_close(default_loss(outputs[:, 0], targets), loss)
    assert default_loss(outputs.half(), targets).dtype == torch.float32
    with pytest.raises(ModelError, match=r"\(9, 3\), but their targets are single numbers"):
        default_loss(torch.randn(9, 3), targets)


def test_classes_and_probabilities_are_learned_by_cross_entropy() -> None:
    logits, labels = torch.randn(9, 4), torch.arange(9) % 4
    assert torch.equal(default_loss(logits, labels), F.cross_entropy(logits, labels))
    shares = torch.rand(9, 4)
    assert torch.equal(default_loss(logits, shares), F.cross_entropy(logits, shares))
    torch.testing.assert_close(log_likelihood(logits, labels), -F.cross_entropy(logits, labels, reduction="none"))


def test_samples_of_outputs() -> None:
    outputs, targets = torch.randn(5, 9, 1), torch.randn(9)
    assert log_likelihood(outputs, targets).shape == faults(outputs, targets).shape == (5, 9)
    torch.testing.assert_close(average(outputs, Task.REGRESSION), outputs.mean(0))
    logits = torch.randn(5, 9, 3)
    torch.testing.assert_close(average(logits, Task.CLASSIFICATION).exp(), logits.softmax(-1).mean(0))


def test_evaluation_by_samples() -> None:
    batches, net, draws = pairs(), model(), 7
    noise = attach(net, "dropout", (4, 1, 1))
    with torch.random.fork_rng():
        torch.manual_seed(3)
        net.eval()
        drawn = [torch.stack([net(inputs) for _ in range(draws)])[..., 0].detach().double() for inputs, _ in batches]
    samples = torch.cat(drawn, 1).numpy()  # (K, N)
    targets = torch.cat([targets for _, targets in batches]).double().numpy()
    found = evaluate_samples(net, noise, batches, draws, seed=3)
    each = np.sqrt(np.mean((samples - targets) ** 2, axis=1))
    densities = np.exp(-((samples - targets) ** 2) / 2) / np.sqrt(2 * np.pi)
    assert found.one.error == pytest.approx(each.mean(), rel=1e-5)
    assert found.spread == pytest.approx(each.std(), rel=1e-4)
    assert found.averaged.error == pytest.approx(np.sqrt(np.mean((samples.mean(0) - targets) ** 2)), rel=1e-5)
    assert found.averaged.nll == pytest.approx(-np.log(densities.mean(0)).mean(), rel=1e-4)
    assert found.one.nll == pytest.approx(-np.log(densities).mean(), rel=1e-4)


def test_the_bound_sums_the_likelihood_of_unit_variance() -> None:
    batches, net = pairs(), model()
    noise = attach(net, "sparse-vd", (4, 1, 1))
    found, one = measure_elbo(net, noise, batches), evaluate_samples(net, noise, batches, 1).one
    assert found is not None
    assert found.data == pytest.approx(-30 * (one.error**2 / 2 + LOG_2PI / 2), rel=1e-5)


def test_outputs_and_targets_must_fit() -> None:
    with pytest.raises(ModelError, match=r"\(8, 3\), but their targets are single numbers .* with one output"):
        evaluate(model(3), pairs())
    with pytest.raises(DataError, match=r"torch.float32 of shape \(8, 2\); evaluation knows class numbers and single"):
        evaluate(model(2), pairs((30, 2)))
    labelled = [(inputs, torch.arange(len(inputs)) % 2) for inputs, _ in pairs()]
    with pytest.raises(DataError, match="labels run from 0 to 1, but the model has 1 classes"):
        evaluate(model(), labelled)
