"""Costs against the numbers that the papers print, and against identities."""

from __future__ import annotations

import copy

import pytest
import safetensors.torch
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from snncompress.errors import ModelError
from snncompress.measure.cost import Cost, measure_cost, state_bytes

MNIST = (1, 28, 28)


class Select(nn.Module):
    """Reads some of its inputs only: what zeroed columns of the next layer amount to."""

    def __init__(self, kept: int) -> None:
        super().__init__()
        self.kept = kept

    def forward(self, x: Tensor) -> Tensor:
        return x[:, : self.kept]


def lenet(conv1: int = 20, conv2: int = 50, fc1: int = 500, inputs: int | None = None) -> nn.Sequential:
    inputs = 16 * conv2 if inputs is None else inputs
    return nn.Sequential(
        *(nn.Conv2d(1, conv1, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(conv1, conv2, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), Select(inputs), nn.Linear(inputs, fc1), nn.ReLU(), nn.Linear(fc1, 10)),
    )


def test_lenet5_caffe() -> None:
    cost = measure_cost(lenet(), MNIST)
    assert (cost.weights, cost.weights_only, cost.flops, cost.memory) == (431_080, 430_500, 2_293_000, 16_020)
    assert [layer.flops for layer in cost.layers] == [288_000, 1_600_000, 400_000, 5_000]
    assert [layer.memory for layer in cost.layers] == [11_520, 3_200, 800 + 500, 0]
    assert [layer.neurons for layer in cost.layers] == [20, 50, 500, 10]
    assert cost.layers[1].input_shape == (20, 12, 12)
    assert cost.layers[1].output_shape == (50, 8, 8)


def test_se_snn_row() -> None:
    original, cost = measure_cost(lenet(), MNIST), measure_cost(lenet(2, 7, 79), MNIST)
    assert cost.flops == 60_838
    assert round(100 * cost.weights / original.weights, 2) == 2.35
    assert round(100 * cost.memory / original.memory, 2) == 11.18


@pytest.mark.parametrize(
    ("widths", "millions", "memory_percent"),
    [
        ((5, 10, 76, 16), 0.153, 22.80),
        ((8, 13, 88, 13), 0.283, 35.03),
        ((3, 18, 284, 283), 0.213, 21.15),
        ((3, 12, 192, 500), 0.201, 19.35),
        ((14, 19, 242, 131), 0.660, 60.78),
        ((7, 13, 208, 16), 0.250, 32.00),
        ((20, 25, 45, 462), 1.113, 85.82),
        ((9, 18, 65, 25), 0.389, 40.36),
    ],
)
def test_published_rows(widths: tuple[int, ...], millions: float, memory_percent: float) -> None:
    conv1, conv2, inputs, fc1 = widths
    cost = measure_cost(lenet(conv1, conv2, fc1, inputs), MNIST)
    assert cost.flops / 1e6 == pytest.approx(millions, abs=0.002)
    assert 100 * cost.memory / 16_020 == pytest.approx(memory_percent, abs=0.8)


def test_zeros_are_not_counted_as_weights() -> None:
    model = lenet()
    with torch.no_grad():
        model[8].weight[:, 100:] = 0
        model[8].bias[:7] = 0
    cost = measure_cost(model, MNIST)
    assert cost.weights == 431_080 - 500 * 700 - 7
    assert cost.weights_only == 430_500 - 500 * 700
    assert cost.parameters == 431_080
    assert cost.flops == 2_293_000  # the layer still multiplies by its zeros


class Residual(nn.Module):
    """Batch norm, a convolution that runs twice, a depthwise one, and products that are no module."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.twice = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False)
        self.weight = nn.Parameter(torch.randn(5, 8))

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x)).relu()
        x = self.depthwise(x + self.twice(self.twice(x)))
        return F.linear(x.mean((2, 3)), self.weight)


def totals(cost: Cost) -> tuple[int, ...]:
    return cost.parameters, cost.weights, cost.weights_only, cost.flops, cost.memory


def test_residual_model() -> None:
    model = Residual()
    nn.init.normal_(model.norm.bias)
    cost = measure_cost(model, (3, 6, 6))
    flops = {layer.name: layer.flops for layer in cost.layers}
    assert flops == {
        "Residual": 5 * 8,
        "conv": 36 * 8 * 27,
        "norm": 0,
        "twice": 2 * 36 * 8 * 72,
        "depthwise": 36 * 8 * 9,
    }
    assert cost.memory == 36 * 8 * 4 + 8  # four convolutions run, and the linear product reads 8
    assert cost.weights == sum(p.numel() for p in model.parameters())
    sums = [(la.parameters, la.weights, la.weights_only, la.flops, la.memory) for la in cost.layers]
    assert totals(cost) == tuple(map(sum, zip(*sums, strict=True)))


def test_measuring_touches_nothing() -> None:
    model = Residual().train()
    before = copy.deepcopy(model.state_dict())
    measure_cost(model, (3, 6, 6))
    assert model.training
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert all(parameter.requires_grad for parameter in model.parameters())


class Attention(nn.Module):
    """Attention over image rows; `peek` looks at values, which the meta device has not."""

    def __init__(self, peek: bool) -> None:
        super().__init__()
        self.peek = peek
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1, 2)
        if self.peek and bool(x.max() > 1):
            x = x / 255
        return self.head(self.layer(x).mean(1))


@pytest.mark.parametrize("peek", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_attention_is_counted(peek: bool, training: bool) -> None:
    cost = measure_cost(Attention(peek).train(training), (1, 5, 8))
    attention = 5 * 8 * 24 + 5 * 8 * 8 + 2 * 5 * 5 * 8  # three projections and one, QKᵀ and AV
    assert cost.flops == attention + 2 * 5 * 8 * 16 + 8 * 3
    assert cost.memory == 5 * 8 + 4 * 5 * 8 + 5 * 16 + 5 * 8  # read by attention, its four, the two after


def test_shared_weights_are_held_once() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 4), nn.Linear(4, 4))
    model[2].weight = model[1].weight
    cost = measure_cost(model, (1, 2, 2))
    assert (cost.weights, cost.flops) == (16 + 8, 32)
    assert state_bytes(model) == 4 * (16 + 8)


@pytest.mark.parametrize(
    ("shape", "layer", "got", "wanted"),
    [
        ((3, 28, 28), "'0' (Conv2d)", "got 3×28×28", "wanted 1 channel;"),
        ((1, 32, 32), "'8' (Linear)", "got 1250", "wanted 800 features"),
        ((1, 10, 10), "'3' (Conv2d)", "got 20×3×3", "Kernel size: (5 x 5)"),
    ],
)
def test_wrong_images(
    shape: tuple[int, int, int], layer: str, got: str, wanted: str, recwarn: pytest.WarningsRecorder
) -> None:
    model = lenet()
    model[7] = nn.Identity()
    with pytest.raises(ModelError) as caught:
        measure_cost(model, shape)
    message = str(caught.value)
    assert layer in message
    assert got in message
    assert wanted in message
    assert "×".join(map(str, shape)) in message
    assert "\n" not in message
    assert not recwarn.list


def test_wrong_images_for_the_models_own_forward() -> None:
    class Fixed(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.view(-1, 7)

    with pytest.raises(ModelError, match=r"the model's own forward \(Fixed\) got 1×2×2: .*invalid"):
        measure_cost(Fixed(), (1, 2, 2))


def test_state_bytes_is_the_file_without_its_header() -> None:
    model = Residual()
    data = safetensors.torch.save(model.state_dict())
    header = 8 + int.from_bytes(data[:8], "little")
    assert state_bytes(model) == len(data) - header


def test_everything_of_the_usual_is_counted_or_free() -> None:
    layers: list[nn.Module] = [
        *(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Hardswish(inplace=True), nn.GroupNorm(2, 4), nn.PixelShuffle(2)),
        *(nn.Upsample(scale_factor=2, mode="bilinear"), nn.AdaptiveMaxPool2d(4), nn.Dropout(), nn.PReLU()),
        *(nn.Flatten(), nn.Linear(16, 8), nn.LayerNorm(8), nn.Softmax(-1), nn.Unflatten(1, (2, 4)), nn.LSTM(4, 3)),
    ]
    assert measure_cost(nn.Sequential(*layers), (3, 8, 8)).uncounted == ()


class Odd(nn.Module):
    """Multiplies by operators that no counter knows."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Bilinear(6, 6, 2)

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        scale = torch.mv(flat, flat[0])
        return self.inner(flat, flat) * scale + torch.fft.rfft(flat).abs()[:, :2]


def test_what_could_not_be_counted_is_named_with_its_module() -> None:
    found = {(each.module, each.operator): each.calls for each in measure_cost(Odd(), (1, 2, 3)).uncounted}
    assert found == {("inner", "aten._trilinear"): 1, ("Odd", "aten.mv"): 1, ("Odd", "aten._fft_r2c"): 1}


def test_an_operator_of_another_library_is_named() -> None:
    library = torch.library.Library("snncompress_test", "DEF")
    library.define("twist(Tensor x) -> Tensor")
    library.impl("twist", lambda x: x.flip(-1), "CPU")  # not on the meta device: the run on the CPU names it

    class Twist(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.ops.snncompress_test.twist(torch.ops.snncompress_test.twist(x))  # type: ignore[no-any-return]

    cost = measure_cost(nn.Sequential(Twist(), nn.Flatten(), nn.Linear(6, 2)), (1, 2, 3))
    assert [(each.module, each.operator, each.calls) for each in cost.uncounted] == [("0", "snncompress_test.twist", 2)]
    assert cost.flops == 12
