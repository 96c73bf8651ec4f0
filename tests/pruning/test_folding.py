"""Constants of removed neurons: folded exactly where that can be, left alone where it cannot."""

from __future__ import annotations

import copy

import pytest
import torch
from networks import IMAGE, Lambda, batches_of, close, randomize
from torch import Tensor, nn

from snncompress.models.channels import trace_channels
from snncompress.progress import Progress
from snncompress.pruning.compaction import compact
from snncompress.pruning.coupling import find_groups
from snncompress.pruning.dead import Dead, find_dead
from snncompress.pruning.folding import can_fold, fold

SHIFT = 0.7
POOL = Lambda(lambda x: x.mean((2, 3)))


def after_reader(width: int = 5) -> list[nn.Module]:
    return [nn.ReLU(), POOL, nn.Linear(width, 3)]


def constant_channel(*rest: nn.Module) -> nn.Sequential:
    """Channel 1 of the first convolution always gives ``SHIFT``: its batch norm has a scale of zero."""
    first = nn.Conv2d(3, 4, 3, padding=1)
    model = randomize(nn.Sequential(first, nn.BatchNorm2d(4), nn.ReLU(), *rest).double())
    assert isinstance(model, nn.Sequential)
    norm = model[1]
    assert isinstance(norm, nn.BatchNorm2d)
    norm.weight.data[1], norm.bias.data[1] = 0.0, SHIFT
    return model


FOLDABLE: dict[str, list[nn.Module]] = {
    "linear": [nn.Flatten(), nn.Linear(4 * 64, 3)],
    "hidden linear": [POOL, nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)],
    "linear without bias, batch norm": [
        POOL, nn.Linear(4, 5, bias=False), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3),
    ],
    "1×1 convolution": [nn.Conv2d(4, 5, 1), *after_reader()],
    "unpadded convolution, batch norm": [nn.Conv2d(4, 5, 3, bias=False), nn.BatchNorm2d(5), *after_reader()],
    "unpadded convolution with bias, batch norm": [nn.Conv2d(4, 5, 3), nn.BatchNorm2d(5), *after_reader()],
    "strided, dilated": [nn.Conv2d(4, 5, 2, stride=2, dilation=2, padding="valid") , *after_reader()],
    "pooled": [nn.MaxPool2d(2), nn.Conv2d(4, 5, 3), *after_reader()],
}  # fmt: skip
STUBBORN: dict[str, list[nn.Module]] = {
    "padded convolution": [nn.Conv2d(4, 5, 3, padding=1), *after_reader()],
    "padded convolution, batch norm": [nn.Conv2d(4, 5, 3, padding=1), nn.BatchNorm2d(5), *after_reader()],
    "no bias": [nn.Conv2d(4, 5, 3, bias=False), *after_reader()],
    "no bias, norm without statistics": [
        nn.Conv2d(4, 5, 3, bias=False), nn.BatchNorm2d(5, track_running_stats=False), *after_reader(),
    ],
    "no bias, norm after the ReLU": [nn.Conv2d(4, 5, 3, bias=False), nn.ReLU(), nn.BatchNorm2d(5), *after_reader()],
}  # fmt: skip


def norms_of(model: nn.Module) -> dict[str, str | None]:
    return {name: layer.norm for name, layer in trace_channels(model, IMAGE).layers.items()}


def dead_of(model: nn.Module, images: Tensor) -> Dead:
    groups = find_groups(trace_channels(model, IMAGE))
    return find_dead(model, groups, norms_of(model), batches_of(images), Progress())


@pytest.mark.parametrize("name", FOLDABLE)
def test_a_constant_is_removed_exactly(name: str) -> None:
    model = constant_channel(*copy.deepcopy(FOLDABLE[name]))
    dead = dead_of(model, torch.randn(4, *IMAGE).double())
    (group,) = (group for group in dead.groups if group.outputs == (("0", 1),))
    constants = {place: dead.constants[place] for place in group.inputs}
    assert list(constants.values()) == pytest.approx([SHIFT] * len(constants), rel=1e-14)
    others = torch.randn(4, *IMAGE).double()  # the constant does not depend on the images
    with torch.no_grad():
        wanted = model(others)
        fold(model, constants, norms_of(model))
        smaller, _ = compact(model, [group])
        assert smaller.get_submodule("0").out_channels == 3
        assert close(smaller(others), wanted, 1e-13)


@pytest.mark.parametrize("name", STUBBORN)
def test_a_constant_that_cannot_be_folded_stays(name: str) -> None:
    model = constant_channel(*copy.deepcopy(STUBBORN[name]))
    dead = dead_of(model, torch.randn(4, *IMAGE).double())
    assert ("0", 1) not in [group.outputs[0] for group in dead.groups]
    assert not any(layer == "3" for layer, _ in dead.constants)


@pytest.mark.parametrize("name", STUBBORN)
def test_a_zero_goes_through_every_reader(name: str) -> None:
    model = constant_channel(*copy.deepcopy(STUBBORN[name]))
    model[1].bias.data[1] = -SHIFT  # type: ignore[index, operator, union-attr]
    images = torch.randn(4, *IMAGE).double()
    dead = dead_of(model, images)
    assert ("0", 1) in [group.outputs[0] for group in dead.groups]
    assert dead.constants == {}
    with torch.no_grad():
        assert close(compact(model, dead.groups)[0](images), model(images), 1e-13)


class TwoReaders(nn.Module):
    """Both read the same neurons."""

    def __init__(self, padding: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.one = nn.Conv2d(4, 2, 3)
        self.other = nn.Conv2d(4, 2, 3, padding=padding)
        self.fc = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x)).relu()
        return self.fc(torch.cat([self.one(x).relu().mean((2, 3)), self.other(x).relu().mean((2, 3))], 1))  # type: ignore[no-any-return]


@pytest.mark.parametrize("padding", [0, 1])
def test_all_readers_must_agree(padding: int) -> None:
    model = TwoReaders(padding)
    randomize(model.double())
    model.norm.weight.data[2], model.norm.bias.data[2] = 0.0, SHIFT
    images = torch.randn(4, *IMAGE).double()
    dead = dead_of(model, images)
    assert (("conv", 2) in [group.outputs[0] for group in dead.groups]) == (padding == 0)
    if padding == 0:
        assert dead.constants == {("one", 2): SHIFT, ("other", 2): SHIFT}
        with torch.no_grad():
            wanted = model(images)
            fold(model, dead.constants, {})
            assert close(compact(model, dead.groups)[0](images), wanted, 1e-13)


def test_several_constants_add_up() -> None:
    layer = nn.Linear(4, 3).double()
    model = nn.Sequential(layer)
    x = torch.tensor([[0.3, -2.0, 5.0, 1.5]]).double()
    wanted = layer(x)
    fold(model, {("0", 3): 1.5, ("0", 1): -2.0}, {})
    assert close(layer(x * torch.tensor([1.0, 0.0, 1.0, 0.0]).double()), wanted, 1e-14)


def test_the_running_mean_takes_what_there_is_no_bias_for() -> None:
    model = randomize(nn.Sequential(nn.Conv2d(2, 3, 2, bias=False), nn.BatchNorm2d(3)).double())
    x = torch.randn(4, 2, 5, 5).double()
    x[:, 1] = -0.4
    wanted = model(x)
    weight = model.get_parameter("0.weight").clone()
    fold(model, {("0", 1): -0.4}, {"0": "1"})
    x[:, 1] = 0.0
    assert close(model(x), wanted, 1e-13)
    assert torch.equal(model.get_parameter("0.weight"), weight)


@pytest.mark.parametrize(
    ("layer", "norm", "expected"),
    [
        (nn.Linear(2, 2), None, True), (nn.Linear(2, 2, bias=False), None, False),
        (nn.Linear(2, 2, bias=False), nn.BatchNorm1d(2), True), (nn.Conv2d(2, 2, 3), None, True),
        (nn.Conv2d(2, 2, 1, padding=0), None, True), (nn.Conv2d(2, 2, 3, padding="valid"), None, True),
        (nn.Conv2d(2, 2, 3, padding="same"), None, False), (nn.Conv2d(2, 2, 3, padding=(0, 1)), None, False),
        (nn.Conv2d(2, 2, 3, groups=2), None, False), (nn.Conv2d(2, 2, 3, bias=False), nn.BatchNorm2d(2), True),
        (nn.Conv2d(2, 2, 3, bias=False), nn.BatchNorm2d(2, track_running_stats=False), False),
    ],
)  # fmt: skip
def test_what_can_be_folded(layer: nn.Module, norm: nn.Module | None, expected: bool) -> None:
    model = nn.ModuleDict({"layer": layer} | ({} if norm is None else {"norm": norm}))
    assert can_fold(model, "layer", None if norm is None else "norm") is expected
