"""Variational dropout: who shares α, and the three priors against their definitions."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from noisy_layers import LAYERS, kl_exact, make_branch, make_layer
from torch import Tensor
from torch.distributions import StudentT

from snncompress.errors import UsageError
from snncompress.noise.attach import make_options
from snncompress.noise.vd import FAR, HOLLOW, LIMIT, Alpha, NoiseBranch, Options, Prior, kl_student
from snncompress.noise.weights import kl_ard, kl_log_uniform


def make(name: str, alpha: str, prior: str = "log-uniform") -> tuple[Any, NoiseBranch]:
    layer, _ = make_layer(name)
    return layer, make_branch(layer, f"vd {alpha} {prior}")


@pytest.mark.parametrize("name", LAYERS)
def test_who_shares_alpha(name: str) -> None:
    for alpha in Alpha:
        layer, branch = make(name, alpha)
        shape = layer.weight.shape
        ones = (1,) * (len(shape) - 1)
        assert branch.log_alpha.shape == {"layer": (1, *ones), "neuron": (shape[0], *ones), "weight": shape}[alpha]
        mean, variance = branch.moments(layer)
        torch.testing.assert_close((variance / mean**2).log(), branch.log_alpha.expand(shape), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("alpha", Alpha)
def test_a_shared_alpha_leaves_the_second_moment_alone(alpha: str) -> None:
    layer, branch = make("groups", alpha)
    branch.reference.data = branch.log_alpha.data.clone()
    torch.testing.assert_close(branch.moments(layer)[0], layer.weight)  # the weight is the mean at α₀
    before = torch.stack(branch.moments(layer)).detach()
    branch.log_alpha.data += 4 + torch.randn_like(branch.log_alpha)
    mean, variance = branch.moments(layer)
    if alpha == Alpha.WEIGHT:
        assert torch.equal(mean, layer.weight)
    else:
        torch.testing.assert_close(mean**2 + variance, before[0] ** 2 + before[1])
        assert not torch.allclose(mean, layer.weight, rtol=0.01)
    kl, moments = branch.kl(layer), torch.stack(branch.moments(layer))
    for _ in range(2):  # settled once or twice, the distribution is the same and its mean is the layer's weight
        branch.settle(layer)
        assert torch.equal(branch.moments(layer)[0], layer.weight)
        torch.testing.assert_close(torch.stack(branch.moments(layer)), moments)
        torch.testing.assert_close(branch.kl(layer), kl)


@pytest.mark.parametrize("prior", Prior)
@pytest.mark.parametrize("name", ["linear", "groups"])
def test_the_kl_counts_every_weight(name: str, prior: str) -> None:
    found = []
    for alpha in Alpha:
        torch.manual_seed(0)
        layer, branch = make(name, alpha, prior)
        for parameter in branch.parameters():
            parameter.data.fill_(-1.5)
        torch.manual_seed(1)
        found.append(float(branch.kl(layer).detach()))
    assert found == pytest.approx([found[0]] * 3, rel=1e-12)
    if prior == Prior.STUDENT:
        torch.manual_seed(1)
        one = kl_student(layer.weight, torch.full_like(layer.weight, -1.5))
        assert found[0] == pytest.approx(float(one.detach().sum()), rel=1e-12)
    else:
        one = {Prior.ARD: kl_ard, Prior.LOG_UNIFORM: kl_log_uniform}[Prior(prior)](torch.tensor(-1.5).double())
        assert found[0] == pytest.approx(float(one) * layer.weight.numel(), rel=1e-12)


def draws(mu: Tensor, log_alpha: Tensor, nu: float) -> tuple[Tensor, Tensor]:
    """The KL of one sample of each weight, and that sample's ε."""
    torch.manual_seed(5)
    kl = kl_student(mu, log_alpha, nu)
    torch.manual_seed(5)
    return kl, torch.randn_like(mu)


@pytest.mark.parametrize("nu", [0.5, 1.0, 4.0])
def test_student_is_the_kl_to_a_t_distribution(nu: float) -> None:
    """For every draw: log q(w) averaged − log p(w), apart from a constant."""
    mu, log_alpha = torch.randn(300).double(), torch.empty(300).double().uniform_(-6, 6)
    kl, noise = draws(mu, log_alpha, nu)
    deviation = (0.5 * log_alpha).exp() * mu.abs()
    entropy = 0.5 * math.log(2 * math.pi * math.e) + deviation.log()
    w = mu * (1 + (0.5 * log_alpha).exp() * noise)
    prior = StudentT(torch.tensor(nu).double()).log_prob(w)
    constant = kl - (-entropy - prior)
    assert float(constant.max() - constant.min()) < 1e-10


def test_student_becomes_log_uniform() -> None:
    mu, log_alpha = torch.randn(4000).double(), torch.empty(4000).double().uniform_(-8, 8)
    differences = []
    for nu in (1e-2, 1e-4, 1e-8, 1e-16):
        kl, noise = draws(mu, log_alpha, nu)
        limit = FAR - 0.5 * log_alpha + (1 + (0.5 * log_alpha).exp() * noise).abs().log()  # of Eq. 8, the same draws
        differences.append(float((kl - limit).abs().mean()))
    assert differences == sorted(differences, reverse=True)
    assert differences[-1] < 1e-9


def test_students_average_is_the_log_uniform_kl() -> None:
    log_alpha = torch.tensor([-6.0, -2.0, 0.0, 2.0, 6.0], dtype=torch.float64)
    samples = kl_student(torch.randn(5, 40_000).double(), log_alpha[:, None])
    errors = (samples.mean(1) - kl_exact(log_alpha)) / samples.std(1) * 200
    assert float(errors.abs().max()) < 5


def test_an_infinite_alpha_costs_nothing() -> None:
    for prior in Prior:
        layer, branch = make("conv", "weight", prior)
        branch.log_alpha.data.fill_(math.inf)  # as far as it goes
        count = layer.weight.numel()
        mean = torch.stack([branch.kl(layer).detach() for _ in range(100)]).mean() / count
        # log|ε| has a standard deviation of π/√8.
        error = 5 * math.pi / math.sqrt(8 * 100 * count) if prior is Prior.STUDENT else 1e-6
        assert abs(float(mean)) < error


@pytest.mark.parametrize("prior", Prior)
def test_a_weight_that_is_zero_is_no_trouble(prior: Prior) -> None:
    layer = torch.nn.Linear(3, 4)
    torch.nn.init.zeros_(layer.weight)
    branch = NoiseBranch(layer, Options(alpha=Alpha.WEIGHT, prior=prior), normed=False)
    (branch.sample(layer, torch.randn(2, 3)).sum() + branch.kl(layer)).backward()
    for tensor in (layer.weight.grad, branch.log_alpha.grad, branch.kl(layer)):
        assert tensor is not None
        assert bool(torch.isfinite(tensor).all())


@torch.no_grad()
@pytest.mark.parametrize("alpha", Alpha)
def test_hollow_is_where_the_noise_outgrows_the_mean(alpha: str) -> None:
    layer, branch = make("conv", alpha)
    limit = math.log(HOLLOW * layer.weight[0].numel())
    for log_alpha, hollow in ((-5.0, False), (limit - 0.01, False), (limit + 0.01, True), (100.0, True)):
        branch.log_alpha.data.fill_(log_alpha)
        assert branch.hollow(layer) is hollow
    if alpha == Alpha.WEIGHT:  # one weight that is all noise does not make the layer hollow
        branch.log_alpha.data.fill_(-5.0)
        branch.log_alpha.data[0, 0, 0, 0] = limit + 1
        assert not branch.hollow(layer)


def test_log_alpha_stays_a_number() -> None:
    layer, branch = make("linear", "neuron")
    branch.log_alpha.data = torch.tensor([-1e4, -3.0, 0.0, 3.0, 1e4], dtype=torch.float64).view(5, 1)
    mean, variance = branch.moments(layer)
    torch.testing.assert_close(variance, branch.log_alpha.clamp(-LIMIT, LIMIT).exp() * mean.square())
    assert bool(torch.isfinite(variance).all())
    assert branch.summary(layer) == {"log_alpha_mean": 0.0, "log_alpha_min": -LIMIT, "log_alpha_max": LIMIT}
    for wrong in (21, -21, "nan"):
        with pytest.raises(UsageError, match=r"option log_alpha=.* is out of range"):
            make_options("vd", {"log_alpha": wrong})
