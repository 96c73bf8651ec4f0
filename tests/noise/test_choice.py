"""Which layers become stochastic, and what is said about names and values that nobody knows."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
from networks import IMAGE, Small
from noisy_layers import METHODS
from torch import nn

from snncompress.errors import UsageError
from snncompress.noise.attach import attach
from snncompress.noise.branch import Reach

ALL = ["conv1", "conv2", "fc1", "fc2"]


class NoLinear(nn.Sequential):
    """Convolutions, and a classifier."""

    def __init__(self) -> None:
        super().__init__(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3), nn.Flatten(), nn.Linear(32, 4))


def one_hidden() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 5), nn.ReLU(), nn.Linear(5, 4))


def chosen(method: str, *layers: str, model: nn.Module | None = None) -> list[str]:
    return list(attach(model or Small(), method, IMAGE, layers=layers or None).branches)


def test_what_each_method_chooses_itself() -> None:
    assert chosen("se-snn") == ALL[:3]  # the classifier stays deterministic
    assert chosen("sparse-vd") == chosen("vd") == ALL
    assert chosen("variance") == ["fc1"]
    assert chosen("variance", model=NoLinear()) == ["2"]  # no hidden linear layer: the last hidden one
    assert chosen("dropout") == ALL[1:]


@pytest.mark.parametrize(
    ("layers", "found"),
    [
        (["conv1"], ["conv1"]),
        (["conv*"], ["conv1", "conv2"]),
        (["fc1", "conv1", "fc1"], ["conv1", "fc1"]),  # in the order of the network, once
        (["all"], ALL),
        (["*"], ALL),
        (["hidden"], ALL[:3]),
        (["inner"], ALL[1:]),
        (["last-hidden"], ["fc1"]),
        (["first-linear"], ["fc1"]),
        (["conv[12]", "fc?"], ALL),
        (["last-hidden", "conv1"], ["conv1", "fc1"]),
        (["fc2"], ["fc2"]),
    ],
)
def test_names_globs_and_places(layers: list[str], found: list[str]) -> None:
    assert chosen("vd", *layers) == found
    if found != ["fc2"]:
        assert chosen("se-snn", *layers) == [name for name in found if name != "fc2"]


def test_a_layer_that_is_called_like_a_place() -> None:
    """A run remembers its layers by name: hung on again, the noise is where it was."""
    model = nn.Sequential(
        OrderedDict(flat=nn.Flatten(), inner=nn.Linear(192, 6), hidden=nn.Linear(6, 5), all=nn.Linear(5, 4))
    )
    for layers, found in ((["hidden"], ["hidden"]), ([Reach.HIDDEN], ["inner", "hidden"]), (["inner"], ["inner"])):
        noise = attach(model, "vd", IMAGE, layers=layers)
        assert list(noise.branches) == found
        assert list(attach(model, "vd", IMAGE, layers=noise.to_json()["layers"]).branches) == found


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("layers", [["all"], ["last-hidden"], ["first-linear"], ["0"]])
def test_every_method_goes_on_every_layer_it_may(method: str, layers: list[str]) -> None:
    found = chosen(method, *layers, model=NoLinear())
    most = 2 if method in ("se-snn", "vib") else 3
    assert found == {"all": ["0", "2", "4"], "0": ["0"]}.get(layers[0], ["2"])[:most]


@pytest.mark.parametrize(
    ("method", "layers", "message"),
    [
        ("se-snn", ["conv1", "conv9"], "no hidden layer is called 'conv9'; hidden layers are: conv1, conv2, fc1"),
        ("se-snn", ["fc2"], "no hidden layer is called 'fc2'"),
        ("vd", ["conv9"], "no layer is called 'conv9'; layers are: conv1, conv2, fc1, fc2"),
        ("vd", ["last_hidden"], "no layer is called 'last_hidden'"),
        ("vd", ["norm1"], "no layer is called 'norm1'"),  # a batch norm is no layer
        ("vd", [""], "no layer is called ''"),
    ],
)
def test_layers_that_are_not_there(method: str, layers: list[str], message: str) -> None:
    model = Small()
    with pytest.raises(UsageError, match=message):
        attach(model, method, IMAGE, layers=layers)
    assert "forward" not in model.conv1.__dict__


def test_places_that_are_empty() -> None:
    """Without a layer that it may touch, no method hangs nothing and says nothing."""
    with pytest.raises(UsageError, match="'inner'; hidden layers are: 1"):
        chosen("se-snn", "inner", model=one_hidden())
    assert chosen("dropout", model=one_hidden()) == ["3"]
    alone = nn.Sequential(nn.Flatten(), nn.Linear(192, 4))
    for method, layers, message in (
        ("se-snn", [], "no hidden convolution or linear layer"),
        ("dropout", [], "'inner'; layers are: 1"),
        ("variance", [], "'first-linear'; layers are: 1"),
        ("vd", ["hidden"], "'hidden'; layers are: 1"),
    ):
        with pytest.raises(UsageError, match=message):
            chosen(method, *layers, model=alone)
    assert chosen("vd", model=alone) == chosen("variance", "1", model=alone) == ["1"]


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("se-sn", {}, r"unknown method 'se-sn'; did you mean 'se-snn'\?"),
        ("se-snn", {"omga": 1}, r"unknown option of method se-snn 'omga'; did you mean 'omega'\?"),
        ("se-snn", {"omega": "much"}, "method se-snn: option omega cannot be 'much'"),
        ("se-snn", {"omega": None}, "method se-snn: option omega cannot be 'None'"),
        ("se-snn", {"omega": -1}, "option omega=-1 is out of range"),
        ("se-snn", {"margin": "nan"}, "option margin=nan is out of range"),
        ("se-snn", {"log_sigma": 900}, "option log_sigma=900 is out of range"),
        ("se-snn", {"log_sigma": -900}, "option log_sigma=-900 is out of range"),
        ("se-snn", {"aggregate": "neurons"}, r"unknown aggregate of method se-snn 'neurons'; did you mean 'neuron'\?"),
        ("se-snn", {"aggregate": 7}, r"unknown aggregate of method se-snn '7' \(known: both, neuron, sample\)"),
        ("vd", {"alpha": "weigth"}, r"unknown alpha of method vd 'weigth'; did you mean 'weight'\?"),
        ("vd", {"prior": "log_uniform"}, r"unknown prior of method vd 'log_uniform'; did you mean 'log-uniform'\?"),
        (
            "variance",
            {"noise": "beta"},
            r"unknown noise of method variance 'beta' \(known: bernoulli, gaussian, uniform",
        ),
        ("dropout", {"noise": "uniform"}, r"unknown noise of method dropout 'uniform' \(known: bernoulli, beta, gauss"),
        ("variance", {"kl_scale": 1}, "unknown option of method variance 'kl_scale'"),
    ],
)
def test_wrong_names_and_values(method: str, options: dict[str, Any], message: str) -> None:
    model = Small()
    with pytest.raises(UsageError, match=message) as caught:
        attach(model, method, IMAGE, options)
    assert "\n" not in str(caught.value)
    assert "forward" not in model.conv1.__dict__
