"""Sparse variational dropout: its mask, its limits, and that it finds what carries nothing."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from networks import IMAGE, Small
from noisy_layers import LAYERS, make_layer
from torch import nn

from snncompress.errors import UsageError
from snncompress.noise.attach import attach, make_options
from snncompress.noise.branch import Clock
from snncompress.noise.sparse_vd import LIMIT, NoiseBranch, Options
from snncompress.noise.weights import FLOOR, kl_log_uniform


def make(name: str = "linear", **options: Any) -> tuple[Any, NoiseBranch]:
    """A layer in double precision, and noise with log α from −7 to 7."""
    layer, _ = make_layer(name)
    branch = NoiseBranch(layer, Options(**options), normed=False)
    log_alpha = torch.linspace(-7, 7, layer.weight.numel(), dtype=torch.float64)
    set_log_alpha(layer, branch, log_alpha[torch.randperm(len(log_alpha))].view_as(layer.weight))
    return layer, branch


def set_log_alpha(layer: Any, branch: NoiseBranch, log_alpha: torch.Tensor) -> None:
    branch.log_sigma2.data = log_alpha + (layer.weight.detach().square() + FLOOR).log()


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("threshold", [-2.1, 3.1, 6.5])
def test_weights_over_the_threshold_are_zero_in_the_mean(name: str, threshold: float) -> None:
    layer, branch = make(name, threshold=threshold)
    log_alpha = branch.log_sigma2 - (layer.weight.square() + FLOOR).log()
    mean, variance = branch.moments(layer)
    assert torch.equal(mean, torch.where(log_alpha > threshold, 0.0, layer.weight))
    assert 0 < int((mean == 0).sum()) < mean.numel()
    torch.testing.assert_close(variance, branch.log_sigma2.exp())  # their noise stays


def test_the_mask_ends_at_the_threshold() -> None:
    layer, branch = make()
    set_log_alpha(layer, branch, torch.full_like(layer.weight, 3 - 1e-9))
    assert torch.equal(branch.moments(layer)[0], layer.weight)
    assert not branch.hollow(layer)
    set_log_alpha(layer, branch, torch.full_like(layer.weight, 3 + 1e-9))
    assert not bool(branch.moments(layer)[0].any())
    assert branch.hollow(layer)


def test_settling_sets_them_to_zero_for_good() -> None:
    layer, branch = make("groups")
    x = torch.randn(2, 4, 9, 8, dtype=torch.float64)
    mean, kept = branch.moments(layer)[0].detach(), layer.weight.detach().clone()
    propagated = branch.mean(layer, x)
    branch.settle(layer)
    assert torch.equal(layer.weight, mean)
    assert torch.equal(type(layer).forward(layer, x), propagated)
    assert torch.equal(layer.weight[mean != 0], kept[mean != 0])
    for _ in range(2):  # what is zero stays masked: settling again changes nothing
        assert torch.equal(branch.moments(layer)[0], mean)
        branch.settle(layer)
        assert torch.equal(layer.weight, mean)
    share = float((mean == 0).double().mean())
    assert branch.summary(layer)["sparsity"] == pytest.approx(share)


def test_log_alpha_is_clipped() -> None:
    layer, branch = make()
    branch.log_sigma2.data = torch.linspace(-40, 40, 35, dtype=torch.float64).view(5, 7)
    raw = (branch.log_sigma2 - (layer.weight.square() + FLOOR).log()).detach()
    log_alpha = branch.log_alpha(layer)
    torch.testing.assert_close(log_alpha, raw.clamp(-8, 8))
    assert LIMIT == 8
    torch.testing.assert_close(branch.kl(layer), kl_log_uniform(raw.clamp(-8, 8)).sum())
    branch.kl(layer).backward()
    assert branch.log_sigma2.grad is not None
    assert torch.equal(branch.log_sigma2.grad == 0, raw.abs() > 8)  # beyond the limits it pulls no more
    assert bool((branch.log_sigma2.grad <= 0).all())  # and within them it raises the noise
    assert bool((layer.weight.grad * layer.weight >= 0).all())  # and lowers the weights


def test_masked_weights_learn_from_the_kl_alone() -> None:
    layer, branch = make()
    branch.sample(layer, torch.randn(3, 7, dtype=torch.float64)).square().sum().backward()
    masked = branch.moments(layer)[0] == 0
    assert torch.equal(layer.weight.grad == 0, masked)
    assert branch.log_sigma2.grad is not None
    assert bool((branch.log_sigma2.grad != 0).all())


def test_penalty_of_a_network_is_that_of_equation() -> None:
    noise = attach(model := Small().double(), "sparse-vd", IMAGE, {"kl_scale": 0.5, "kl_warmup": "0:4"})
    noise.tell(Clock(1.0, 60))
    assert list(noise.branches) == ["conv1", "conv2", "fc1", "fc2"]
    kl = 0.0
    for name in noise.branches:
        for w in model.get_parameter(f"{name}.weight").flatten().tolist():
            log_alpha = max(-8.0, min(8.0, -10 - math.log(w**2 + 1e-8)))
            sigmoid = 1 / (1 + math.exp(-(1.87320 + 1.48695 * log_alpha)))
            kl += 0.63576 * (1 - sigmoid) + 0.5 * math.log1p(math.exp(-log_alpha))
    assert noise.kl() == pytest.approx(kl, rel=1e-9)
    assert float(noise.penalty().detach()) == pytest.approx(0.5 * 0.25 * kl / 60, rel=1e-9)


def test_inputs_that_say_nothing_lose_their_weights() -> None:
    layer = nn.Linear(20, 2)
    branch = NoiseBranch(layer, Options(), normed=False)
    branch.clock = Clock(0, 500)
    groups = [{"params": layer.parameters(), "lr": 0.02}, {"params": branch.parameters(), "lr": 0.1}]
    optimizer = torch.optim.Adam(groups)
    x = torch.randn(500, 20)
    targets = ((x[:, 0] - 2 * x[:, 1] + x[:, 2]) > 0).long()
    for _ in range(400):
        optimizer.zero_grad()
        (F.cross_entropy(branch.sample(layer, x), targets) + branch.penalty(layer)).backward()
        optimizer.step()
    branch.settle(layer)
    assert bool((layer.weight[:, :3] != 0).any(0).all())
    assert float((layer.weight[:, 3:] == 0).float().mean()) > 0.9
    assert float((layer(x).argmax(1) == targets).float().mean()) > 0.95


@pytest.mark.parametrize("options", [{"threshold": 9}, {"threshold": "nan"}, {"log_sigma2": 6}, {"log_sigma2": "-inf"}])
def test_values_out_of_range(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"option {next(iter(options))}=.* is out of range"):
        make_options("sparse-vd", options)
