import inspect

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from snncompress import registry
from snncompress.errors import ModelError, UsageError
from snncompress.models.lenet import lenet5, lenet300
from snncompress.models.mlp import mlp
from snncompress.models.padding import ChannelPad
from snncompress.models.resnet import resnet20, resnet56
from snncompress.models.vgg import vgg16, vgg16_c100
from snncompress.models.wide_resnet import wrn16_2

NAMES = list(registry.entries("models"))


def builder_of(name):
    return getattr(registry.load("models", name), name.replace("-", "_"))


def multiplications(model, shape):
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        model.to("meta").eval()(torch.empty(1, *shape))
    return counter.get_total_flops() // 2


def weights(model):
    return sum(parameter.numel() for parameter in model.parameters())


def test_the_issue_s_architectures_are_there():
    resnets = {f"resnet{depth}" for depth in (20, 32, 44, 56, 110)}
    assert {"lenet5", "lenet300", "mlp", "vgg16", "vgg16-c100", "wrn16-2"} | resnets <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
class TestContract:
    def test_builder_takes_classes_and_image_shape(self, name):
        parameters = inspect.signature(builder_of(name)).parameters
        assert parameters["classes"].default >= 2
        assert parameters["image_shape"].default == registry.load("models", name).INPUT_SHAPE

    def test_forward_gives_logits_and_gradients(self, name):
        model = builder_of(name)(classes=7)
        shape = registry.load("models", name).INPUT_SHAPE
        logits = model.train()(torch.rand(2, *shape))
        assert logits.shape == (2, 7)
        logits.square().sum().backward()
        assert all(parameter.grad is not None for parameter in model.parameters())

    def test_another_image_shape(self, name):
        channels, height, width = registry.load("models", name).INPUT_SHAPE
        shape = (channels + 1, 2 * height, width)
        model = builder_of(name)(classes=3, image_shape=shape).eval()
        assert model(torch.rand(1, *shape)).shape == (1, 3)

    def test_plain_layers_only(self, name):
        plain = (nn.Conv2d, nn.Linear, nn.BatchNorm2d)
        for module in builder_of(name)().modules():
            assert not getattr(module, "inplace", False)
            if any(True for _ in module.parameters(recurse=False)):
                assert type(module) in plain


def test_lenet5_by_hand():
    model = lenet5()
    shapes = {key: tuple(value.shape) for key, value in model.state_dict().items()}
    assert shapes == {
        "conv1.weight": (20, 1, 5, 5),
        "conv1.bias": (20,),
        "conv2.weight": (50, 20, 5, 5),
        "conv2.bias": (50,),
        "fc1.weight": (500, 800),
        "fc1.bias": (500,),
        "fc2.weight": (10, 500),
        "fc2.bias": (10,),
    }
    assert weights(model) == 431_080
    # 24²·20·25 + 8²·50·20·25 + 800·500 + 500·10
    assert multiplications(model, (1, 28, 28)) == 2_293_000


def test_lenet5_has_a_relu_after_both_convolutions():
    model = lenet5()
    seen = []
    for reader in (model.conv2, model.fc1):
        reader.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0].min().item()))
    model(torch.randn(4, 1, 28, 28))
    assert seen == [0.0, 0.0]


@pytest.mark.parametrize(
    ("builder", "shape", "count", "macs"),
    [
        (lenet300, (1, 28, 28), 784 * 300 + 300 + 300 * 100 + 100 + 1010, 784 * 300 + 300 * 100 + 1000),
        (resnet20, (3, 32, 32), 269_722, 40_551_040),  # He et al. say 0.27M and 0.85M
        (resnet56, (3, 32, 32), 853_018, 125_485_696),
        (vgg16, (3, 32, 32), 15_249_354, 313_725_952),
        (vgg16_c100, (3, 32, 32), 20_081_188, 398_182_400),  # Liu et al.: 20.08M, 7.97e8 / 2
        (wrn16_2, (3, 32, 32), 691_674, 101_106_944),
    ],
)
def test_published_counts(builder, shape, count, macs):
    assert weights(builder()) == count
    assert multiplications(builder(), shape) == macs


def test_shortcuts():
    plain, projected = resnet20(), resnet20(shortcut="B")
    assert projected.state_dict().keys() - plain.state_dict().keys() >= {"layer2.0.shortcut.0.weight"}
    assert weights(projected) - weights(plain) == 16 * 32 + 2 * 32 + 32 * 64 + 2 * 64
    with pytest.raises(UsageError, match="shortcut=A or shortcut=B"):
        resnet20(shortcut="C")


def test_pad_shortcut_slices_and_pads():
    image = torch.rand(1, 2, 5, 4)
    padded = ChannelPad(stride=2, pad_before=1, pad_after=3)(image)
    assert padded.shape == (1, 6, 3, 2)
    assert torch.equal(padded[:, 1:3], image[:, :, ::2, ::2])
    assert padded[:, 0].abs().sum() == 0
    assert padded[:, 3:].abs().sum() == 0


@pytest.mark.parametrize("widths", ["7-5", [7, 5], (7, 5)])
def test_mlp_widths(widths):
    linears = [module for module in mlp(widths=widths).modules() if isinstance(module, nn.Linear)]
    assert [module.out_features for module in linears] == [7, 5, 10]


def test_mlp_of_one_and_of_no_hidden_layer():
    assert weights(mlp(widths=4, image_shape=(1, 2, 3))) == 6 * 4 + 4 + 4 * 10 + 10
    assert weights(mlp(widths="", image_shape=(1, 2, 3))) == 6 * 10 + 10
    assert weights(mlp(widths=[], image_shape=(1, 2, 3))) == 6 * 10 + 10


@pytest.mark.parametrize("widths", ["300-", "a", -3, [0], [None], "300-0", None, 2.5])
def test_mlp_of_impossible_widths(widths):
    with pytest.raises(UsageError, match="widths=300-100"):
        mlp(widths=widths)


@pytest.mark.parametrize(("builder", "side"), [(lenet5, 15), (vgg16, 31), (vgg16_c100, 15)])
def test_images_too_small_are_named(builder, side):
    with pytest.raises(ModelError, match=f"at least {side + 1}×{side + 1} pixels"):
        builder(image_shape=(3, 64, side))
