"""Statistics gathered again are those of the plain model on the data, whatever the noise and the batches."""

from __future__ import annotations

import copy

import pytest
import torch
from networks import IMAGE, Small, batches_of, randomize
from torch import Tensor, nn

from snncompress.models.layout import channels_last
from snncompress.noise.attach import attach
from snncompress.noise.branch import Mode
from snncompress.training.batchnorm import BATCHES, reestimate


def statistics(model: nn.Module) -> dict[str, Tensor]:
    return {name: buffer for name, buffer in model.named_buffers() if "running" in name}


def test_noise_leaves_no_trace() -> None:
    plain = randomize(Small()).double()
    noisy = copy.deepcopy(plain)
    noise = attach(noisy, "se-snn", IMAGE, {"log_sigma": 2})
    batches = batches_of(*torch.randn(30, *IMAGE).double().split(8))
    noisy.train()
    for inputs, _ in batches:
        noisy(inputs)
    wrong = copy.deepcopy(statistics(noisy))
    reestimate(plain, None, batches)
    reestimate(noisy, noise, batches)
    for name, value in statistics(noisy).items():
        torch.testing.assert_close(value, statistics(plain)[name], rtol=1e-12, atol=1e-12)
    assert not torch.allclose(wrong["norm2.running_var"], statistics(plain)["norm2.running_var"], rtol=0.5)
    assert all(branch.mode is Mode.SAMPLE for branch in noise.branches.values())
    assert all(norm.momentum == 0.1 for norm in (noisy.norm1, noisy.norm2))
    assert not any(module.training for module in noisy.modules())


STRONG = {  # noise that a batch norm cannot overlook, around a mean
    "se-snn": {"log_sigma": 2},
    "sparse-vd": {"log_sigma2": -4},  # some weights are over the threshold
    "vd": {"log_alpha": 2},
    "dropout": {"rate": 0.6},
}


@pytest.mark.parametrize("method", STRONG)
def test_statistics_are_those_of_the_plain_model(method: str) -> None:
    noisy = randomize(Small()).double()
    noise = attach(noisy, method, IMAGE, STRONG[method])
    assert not noise.find_hollow()
    batches = batches_of(*torch.randn(30, *IMAGE).double().split(8))
    noisy.train()
    for inputs, _ in batches:
        noisy(inputs)
    reestimate(noisy, noise, batches)
    noise.settle()
    plain = copy.deepcopy(noisy)
    for name in [*noise.branches, *noise.norms.values()]:
        plain.get_submodule(name).__dict__.pop("forward")  # a copy of an attached layer runs the original's noise
    noise.detach()
    reestimate(plain, None, batches)
    for name, value in statistics(noisy).items():
        torch.testing.assert_close(value, statistics(plain)[name], rtol=1e-12, atol=1e-12)
    for inputs, _ in batches:
        assert torch.equal(noisy(inputs), plain(inputs))


@pytest.mark.parametrize(("method", "options"), [("variance", {}), ("variance", {"noise": "bernoulli"}), ("vd", {})])
def test_hollow_layers_are_seen_under_noise(method: str, options: dict[str, str]) -> None:
    model = randomize(Small()).double()
    noise = attach(model, method, IMAGE, options, layers=["conv1"])
    if method == "vd":
        noise.branches["conv1"].log_alpha.data.fill_(8.0)  # type: ignore[union-attr, operator]
    assert noise.find_hollow() == ["conv1"]
    batches = batches_of(*torch.randn(30, *IMAGE).double().split(10))
    torch.manual_seed(7)
    reestimate(model, noise, batches)
    torch.manual_seed(7)
    with torch.no_grad():
        made = torch.stack([model.conv1(channels_last(inputs)) for inputs, _ in batches])  # nothing else draws
    torch.testing.assert_close(model.norm1.running_mean, made.mean((0, 1, 3, 4)), rtol=1e-12, atol=1e-12)
    variances = torch.stack([part.var((0, 2, 3)) for part in made]).mean(0)
    torch.testing.assert_close(model.norm1.running_var, variances, rtol=1e-12, atol=1e-12)
    with noise.mode(Mode.MEAN), torch.no_grad():
        quiet = model.conv1(torch.randn(30, *IMAGE).double()).var((0, 2, 3))
    assert bool((model.norm1.running_var > 10 * quiet).all())  # type: ignore[operator]
    assert all(branch.mode is Mode.SAMPLE for branch in noise.branches.values())


@pytest.mark.parametrize("sizes", [[30], [10, 20], [14, 14, 2]])
def test_statistics_by_hand(sizes: list[int]) -> None:
    model = randomize(Small()).double()
    images = torch.randn(30, *IMAGE).double()
    reestimate(model, None, batches_of(*images.split(sizes)))
    made = model.conv1(images)
    torch.testing.assert_close(model.norm1.running_mean, made.mean((0, 2, 3)).detach(), rtol=1e-12, atol=1e-12)
    weighted = sum(len(part) / 30 * part.var((0, 2, 3)) for part in made.split(sizes))
    torch.testing.assert_close(model.norm1.running_var, weighted.detach(), rtol=1e-12, atol=1e-12)  # type: ignore[union-attr]


def test_one_batch_makes_evaluation_equal_to_training() -> None:
    model, images = randomize(Small()).double(), torch.randn(500, *IMAGE).double()
    reestimate(model, None, batches_of(images))
    evaluated = model(images)
    trained = copy.deepcopy(model).train()(images)
    # Alike but for the running variance, which is divided by n − 1.
    torch.testing.assert_close(evaluated, trained, rtol=1e-3, atol=1e-3)


def test_only_some_batches_are_needed() -> None:
    model = randomize(Small())
    first = [torch.randn(2, *IMAGE) for _ in range(BATCHES)]
    other = copy.deepcopy(model)
    reestimate(model, None, batches_of(*first))
    reestimate(other, None, batches_of(*first, torch.full((2, *IMAGE), 1e3)))
    assert all(torch.equal(value, statistics(other)[name]) for name, value in statistics(model).items())


def test_single_samples_are_left_out() -> None:
    model = randomize(Small())
    images = torch.randn(9, *IMAGE)
    other = copy.deepcopy(model)
    reestimate(model, None, batches_of(images[:8], images[8:]))
    reestimate(other, None, batches_of(images[:8]))
    assert all(torch.equal(value, statistics(other)[name]) for name, value in statistics(model).items())
    before = copy.deepcopy(statistics(model))
    reestimate(model, None, batches_of(images[:1], images[1:2]))  # nothing to gather from: the old ones stay
    assert all(torch.equal(value, before[name]) for name, value in statistics(model).items())


def test_norms_that_gather_nothing_are_left_alone() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, track_running_stats=False), nn.Flatten()).train()
    reestimate(model, None, batches_of(torch.randn(4, *IMAGE)))
    assert model.training  # no work: not even the mode is touched
    assert model[1].running_mean is None
