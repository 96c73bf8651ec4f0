"""Variance layers: three distributions of the weights, one mean and variance of every image's output."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from networks import IMAGE, Small
from noisy_layers import LAYERS, assert_moments, make_branch, make_layer, output_moments
from torch import Tensor, nn

from snncompress.errors import UsageError
from snncompress.noise.attach import attach, make_options
from snncompress.noise.branch import Mode
from snncompress.noise.variance import Distribution, NoiseBranch, Options, signs

FLIPPED = [Distribution.BERNOULLI, Distribution.UNIFORM]


def make(name: str, noise: str, images: int = 2) -> tuple[Any, NoiseBranch, Tensor]:
    layer, x = make_layer(name, images)
    return layer, make_branch(layer, f"variance {noise}"), x


@pytest.mark.parametrize("noise", Distribution)
@pytest.mark.parametrize("name", LAYERS)
def test_every_image_has_the_moments_of_the_weights(name: str, noise: str) -> None:
    layer, branch, x = make(name, noise)
    sigma = branch.log_sigma.detach().exp()
    mean, variance = output_moments(layer, x, torch.zeros_like(sigma), sigma**2 / (3 if noise == "uniform" else 1))
    with torch.no_grad():
        assert_moments(torch.stack([branch.sample(layer, x) for _ in range(500)]), mean, variance + 1e-8)
        torch.testing.assert_close(branch.mean(layer, x), mean)
    torch.testing.assert_close(branch.moments(layer)[1] * (3 if noise == "uniform" else 1), sigma**2)


@pytest.mark.parametrize("noise", FLIPPED)
@pytest.mark.parametrize("name", ["linear", "linear on tokens", "depthwise", "circular"])
def test_an_image_alone_gets_a_sample_of_the_weights(name: str, noise: Distribution) -> None:
    """Signs of inputs and outputs are those of a weight: what comes out is the layer with some |w| ≤ σ."""
    layer, branch, x = make(name, noise, images=1)
    state = torch.get_rng_state()
    sample = branch.sample(layer, x)
    torch.set_rng_state(state)
    sigma = branch.log_sigma.detach().exp()
    drawn = sigma * (signs(sigma) if noise == "bernoulli" else torch.rand_like(sigma) * 2 - 1)
    inputs = layer.weight.shape[1] * getattr(layer, "groups", 1)
    incoming = signs(x.new_zeros(inputs))
    outgoing = signs(x.new_zeros(len(sigma)))
    grouped = incoming.view(getattr(layer, "groups", 1), -1)  # each output reads the inputs of its group
    read = grouped.repeat_interleave(len(sigma) // len(grouped), 0)
    flips = (outgoing[:, None] * read).view(*read.shape, *[1] * (sigma.dim() - 2))
    layer.weight.data = drawn * flips
    torch.testing.assert_close(sample, type(layer).forward(layer, x))


@pytest.mark.parametrize("noise", FLIPPED)
@pytest.mark.parametrize("name", ["linear", "groups"])
def test_images_of_a_batch_have_uncorrelated_noise(name: str, noise: str) -> None:
    layer, branch, x = make(name, noise, images=1)
    x = x.expand(2, *x.shape[1:])  # the same image twice: with shared weights the noise would be the same
    with torch.no_grad():
        errors = torch.stack([branch.sample(layer, x) - branch.mean(layer, x) for _ in range(1000)]).flatten(2)
    one, other = errors[:, 0], errors[:, 1]
    correlation = (one * other).mean(0) / (one.square().mean(0) * other.square().mean(0)).sqrt()
    assert float(correlation.abs().max()) < 5 / math.sqrt(1000) * 1.5  # products have heavier tails


@pytest.mark.parametrize("noise", Distribution)
def test_the_layers_own_weight_is_not_used(noise: str) -> None:
    model = Small().double().eval()
    noisy = attach(model, "variance", IMAGE, {"noise": noise})
    assert list(noisy.branches) == ["fc1"]
    x = torch.randn(3, *IMAGE, dtype=torch.float64)
    for mode in Mode:
        with noisy.mode(mode):
            torch.manual_seed(0)
            before = model(x)
            with torch.no_grad():
                model.fc1.weight.add_(1.0)
            torch.manual_seed(0)
            assert torch.equal(model(x), before)
            with torch.no_grad():
                model.fc1.bias.add_(1.0)  # the bias is
            assert not torch.equal(model(x), before)
    torch.manual_seed(0)
    (model(x).square().sum() + noisy.penalty()).backward()
    assert model.fc1.weight.grad is None
    assert model.fc1.bias.grad is not None
    assert float(noisy.penalty()) == 0
    assert noisy.kl() == 0
    assert noisy.find_hollow() == ["fc1"]


def test_sigma_starts_as_the_size_of_the_weight() -> None:
    layer = nn.Linear(50, 40)
    branch = NoiseBranch(layer, Options(scale=2.0), normed=False)
    size, sigma = layer.weight.detach().abs(), branch.log_sigma.detach().exp()
    least = 0.1 * size.square().mean().sqrt()
    torch.testing.assert_close(sigma, 2 * size.maximum(least))
    assert branch.summary(layer)["log_sigma_min"] == pytest.approx(float((2 * least).log()), rel=1e-5)
    for scale in (0, -1, "nan", "inf"):
        with pytest.raises(UsageError, match=r"option scale=.* is out of range; give a number above 0"):
            make_options("variance", {"scale": scale})


@pytest.mark.parametrize("noise", Distribution)
def test_a_layer_of_zeros_can_learn(noise: Distribution) -> None:
    layer = nn.Conv2d(3, 4, 3)
    nn.init.zeros_(layer.weight)
    branch = NoiseBranch(layer, Options(noise), normed=False)
    branch.sample(layer, torch.randn(4, 3, 8, 8)).square().sum().backward()
    assert branch.log_sigma.grad is not None
    assert bool((branch.log_sigma.grad.abs() > 1e-3).all())


def test_signs_are_fair() -> None:
    drawn = signs(torch.empty(10_000))
    assert set(drawn.tolist()) == {-1.0, 1.0}
    assert abs(float(drawn.mean())) < 5 / 100
