"""Channels last: the same training, faster, where a model allows it."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from snncompress.models import layout
from snncompress.training.learner import Learner
from snncompress.training.options import TrainOptions


class Flat(nn.Module):
    """A convolution and a classifier; ``view`` wants its input in one piece."""

    def __init__(self, view: bool) -> None:
        super().__init__()
        self.view = view
        self.conv, self.norm = nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4)
        self.drop, self.fc = nn.Dropout(0.0), nn.Linear(4 * 6 * 6, 5)  # masks are drawn in the order of the layout
        self.seen: list[bool] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(x.is_contiguous(memory_format=torch.channels_last))
        x = self.drop(self.norm(self.conv(x)).relu())
        return self.fc(x.view(len(x), -1) if self.view else x.flatten(1))  # type: ignore[no-any-return]


def images(channels: int = 3) -> Tensor:
    return torch.randn(6, channels, 8, 8, generator=torch.Generator().manual_seed(1))


def take_steps(model: nn.Module) -> nn.Module:
    learner = Learner(model, None, TrainOptions(lr=0.01))
    torch.manual_seed(2)
    for _ in range(3):
        learner.step(images(), torch.arange(6) % 5, lr=0.01)
    return model


@pytest.mark.parametrize("view", [False, True])
def test_the_weights_are_those_of_plain_images(view: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = Flat(view)
    fast = take_steps(copy.deepcopy(fresh))
    monkeypatch.setattr(layout, "pays", lambda inputs: False)
    plain = take_steps(fresh)
    for name, tensor in fast.state_dict().items():
        torch.testing.assert_close(tensor, plain.state_dict()[name], rtol=1e-4, atol=1e-5)
    assert fast.seen[1:] == [not view] * 3  # type: ignore[index, operator]  # the first was the question
    assert plain.seen == [False] * 3


def test_asking_changes_nothing() -> None:
    model = Flat(view=True)
    model.drop.eval()
    before, state, random = copy.deepcopy(model.state_dict()), model.training, torch.get_rng_state()
    assert not layout.allowed(model, images())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert model.training is state
    assert not model.drop.training
    assert torch.equal(torch.get_rng_state(), random)


def test_where_it_pays() -> None:
    assert layout.pays(images())
    assert layout.pays(images(channels=1))
    assert not layout.pays(torch.zeros(6, 10))
    assert not layout.pays(images().to("meta"))
    assert not layout.pays(torch.zeros(6, 9, 1, 1))  # features


def test_one_channel_is_marked() -> None:
    gray = images(channels=1)
    arranged = layout.channels_last(gray)
    assert torch.equal(arranged, gray)
    assert arranged.stride(1) == 1  # what a convolution chooses its way by
