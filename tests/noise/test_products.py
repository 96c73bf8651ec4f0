"""Products by gathered patches are the convolution's own, and closed-form gradients those of plain autograd."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from snncompress.noise import products, se_snn, sparse_vd
from snncompress.noise.products import open_product, standard_normal
from snncompress.noise.weights import kl_log_uniform

GEOMETRIES: dict[str, dict[str, Any]] = {
    "plain": {"kernel_size": 3},
    "padding": {"kernel_size": 3, "padding": 1},
    "odd kernel": {"kernel_size": (1, 3), "padding": (0, 1), "bias": False},
    "stride": {"kernel_size": (3, 2), "stride": (2, 1), "padding": (2, 0)},
    "dilation": {"kernel_size": 2, "dilation": (2, 1), "padding": 1},
}


def make(**geometry: Any) -> tuple[nn.Conv2d, Tensor]:
    """A convolution with far more weights than its input has values."""
    torch.manual_seed(0)
    return nn.Conv2d(4, 60, **geometry, dtype=torch.float64), torch.randn(2, 4, 4, 3, dtype=torch.float64)


@pytest.mark.parametrize("name", GEOMETRIES)
def test_patches_give_the_convolution(name: str) -> None:
    layer, x = make(**GEOMETRIES[name])
    x.requires_grad_()
    arranged, multiply = open_product(layer, x)
    assert arranged.dim() == 2  # a row for each position
    parameters = [*layer.parameters()]
    product, expected = multiply(arranged, layer.weight, layer.bias), layer(x)
    torch.testing.assert_close(product, expected, rtol=1e-12, atol=1e-12)
    assert product.stride() == expected.stride()
    ours = torch.autograd.grad(product.sin().sum(), [x, *parameters])
    torch.testing.assert_close(
        ours, torch.autograd.grad(expected.sin().sum(), [x, *parameters]), rtol=1e-12, atol=1e-12
    )
    squares = F.conv2d(x.square(), layer.weight, None, layer.stride, layer.padding, layer.dilation)  # type: ignore[arg-type]
    torch.testing.assert_close(multiply(arranged.square(), layer.weight, None), squares, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("geometry", "shape"),
    [
        ({"kernel_size": 3, "groups": 2}, (2, 4, 4, 3)),
        ({"kernel_size": 3, "padding": "same"}, (2, 4, 4, 3)),
        ({"kernel_size": 3, "padding": 1, "padding_mode": "circular"}, (2, 4, 4, 3)),
        ({"kernel_size": 3}, (200, 4, 4, 3)),  # more values than weights
        ({"kernel_size": 3}, (4, 4, 3)),  # no batch
    ],
)
def test_elsewhere_it_is_the_layer_itself(geometry: dict[str, Any], shape: tuple[int, ...]) -> None:
    layer, _ = make(**geometry)
    x = torch.randn(shape, dtype=torch.float64)
    arranged, multiply = open_product(layer, x)
    assert arranged is x
    assert torch.equal(multiply(x, layer.weight, layer.bias), layer(x))


@pytest.mark.parametrize("name", GEOMETRIES)
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_channels_last_on_the_way_back(name: str, first: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    layer = nn.Conv2d(1 if first else 5, 7, **GEOMETRIES[name], dtype=dtype)
    x = torch.randn(30, layer.in_channels, 9, 8, dtype=dtype, requires_grad=not first)  # images need no gradient
    wanted = [*layer.parameters()] + ([] if first else [x])
    product: Tensor = products._Convolution.apply(layer, x, layer.weight, layer.bias)
    assert torch.equal(product, layer(x))
    ours = torch.autograd.grad(product.sin().sum(), wanted)
    tolerance = {torch.float32: 1e-4, torch.float64: 1e-12}[dtype]
    theirs = torch.autograd.grad(layer(x).sin().sum(), wanted)
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("inputs", "outputs", "back"), [(1, 32, True), (20, 50, True), (3, 64, False)])
def test_channels_last_where_they_do_not_come_in_eights(inputs: int, outputs: int, back: bool) -> None:
    layer, x = nn.Conv2d(inputs, outputs, 3), torch.randn(50, inputs, 12, 12)
    arranged, multiply = open_product(layer, x)
    assert ("_Convolution" in type(multiply(arranged, layer.weight, layer.bias).grad_fn).__name__) is back
    with torch.autocast("cpu", dtype=torch.bfloat16):
        product = multiply(arranged, layer.weight, layer.bias)
        assert product.dtype == torch.bfloat16
    product.sum().backward()
    assert layer.weight.grad is not None


@pytest.mark.parametrize("method", [se_snn, sparse_vd])
@pytest.mark.parametrize("normed", [False, True])
def test_a_branch_samples_the_same_by_patches(method: Any, normed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = make(**GEOMETRIES["padding"])
    branch = method.NoiseBranch(layer, method.Options(), normed=normed)
    parameters = [*layer.parameters(), *branch.parameters()]
    found = []
    for least in (0.0, float("inf")):  # weights a value: always by patches, never
        monkeypatch.setattr(products, "OUTNUMBERED", least)
        torch.manual_seed(1)
        sample = branch.after_norm(branch.sample(layer, x))
        loss = sample.sin().sum() + branch.penalty(layer)
        found.append((sample, *torch.autograd.grad(loss, parameters)))
    torch.testing.assert_close(found[0], found[1], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_noise_is_standard_normal_in_every_layout(layout: torch.memory_format) -> None:
    like = torch.empty(20, 30, 10, 10).to(memory_format=layout)
    torch.manual_seed(0)
    noise = standard_normal(like)
    assert noise.stride() == like.stride()
    in_memory = noise if layout is torch.contiguous_format else noise.permute(0, 2, 3, 1)
    torch.manual_seed(0)
    assert torch.equal(in_memory.flatten(), torch.randn(like.numel()))
    assert float(standard_normal(like, 0.5).std()) == pytest.approx(0.5, rel=5 / (2 * like.numel()) ** 0.5)


def test_gradient_of_the_kl() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(50, 40).double()
    layer.weight.data[0, :10] = 0
    branch = sparse_vd.NoiseBranch(layer, sparse_vd.Options(), normed=False)
    nn.init.normal_(branch.log_sigma2, mean=-4, std=6)  # on both sides of the limits
    wanted = (layer.weight, branch.log_sigma2)
    plain = kl_log_uniform(branch.log_alpha(layer)).sum()
    torch.testing.assert_close(branch.kl(layer), plain, rtol=1e-13, atol=0)
    ours = torch.autograd.grad(3 * branch.kl(layer), wanted)
    torch.testing.assert_close(ours, torch.autograd.grad(3 * plain, wanted), rtol=1e-12, atol=1e-14)
    single = copy.deepcopy(layer).float(), copy.deepcopy(branch).float()
    assert float(single[1].kl(single[0]).detach()) == pytest.approx(float(plain.detach()), rel=1e-5)


@pytest.mark.parametrize("aggregate", se_snn.Aggregate)
@pytest.mark.parametrize("convolution", [False, True])
@pytest.mark.parametrize("alone", [False, True])
def test_gradient_of_noise_and_entropy(aggregate: se_snn.Aggregate, convolution: bool, alone: bool) -> None:
    torch.manual_seed(0)
    layer = nn.Conv2d(2, 5, 3) if convolution else nn.Linear(6, 5)
    shape = (3, 5, 4, 2) if convolution else (3, 5)
    mean, raw = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for _ in range(2))
    branch = se_snn.NoiseBranch(layer, se_snn.Options(aggregate=aggregate, margin=-0.3), normed=alone)
    axes = branch._averaged(layer, raw)
    wanted = [raw] if alone else [mean, raw]

    def gradients(sample: Tensor, log_sigma: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(sample.sin().sum() + 7 * F.relu(-0.3 - log_sigma).mean(), wanted)

    torch.manual_seed(1)
    sample, log_sigma = se_snn.perturb(None if alone else mean, raw, axes)
    torch.manual_seed(1)
    sigma = F.softplus(raw)
    noise = torch.randn_like(sigma) * sigma
    plain = noise if alone else mean + noise
    averaged = sigma.log().mean(axes, keepdim=True) if axes else sigma.log()
    torch.testing.assert_close((sample, log_sigma), (plain, averaged), rtol=1e-12, atol=1e-12)
    assert log_sigma.numel() == {"neuron": 5, "sample": 3, "both": raw.numel()}[aggregate]
    torch.testing.assert_close(gradients(sample, log_sigma), gradients(plain, averaged), rtol=1e-10, atol=1e-12)
