"""The information bottleneck against its equation, computed by torch's own distributions in double precision."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from networks import IMAGE, Small, batches_of, randomize
from noisy_layers import LAYERS, make_layer
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence

from snncompress.errors import UsageError
from snncompress.noise import se_snn
from snncompress.noise.attach import attach, make_options
from snncompress.noise.branch import Mode, apply
from snncompress.noise.vib import NoiseBranch, Options
from snncompress.training.epoch_end import observe


def make(name: str) -> tuple[Any, NoiseBranch, Tensor]:
    """A layer, a branch whose σ depends on the input, and an input, in double precision."""
    layer, x = make_layer(name)
    branch = NoiseBranch(layer, Options(beta=0.3), normed=False)
    nn.init.normal_(branch.weight, std=0.2)
    nn.init.normal_(branch.bias, mean=-1, std=0.5)
    return layer, branch, x


def exact(layer: Any, branch: NoiseBranch, x: Tensor) -> Tensor:
    """KL of every value to N(0, 1)."""
    sigma = F.softplus(apply(layer, x, branch.weight, branch.bias))
    return kl_divergence(Normal(layer(x), sigma), Normal(0.0, 1.0))


@pytest.mark.parametrize("name", LAYERS)
def test_the_penalty_is_the_kl_of_a_sample(name: str) -> None:
    layer, branch, x = make(name)
    branch.sample(layer, x)
    torch.testing.assert_close(branch.penalty(layer), 0.3 * exact(layer, branch, x).flatten(1).sum(1).mean())
    assert float(branch.penalty(layer)) == 0  # nothing since the last call
    if name == "linear on tokens":  # without a batch, these look like one
        return
    branch.sample(layer, x[0])
    torch.testing.assert_close(branch.penalty(layer), 0.3 * exact(layer, branch, x)[0].sum())


def test_its_gradient_is_the_kls() -> None:
    layer, branch, x = make("linear")
    parameters = [layer.weight, layer.bias, branch.weight, branch.bias]
    branch.sample(layer, x)
    found = torch.autograd.grad(branch.penalty(layer), parameters)
    wanted = torch.autograd.grad(0.3 * exact(layer, branch, x).sum() / len(x), parameters)
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_behind_a_batch_norm_the_mean_is_the_norms_output() -> None:
    model, x = randomize(Small()).double().eval(), torch.randn(4, *IMAGE).double()
    noise = attach(model, "vib", IMAGE)
    noise.detach()
    (name, norm), *_ = noise.norms.items()
    only = attach(model, "vib", IMAGE, {"beta": 0.3}, [name])
    seen: dict[str, Tensor] = {}
    hooks = [
        model.get_submodule(name).register_forward_hook(lambda module, inputs, output: seen.update(x=inputs[0])),
        model.get_submodule(norm).register_forward_hook(lambda module, inputs, output: seen.update(mean=output)),
    ]
    model(x)
    found = only.penalty()
    with only.mode(Mode.MEAN):
        model(x)
    for hook in hooks:
        hook.remove()
    branch = only.branches[name]
    sigma = F.softplus(apply(model.get_submodule(name), seen["x"], branch.weight, branch.bias))  # type: ignore[arg-type]
    wanted = kl_divergence(Normal(seen["mean"], sigma), Normal(0.0, 1.0)).flatten(1).sum(1).mean()
    torch.testing.assert_close(found, 0.3 * wanted)


def test_a_standard_normal_costs_nothing() -> None:
    layer = nn.Linear(3, 2).double()
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    branch = NoiseBranch(layer, Options(beta=1.0), normed=False)
    branch.bias.data.fill_(torch.tensor(1.0).double().expm1().log())  # softplus of it is 1
    branch.sample(layer, torch.randn(4, 3).double())
    assert float(branch.penalty(layer).detach()) == pytest.approx(0, abs=1e-12)


def test_what_a_neuron_pays_is_its_mean_kl() -> None:
    layer, _, x = make("linear")
    model = nn.Sequential(nn.Flatten(), layer, nn.ReLU(), nn.Linear(5, 2).double())
    noise = attach(model, "vib", (7, 1, 1))
    branch = noise.branches["1"]
    assert isinstance(branch, NoiseBranch)
    observe(model, noise, batches_of(x.view(-1, 7, 1, 1)))
    noise.detach()
    torch.testing.assert_close(branch.importance(), exact(layer, branch, x).mean(0).detach())


def test_frozen_noise_keeps_no_penalty() -> None:
    for method in ("vib", "se-snn"):
        model, x = randomize(Small()).eval(), torch.randn(4, *IMAGE, requires_grad=True)
        noise = attach(model, method, IMAGE).freeze()
        (gradient,) = torch.autograd.grad(model(x).sum(), x)
        assert bool(gradient.any())
        assert all(not branch._omega for branch in noise.branches.values())  # type: ignore[operator]
        assert not any(parameter.requires_grad for _, parameter in noise.named_parameters())


@pytest.mark.parametrize("beta", [-1, "nan", "inf"])
def test_beta_has_a_range(beta: object) -> None:
    with pytest.raises(UsageError, match=r"option beta=.* is out of range"):
        make_options("vib", {"beta": beta})


def test_the_branch_is_se_snns() -> None:
    assert issubclass(NoiseBranch, se_snn.NoiseBranch)
