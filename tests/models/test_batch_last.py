"""Thin convolutions with the batch last give what torch gives, outputs and gradients."""

import copy

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from snncompress.models import batch_last
from snncompress.models.batch_last import FEWEST_IMAGES, BatchLast, faster
from snncompress.models.layers import find_zeros
from snncompress.models.lenet import lenet5
from snncompress.models.resnet import resnet20
from snncompress.noise.attach import attach
from snncompress.noise.products import open_product
from snncompress.training.learner import Learner
from snncompress.training.options import Precision, TrainOptions

pytest.importorskip("numba")


def thin_lenet() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 2, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(2, 7, 5),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(112, 10),
    )


def gradients(model: nn.Module, images: Tensor, mode: BatchLast | None = None) -> tuple[Tensor, list[Tensor]]:
    """Outputs, and the gradients of a loss by the images and all parameters."""
    images = images.clone().requires_grad_()
    if mode is None:
        outputs = model(images)
    else:
        with mode:
            outputs = model(images)
    found = torch.autograd.grad(outputs.square().sum(), [images, *model.parameters()])
    return outputs.detach(), list(found)


def assert_close(one: Tensor, other: Tensor) -> None:
    assert one.shape == other.shape
    assert (one - other).abs().max() <= 2e-5 * other.abs().max().clamp(min=1e-3)


@settings(derandomize=True, deadline=None, max_examples=40)
@given(
    channels=st.integers(1, 4),
    outputs=st.integers(1, 6),
    kernel=st.tuples(st.integers(1, 5), st.integers(1, 3)),
    padding=st.tuples(st.integers(0, 2), st.integers(0, 3)),
    sides=st.tuples(st.integers(5, 9), st.integers(5, 9)),
    images=st.integers(FEWEST_IMAGES, 150),
    bias=st.booleans(),
    pooled=st.booleans(),
    threads=st.integers(1, 2),
)
def test_any_thin_convolution_is_torchs(
    channels, outputs, kernel, padding, sides, images, bias, pooled, threads
) -> None:
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Conv2d(channels, outputs, kernel, padding=padding, bias=bias)]
    if pooled and min(side + 2 * pad - size for side, pad, size in zip(sides, padding, kernel, strict=True)) > 0:
        layers.append(nn.MaxPool2d(2))
    model, batch = nn.Sequential(*layers), torch.randn(images, channels, *sides)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found = gradients(model, batch, BatchLast())
    finally:
        torch.set_num_threads(before)
    expected = gradients(model, batch)
    assert found[0].permute(1, 2, 3, 0).is_contiguous()  # it was computed here
    for one, other in zip([found[0], *found[1]], [expected[0], *expected[1]], strict=True):
        assert_close(one, other)


def test_of_equal_pixels_the_first_takes_the_gradient_as_in_torch() -> None:
    model = nn.Sequential(nn.Conv2d(1, 1, 1), nn.MaxPool2d(2))
    images = torch.randint(0, 2, (FEWEST_IMAGES, 1, 5, 6)).float()
    (expected, *_), (found, *_) = gradients(model, images)[1], gradients(model, images, BatchLast())[1]
    assert torch.equal(found, expected)


def test_zeros_that_are_held_cost_nothing_and_learn_nothing() -> None:
    torch.manual_seed(0)
    conv = nn.Conv2d(2, 40, 3)
    with torch.no_grad():
        conv.weight[torch.rand_like(conv.weight) < 0.9] = 0.0
    images = torch.randn(FEWEST_IMAGES, 2, 8, 8)
    outputs, (_, by_weight, by_bias) = gradients(conv, images, BatchLast([conv.weight]))
    expected, (_, all_by_weight, all_by_bias) = gradients(conv, images)
    assert_close(outputs, expected)
    assert_close(by_bias, all_by_bias)
    assert_close(by_weight, all_by_weight * (conv.weight != 0))


def test_a_zero_that_is_not_held_has_its_gradient() -> None:
    conv = nn.Conv2d(1, 2, 3)
    nn.init.zeros_(conv.weight)
    images = torch.randn(FEWEST_IMAGES, 1, 8, 8)
    found, expected = (gradients(nn.Sequential(conv), images, mode)[1][1] for mode in (BatchLast(), None))
    assert expected.abs().max() > 0
    assert_close(found, expected)


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(2, 2, 3, stride=2),
        nn.Conv2d(2, 2, 3, groups=2),
        nn.Conv2d(2, 2, 3, dilation=2),
        nn.Conv2d(2, 2, 3, padding="same"),
    ],
)
def test_what_the_kernels_do_not_know_is_left_to_torch(layer: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(batch_last, "_Convolve")
    images = torch.randn(FEWEST_IMAGES, 2, 8, 8)
    with BatchLast():
        assert torch.equal(layer(images), F.conv2d(images, *_arguments(layer)))


def _arguments(layer: nn.Conv2d) -> tuple:
    return layer.weight, layer.bias, layer.stride, layer.padding, layer.dilation, layer.groups


def test_pooling_that_is_not_by_twos_is_left_to_torch() -> None:
    images = torch.randn(FEWEST_IMAGES, 1, 9, 9)
    conv = nn.Conv2d(1, 2, 3)
    for pool in (
        nn.MaxPool2d(3),
        nn.MaxPool2d(2, stride=1),
        nn.MaxPool2d(2, ceil_mode=True),
        nn.MaxPool2d(2, padding=1),
    ):
        with BatchLast():
            found = pool(conv(images))
        assert_close(found, pool(conv(images)))


def test_training_goes_the_same_way(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    images, labels = torch.randn(2, 128, 1, 28, 28), torch.randint(10, (2, 128))
    model = thin_lenet()
    learned = []
    for fast in (True, False):
        monkeypatch.setattr(batch_last, "_compiles", lambda fast=fast: fast)
        learner = Learner(copy.deepcopy(model), None, TrainOptions())
        for batch, truth in zip(images, labels, strict=True):
            learner.step(batch, truth, 1e-3)
        learned.append([parameter.detach() for parameter in learner.model.parameters()])
    for one, other in zip(*learned, strict=True):
        assert (one - other).abs().max() < 1e-5


def test_thin_networks_without_norms_are_faster_so() -> None:
    assert isinstance(faster(thin_lenet(), {}), BatchLast)
    assert not isinstance(faster(nn.Sequential(nn.Linear(3, 2)), {}), BatchLast)
    assert not isinstance(faster(resnet20(), {}), BatchLast)
    thick = lenet5()
    assert not isinstance(faster(thick, {}), BatchLast)
    with torch.no_grad():
        thick.get_parameter("conv1.weight")[7:] = 0.0
        thick.get_parameter("conv2.weight")[7:] = 0.0
    assert isinstance(faster(thick, find_zeros(thick)), BatchLast)


def test_half_precision_keeps_torchs_layouts() -> None:
    learner = Learner(thin_lenet(), None, TrainOptions(precision=Precision.BFLOAT16))
    learner.step(torch.randn(FEWEST_IMAGES, 1, 28, 28), torch.randint(10, (FEWEST_IMAGES,)), 1e-3)
    learner.check_finite()


def test_products_of_noise_leave_out_what_is_silent() -> None:
    torch.manual_seed(0)
    conv, images = nn.Conv2d(2, 3, 3, padding=1), torch.randn(FEWEST_IMAGES, 2, 8, 8)
    kept = torch.rand_like(conv.weight) < 0.5
    weight = (conv.weight.detach() * kept).requires_grad_()
    with BatchLast():
        arranged, multiply = open_product(conv, images, kept)
        found = multiply(arranged, weight, conv.bias)
    assert found.permute(1, 2, 3, 0).is_contiguous()
    expected = F.conv2d(images, weight, conv.bias, padding=1)
    assert_close(found, expected)
    by_weight, by_bias = torch.autograd.grad(found.square().sum(), (weight, conv.bias))
    all_by_weight, all_by_bias = torch.autograd.grad(expected.square().sum(), (weight, conv.bias))
    assert_close(by_weight, all_by_weight * kept)
    assert_close(by_bias, all_by_bias)


def test_under_noise_a_zero_that_was_not_silenced_learns() -> None:
    torch.manual_seed(0)
    model, images = thin_lenet(), torch.randn(FEWEST_IMAGES, 1, 28, 28)
    with torch.no_grad():
        model[3].weight[:, :, 2] = 0.0
    attach(model, "vd", (1, 28, 28))  # σ² = α·μ² is zero there, too
    with BatchLast():
        outputs = model(images)
    (found,) = torch.autograd.grad(outputs.square().sum(), model[3].weight)
    assert found[:, :, 2].abs().max() > 0


def test_a_broken_weight_is_not_hidden() -> None:
    conv = nn.Conv2d(1, 2, 3)
    with torch.no_grad():
        conv.weight[0, 0, 0, 0] = float("nan")
    with BatchLast():
        outputs = conv(torch.randn(FEWEST_IMAGES, 1, 8, 8))
    assert outputs[:, 0].isnan().all()
    assert outputs[:, 1].isfinite().all()
