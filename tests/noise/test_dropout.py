"""Multiplicative noise: its factors have mean one and the variances that the docstring states."""

from __future__ import annotations

import math

import pytest
import torch
from networks import IMAGE, Small
from noisy_layers import LAYERS, assert_moments, make_branch, make_layer, with_weight
from torch.distributions import Beta

from snncompress.errors import UsageError
from snncompress.noise.attach import attach, make_options
from snncompress.noise.dropout import Distribution, NoiseBranch, Options

COUNT = 200_000


def factors(noise: str, rate: float) -> torch.Tensor:
    branch = NoiseBranch(torch.nn.Linear(1, 1), Options(Distribution(noise), rate), normed=False)
    return branch._factors(torch.zeros(COUNT, dtype=torch.float64))


def variance_of(noise: str, rate: float) -> float:
    """p/(1 − p); m ~ Beta(1 − p, p) has the variance p(1 − p)/2, half of a Bernoulli's."""
    return rate / (1 - rate) * (0.5 if noise == Distribution.BETA else 1.0)


@pytest.mark.parametrize("noise", Distribution)
@pytest.mark.parametrize("rate", [0.1, 0.5, 0.8])
def test_mean_one_and_the_stated_variance(noise: str, rate: float) -> None:
    values = factors(noise, rate)
    exact = torch.tensor(variance_of(noise, rate)).double()
    assert_moments(values.unsqueeze(1), torch.ones(1).double(), exact.unsqueeze(0))


def test_bernoulli_keeps_or_drops() -> None:
    values = factors("bernoulli", 0.2)
    assert sorted(set(values.tolist())) == pytest.approx([0.0, 1.25])
    assert float((values == 0).double().mean()) == pytest.approx(0.2, abs=5 * 0.4 / math.sqrt(COUNT))


def test_gaussian_is_normal() -> None:
    errors = (factors("gaussian", 0.5) - 1).sort().values
    uniform = torch.special.ndtr(errors)
    assert float((uniform - torch.linspace(0, 1, COUNT).double()).abs().max()) < 2 / math.sqrt(COUNT)


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_beta_is_a_beta(rate: float) -> None:
    """By its moments up to the sixth; for p = ½ by the arcsine law."""
    m = (factors("beta", rate) * (1 - rate)).clamp(0, 1)
    a, b = 1 - rate, rate
    exact = 1.0
    for order in range(1, 7):
        exact *= (a + order - 1) / (a + b + order - 1)
        assert float((m**order).mean()) == pytest.approx(exact, abs=5 * 0.5 / math.sqrt(COUNT))
    assert float(Beta(a, b).mean) == pytest.approx(a)
    if rate == 0.5:
        law = 2 / math.pi * m.sort().values.sqrt().asin()
        assert float((law - torch.linspace(0, 1, COUNT).double()).abs().max()) < 2 / math.sqrt(COUNT)


@pytest.mark.parametrize("noise", Distribution)
@pytest.mark.parametrize("name", LAYERS)
def test_the_layer_reads_noisy_units(name: str, noise: str) -> None:
    """For a drawn λ exactly; over draws, the output has the moments of a linear map of λ ∘ x."""
    layer, x = make_layer(name, images=2)
    branch = make_branch(layer, f"dropout {noise}", rate=0.3)
    with torch.no_grad():
        torch.manual_seed(6)
        sample = branch.sample(layer, x)
        torch.manual_seed(6)
        expected = with_weight(layer, layer.weight, x * branch._factors(x))
        torch.testing.assert_close(sample, expected, rtol=1e-12, atol=1e-12)
        assert torch.equal(branch.mean(layer, x), type(layer).forward(layer, x))
        if name in ("linear", "groups"):  # every unit is read once by an output: Var = Σ x²·w²·Var λ
            samples = torch.stack([branch.sample(layer, x) for _ in range(800)])
            silent = with_weight(layer, layer.weight.square(), torch.zeros_like(x))
            variance = (with_weight(layer, layer.weight.square(), x.square()) - silent) * variance_of(noise, 0.3)
            assert_moments(samples, layer(x), variance)


def test_there_is_nothing_to_learn_and_nothing_to_pay() -> None:
    noise = attach(model := Small(), "dropout", IMAGE)
    assert list(noise.branches) == ["conv2", "fc1", "fc2"]  # not what reads the image
    model(torch.randn(2, *IMAGE))
    assert not list(noise.named_parameters())
    assert float(noise.penalty()) == 0
    assert noise.kl() is None
    assert noise.find_hollow() == []


@pytest.mark.parametrize("rate", [0, 1, -0.1, 1.5, "nan"])
def test_rates_out_of_range(rate: float) -> None:
    with pytest.raises(UsageError, match=r"option rate=.* is out of range; give one between 0 and 1"):
        make_options("dropout", {"rate": rate})
