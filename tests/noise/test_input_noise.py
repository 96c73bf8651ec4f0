"""SE-SNN on what a layer reads: z = h + ε·softplus(f_σ(h)), against its equations, and on its way through the tool."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from networks import IMAGE, Small, randomize
from noisy_layers import LAYERS, assert_moments, make_layer
from torch import Tensor, nn

from snncompress.models.channels import trace_channels
from snncompress.noise.attach import attach
from snncompress.noise.branch import Mode
from snncompress.noise.se_snn import Aggregate, InputBranch, Options, Place
from snncompress.pruning.compaction import compact
from snncompress.pruning.coupling import find_groups
from snncompress.pruning.scoring import pick_criterion

OPTIONS = {"place": "input", "aggregate": "sample"}


def make(name: str) -> tuple[Any, InputBranch, Tensor]:
    layer, x = make_layer(name)
    branch = InputBranch(layer, Options(Aggregate.SAMPLE, Place.INPUT), normed=False)
    nn.init.normal_(branch.weight, std=0.2)
    nn.init.normal_(branch.bias, mean=-1, std=0.5)
    return layer, branch, x


def sigma_of(layer: Any, branch: InputBranch, x: Tensor) -> Tensor:
    """softplus of a linear map of the channels, written out."""
    channels = -3 if isinstance(layer, nn.Conv2d) else -1
    raw = x.movedim(channels, -1) @ branch.weight.T + branch.bias
    return F.softplus(raw).movedim(-1, channels).detach()


@pytest.mark.parametrize("name", LAYERS)
def test_the_penalty_is_equation_6_of_what_is_read(name: str) -> None:
    layer, branch, x = make(name)
    means = sigma_of(layer, branch, x).log().flatten(1).mean(1)
    margin = float(means.mean())
    branch.options = Options(Aggregate.SAMPLE, Place.INPUT, margin=margin)
    branch.sample(layer, x)
    expected = branch.options.omega * float((margin - means).clamp_min(0).mean())
    assert float(branch.penalty(layer).detach()) == pytest.approx(expected, rel=1e-9)
    torch.testing.assert_close(branch.sigma(layer, x).detach(), sigma_of(layer, branch, x), rtol=1e-9, atol=1e-12)


@torch.no_grad()
def test_samples_have_the_moments_of_a_linear_map_of_z() -> None:
    layer, branch, x = make("linear")
    samples = torch.stack([branch.sample(layer, x) for _ in range(4000)])
    variance = sigma_of(layer, branch, x).square() @ layer.weight.T.square()
    assert_moments(samples, layer(x), variance)


@torch.no_grad()
def test_a_convolution_reads_one_sample_of_every_value() -> None:
    layer, branch, x = make("groups")
    torch.manual_seed(1)
    sample = branch.sample(layer, x)
    torch.manual_seed(1)
    noise = torch.randn_like(x)
    torch.testing.assert_close(sample, layer(x + noise * sigma_of(layer, branch, x)), rtol=1e-9, atol=1e-9)


def test_it_stands_before_the_classifier_and_leaves_the_network_as_it_was() -> None:
    plain = randomize(Small())
    model, x = copy.deepcopy(plain), torch.randn(5, *IMAGE)
    noise = attach(model, "se-snn", IMAGE, OPTIONS)
    assert list(noise.branches) == ["fc2"]
    assert list(attach(copy.deepcopy(plain), "se-snn", IMAGE, OPTIONS, ["fc2"]).branches) == ["fc2"]
    assert list(attach(copy.deepcopy(plain), "se-snn", IMAGE, OPTIONS, ["classifier"]).branches) == ["fc2"]
    assert not torch.equal(model(x), plain(x))
    with noise.mode(Mode.MEAN):
        assert torch.equal(model(x), plain(x))
    noise.settle()
    noise.detach()
    assert torch.equal(model(x), plain(x))
    assert model.state_dict().keys() == plain.state_dict().keys()


def test_it_says_nothing_about_the_neurons_that_its_layer_makes() -> None:
    """So pruning ranks by something else, and not by numbers about other neurons."""
    model = Small()
    noise = attach(model, "se-snn", IMAGE, OPTIONS, ["all"])
    assert pick_criterion("auto", noise, None, find_groups(trace_channels(Small(), IMAGE))) == "taylor"


@pytest.mark.parametrize("groups", [1, 2])
def test_it_shrinks_with_what_its_layer_reads(groups: int) -> None:
    """f_σ loses rows and columns of the inputs that are gone, in groups too; σ of the others loses their share only."""
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 4, 3, groups=groups), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)
    )
    noise = attach(model, "se-snn", IMAGE, OPTIONS, ["2"])
    branch = noise.branches["2"]
    assert isinstance(branch, InputBranch)
    nn.init.normal_(branch.weight)
    before = branch.weight.detach().clone()
    noise.detach()
    gone = find_groups(trace_channels(model, IMAGE))[0]
    lost = sorted({channel for name, channel in gone.outputs if name == "0"})
    kept = [channel for channel in range(6) if channel not in lost]
    smaller, _ = compact(model, [gone], noise)
    assert torch.equal(branch.weight, before[kept][:, kept])
    noise.attach(smaller)
    images = torch.randn(2, *IMAGE)
    assert bool(torch.isfinite(smaller(images)).all())
    assert math.isfinite(float(noise.penalty().detach()))
