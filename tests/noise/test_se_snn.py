"""SE-SNN against its equations, computed by hand in double precision."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from networks import IMAGE, Small, batches_of, randomize
from noisy_layers import LAYERS, make_layer
from torch import Tensor, nn

from snncompress.noise.attach import Noise, attach
from snncompress.noise.branch import Branch, Mode
from snncompress.noise.se_snn import Aggregate, NoiseBranch, Options
from snncompress.training.epoch_end import observe


def make(name: str, normed: bool = False) -> tuple[Any, NoiseBranch, Tensor]:
    """A layer, a branch whose σ depends on the input, and an input, in double precision."""
    layer, x = make_layer(name)
    branch = NoiseBranch(layer, Options(), normed=normed)
    nn.init.normal_(branch.weight, std=0.2)
    nn.init.normal_(branch.bias, mean=-1, std=0.5)
    return layer, branch, x


def sigma_layer(layer: Any, branch: NoiseBranch) -> nn.Module:
    """f_σ as a layer of its own, without its softplus."""
    arguments = {"bias": True, "dtype": torch.float64}
    if isinstance(layer, nn.Linear):
        twin: nn.Module = nn.Linear(layer.in_features, layer.out_features, **arguments)  # type: ignore[arg-type]
    else:
        same = ("stride", "padding", "dilation", "groups", "padding_mode")
        arguments |= {key: getattr(layer, key) for key in same}
        twin = nn.Conv2d(layer.in_channels, layer.out_channels, layer.kernel_size, **arguments)
    twin.load_state_dict({"weight": branch.weight, "bias": branch.bias})
    return twin


def table(layer: Any, values: Tensor) -> Tensor:
    """(neurons, samples and positions) of a layer's outputs."""
    last = values.permute(0, 2, 3, 1) if isinstance(layer, nn.Conv2d) else values
    return last.reshape(-1, last.shape[-1]).T


@pytest.mark.parametrize("name", LAYERS)
def test_mean_and_sigma_by_one_product(name: str) -> None:
    layer, branch, x = make(name)
    mean, raw = branch._mean_and_raw(layer, x)
    torch.testing.assert_close(mean, layer(x), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(raw, sigma_layer(layer, branch)(x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("aggregate", Aggregate)
@pytest.mark.parametrize("name", LAYERS)
def test_penalty_is_equation_5_6_or_7(name: str, aggregate: Aggregate) -> None:
    layer, branch, x = make(name)
    log_sigma = F.softplus(sigma_layer(layer, branch)(x)).log().detach()
    if isinstance(layer, nn.Conv2d):
        log_sigma = log_sigma.permute(0, 2, 3, 1)
    table = log_sigma.reshape(len(x), -1, log_sigma.shape[-1])  # samples, positions, neurons
    parts = {
        Aggregate.NEURON: [table[:, :, j] for j in range(table.shape[2])],
        Aggregate.SAMPLE: list(table),
        Aggregate.BOTH: list(table.flatten()),
    }[aggregate]
    means = [math.fsum(part.flatten().tolist()) / part.numel() for part in parts]
    margin = (min(means) + max(means)) / 2  # some are above it, and single values of those below
    omega = math.fsum(max(0.0, margin - mean) for mean in means) / len(means)
    branch.options = Options(aggregate, margin=margin)
    branch.sample(layer, x)
    assert float(branch.penalty(layer).detach()) == pytest.approx(branch.options.omega * omega, rel=1e-11)
    assert float(branch.penalty(layer)) == 0  # nothing since the last call


def test_aggregates_are_ordered() -> None:
    """(·)⁺ is convex: the less is averaged before it, the more is paid."""
    layer, branch, x = make("conv")
    paid = {}
    for aggregate in Aggregate:
        branch.options = Options(aggregate, margin=-1.2)
        branch.sample(layer, x)
        paid[aggregate] = float(branch.penalty(layer).detach())
    assert paid[Aggregate.BOTH] > max(paid[Aggregate.NEURON], paid[Aggregate.SAMPLE])
    assert paid[Aggregate.NEURON] != pytest.approx(paid[Aggregate.SAMPLE])


def test_margin_is_set_on_each_neuron_and_costs_nothing_above_it() -> None:
    layer = nn.Linear(2, 2)
    branch = NoiseBranch(layer, Options(omega=1, margin=0.5), normed=False)
    branch.bias.data = torch.tensor([-1.0, 9.0])  # the second is far above the margin
    branch.sample(layer, torch.randn(4, 2))
    below = 0.5 - math.log(math.log1p(math.exp(-1.0)))
    penalty = branch.penalty(layer)
    assert float(penalty.detach()) == pytest.approx(below / 2, rel=1e-6)
    penalty.backward()
    assert branch.bias.grad is not None
    assert branch.bias.grad[0] < 0  # more entropy for the first
    assert branch.bias.grad[1] == 0


@pytest.mark.parametrize("name", ["linear", "groups", "stride, padding"])
def test_samples_have_the_mean_and_deviation_of_equation_1(name: str) -> None:
    layer, branch, x = make(name)
    count = 4000
    with torch.no_grad():
        samples = torch.stack([branch.sample(layer, x) for _ in range(count)])
        mean, sigma = layer(x), F.softplus(sigma_layer(layer, branch)(x))
    # The mean of n samples deviates by σ/√n, their standard deviation by σ/√(2n); with the largest of some
    # hundreds of elements within 5 standard errors but once in thousands of seeds.
    assert float(((samples.mean(0) - mean) / sigma).abs().max()) < 5 / math.sqrt(count)
    assert float((samples.std(0) / sigma - 1).abs().max()) < 5 / math.sqrt(2 * count)
    errors = (samples - mean) / sigma
    correlation = (errors[:, 0].flatten(1)[:, 0] * errors[:, 1].flatten(1)[:, 0]).mean()
    assert abs(float(correlation)) < 5 / math.sqrt(count)  # noise is drawn for each sample anew


def test_noise_enters_after_the_norm_that_follows() -> None:
    model = randomize(Small()).double()
    noise = attach(model, "se-snn", IMAGE, layers=["conv1"])
    seen = {}
    for name in ("conv1", "norm1"):
        model.get_submodule(name).register_forward_hook(lambda m, a, out, name=name: seen.update({name: out}))
    x = torch.randn(2, *IMAGE, dtype=torch.float64)
    with torch.no_grad():
        model(x)
        noisy = dict(seen)
        with noise.mode(Mode.MEAN):
            model(x)
    assert torch.allclose(noisy["conv1"], seen["conv1"], atol=1e-14)  # the mean alone
    added = noisy["norm1"] - seen["norm1"]
    sigma = math.exp(Options().log_sigma)  # at the start σ is the same everywhere
    assert float(added.std()) == pytest.approx(sigma, rel=5 / math.sqrt(2 * added.numel()))


def test_the_norm_that_follows_gathers_statistics_of_the_mean() -> None:
    plain = randomize(Small()).double().train()
    model = copy.deepcopy(plain)
    attach(model, "se-snn", IMAGE, {"log_sigma": 2}, layers=["conv1"])
    x = torch.randn(8, *IMAGE, dtype=torch.float64)
    plain(x), model(x)
    buffers, expected = dict(model.named_buffers()), dict(plain.named_buffers())
    torch.testing.assert_close(buffers["norm1.running_var"], expected["norm1.running_var"], rtol=1e-12, atol=1e-12)
    assert not torch.allclose(buffers["norm2.running_var"], expected["norm2.running_var"], rtol=0.1)


def test_noise_without_a_norm_enters_at_the_layer() -> None:
    layer, branch, x = make("conv", normed=False)
    sigma = F.softplus(sigma_layer(layer, branch)(x))
    torch.manual_seed(0)
    sample = branch.sample(layer, x)
    torch.manual_seed(0)
    torch.testing.assert_close(sample, layer(x) + torch.randn_like(sigma) * sigma, rtol=1e-12, atol=1e-12)
    assert torch.equal(branch.after_norm(sample), sample)


def test_log_sigma_starts_where_it_is_told() -> None:
    layer = nn.Linear(3, 4)
    for start in (-8.0, -3.0, 1.5):
        branch = NoiseBranch(layer, Options(log_sigma=start), normed=False)
        branch.observe(layer, torch.randn(5, 3))
        torch.testing.assert_close(branch.mean_log_sigma(), torch.full((4,), start).double(), rtol=1e-5, atol=1e-5)


def observed() -> tuple[nn.Module, Noise, Tensor]:
    """A network in double precision, its noise with random parameters, and images."""
    model = randomize(Small()).double()
    noise = attach(model, "se-snn", IMAGE)
    for _, parameter in noise.named_parameters():
        nn.init.normal_(parameter, std=0.3)
    images = torch.randn(24, *IMAGE, dtype=torch.float64)
    return model, noise, images


@pytest.mark.parametrize("sizes", [[24], [12, 12], [5, 7, 11, 1]])
def test_statistics_do_not_depend_on_the_batch_size(sizes: list[int]) -> None:
    torch.manual_seed(0)
    model, noise, images = observed()
    inputs: dict[str, Tensor] = {}
    for name in noise.branches:
        model.get_submodule(name).register_forward_pre_hook(lambda m, a, name=name: inputs.update({name: a[0]}))
    with noise.mode(Mode.MEAN), torch.no_grad():
        model(images)
    direct = {}
    for name, branch in noise.branches.items():
        layer: Any = model.get_submodule(name)
        assert isinstance(branch, NoiseBranch)
        direct[name] = table(layer, F.softplus(sigma_layer(layer, branch)(inputs[name])).log()).mean(1).detach()
    for _ in range(2):  # what was observed before is forgotten
        observe(model, noise, batches_of(*images.split(sizes)))
    for name, branch in noise.branches.items():
        assert isinstance(branch, NoiseBranch)
        torch.testing.assert_close(branch.mean_log_sigma(), direct[name], rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(branch.importance(), (4 - direct[name]).clamp_min(0), rtol=1e-10, atol=1e-10)
        low, middle, high = direct[name].quantile(torch.tensor([0.25, 0.5, 0.75]).double()).tolist()
        expected = {"log_sigma_25": low, "log_sigma_50": middle, "log_sigma_75": high}
        assert branch.summary(layer) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("sizes", [[24], [12, 12], [5, 7, 11, 1]])
def test_information_is_what_gets_through_the_noise(sizes: list[int]) -> None:
    """½·log(1 + Var μ / E σ²); μ is taken after the batch norm that follows (conv1), or at the layer (conv2, fc1)."""
    model, noise, images = observed()
    inputs: dict[str, Tensor] = {}
    means: dict[str, Tensor] = {}
    places = {"conv1": "norm1", "conv2": "conv2", "fc1": "fc1"}
    assert places.keys() == noise.branches.keys()
    for name, place in places.items():
        model.get_submodule(name).register_forward_pre_hook(lambda m, a, name=name: inputs.update({name: a[0]}))
        model.get_submodule(place).register_forward_hook(lambda m, a, out, name=name: means.update({name: out}))
    with noise.mode(Mode.MEAN), torch.no_grad():
        model(images)
    direct = {}
    for name, branch in noise.branches.items():
        layer: Any = model.get_submodule(name)
        assert isinstance(branch, NoiseBranch)
        sigma = table(layer, F.softplus(sigma_layer(layer, branch)(inputs[name])).detach())
        mu = table(layer, means[name])
        direct[name] = 0.5 * torch.log(1 + mu.var(1, correction=0) / sigma.square().mean(1))
    for _ in range(2):  # what was observed before is forgotten
        observe(model, noise, batches_of(*images.split(sizes)))
    for name, branch in noise.branches.items():
        assert isinstance(branch, NoiseBranch)
        torch.testing.assert_close(branch.information(), direct[name], rtol=1e-9, atol=1e-12)


def test_a_constant_neuron_carries_no_information_and_scale_does_not_matter() -> None:
    layer, branch, x = make("linear")
    layer.weight.data[1] = 0

    def information() -> Tensor:
        branch.forget()
        branch.observe(layer, x)
        branch.observe_mean(layer(x).detach())
        return branch.information()

    branch.weight.data.zero_()
    found = information()
    assert float(found[1].detach()) == pytest.approx(0, abs=1e-12)
    assert bool((found[[0, 2, 3, 4]] > 0).all())
    layer.weight.data *= 3
    layer.bias.data *= 3
    branch.bias.data = torch.log(torch.expm1(3 * F.softplus(branch.bias.data)))  # σ three times as large, too
    torch.testing.assert_close(information(), found, rtol=1e-9, atol=1e-12)


def test_importance_is_zero_above_the_margin_and_falls_with_the_noise() -> None:
    layer = nn.Linear(2, 3)
    branch = NoiseBranch(layer, Options(margin=1), normed=False)
    branch.bias.data = torch.tensor([-5.0, 0.0, 50.0])
    branch.observe(layer, torch.randn(4, 2))
    first, second, third = branch.importance().tolist()
    assert first > second > third == 0
    branch.forget()
    assert branch.summary(layer) == {}


def test_sigma_never_vanishes() -> None:
    layer = nn.Linear(2, 1)
    branch = NoiseBranch(layer, Options(), normed=False)
    branch.bias.data.fill_(-1000.0)
    assert bool(torch.isfinite(branch.sample(layer, torch.zeros(3, 2))).all())
    penalty = branch.penalty(layer)
    penalty.backward()
    assert bool(torch.isfinite(penalty))
    assert branch.bias.grad is not None
    assert bool(torch.isfinite(branch.bias.grad).all())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_precision(dtype: torch.dtype) -> None:
    layer: Any = nn.Linear(3, 4).to(dtype)
    branch: Branch = NoiseBranch(layer, Options(), normed=False)
    assert branch.sample(layer, torch.zeros(2, 3, dtype=dtype)).dtype == dtype
    assert branch.penalty(layer).dtype == torch.promote_types(dtype, torch.float32)  # log σ is never halved


def test_autocast_keeps_log_sigma_in_single_precision() -> None:
    model = randomize(Small())
    noise = attach(model, "se-snn", IMAGE)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model(torch.randn(4, *IMAGE))
    penalty = noise.penalty()
    assert penalty.dtype == torch.float32
    assert float(penalty.detach()) == pytest.approx(0.01 * 3 * (4 + 3), rel=1e-2)  # ω·Σ(b − log σ), three layers


def test_layers_called_more_than_once_pay_for_each_call() -> None:
    layer, branch, x = make("linear")
    apart = []
    for part in (x, 2 * x):
        branch.sample(layer, part)
        apart.append(branch.penalty(layer))
    branch.sample(layer, x), branch.sample(layer, 2 * x)
    torch.testing.assert_close(branch.penalty(layer), sum(apart))
