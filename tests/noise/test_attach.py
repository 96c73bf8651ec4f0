"""What holds for every noise method: on, it samples and trains; off, the model is what it was."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from networks import IMAGE, Small, batches_of, randomize
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from snncompress import registry
from snncompress.errors import UsageError
from snncompress.models.channels import trace_channels
from snncompress.noise.attach import attach, make_options
from snncompress.noise.branch import Branch, Mode
from snncompress.training.learner import Learner
from snncompress.training.loop import observe
from snncompress.training.options import OptimizerName, TrainOptions

METHODS = list(registry.entries("methods"))
MODELS = list(registry.entries("models"))


def build(name: str, **arguments: Any) -> tuple[nn.Module, tuple[int, int, int]]:
    module = registry.load("models", name)
    return getattr(module, name.replace("-", "_"))(**arguments), module.INPUT_SHAPE


@pytest.mark.parametrize("method", METHODS)
class TestContract:
    def test_the_module_has_its_parts(self, method: str) -> None:
        module = registry.load("methods", method)
        assert issubclass(module.NoiseBranch, Branch)
        assert module.Options() == make_options(method, {})
        with pytest.raises(AttributeError):  # frozen
            module.Options().anything = 1

    @pytest.mark.parametrize("training", [False, True])
    def test_off_gives_the_plain_logits(self, method: str, training: bool) -> None:
        plain = randomize(Small()).train(training)
        model, x = copy.deepcopy(plain), torch.randn(5, *IMAGE)
        noise = attach(model, method, IMAGE)
        for mode in (Mode.MEAN, Mode.OBSERVE):
            with noise.mode(mode):
                assert torch.equal(model(x), plain(x))
        model.load_state_dict(plain.state_dict())
        assert not torch.equal(model(x), plain(x))  # on again
        model.load_state_dict(plain.state_dict())
        noise.detach()
        assert torch.equal(model(x), plain(x))
        noise.detach()  # twice does no harm

    def test_the_model_keeps_its_parameters(self, method: str) -> None:
        model = Small()
        before = [*model.state_dict()], [id(p) for p in model.parameters()], dict(model.conv1.__dict__)
        noise = attach(model, method, IMAGE)
        assert ([*model.state_dict()], [id(p) for p in model.parameters()]) == before[:2]
        assert not {id(p) for _, p in noise.named_parameters()} & set(before[1])
        noise.detach()
        assert ([*model.state_dict()], [id(p) for p in model.parameters()], dict(model.conv1.__dict__)) == before

    def test_all_hidden_layers_are_noisy_and_the_classifier_is_not(self, method: str) -> None:
        assert list(attach(Small(), method, IMAGE).branches) == ["conv1", "conv2", "fc1"]
        assert list(attach(Small(), method, IMAGE, layers=["conv*"]).branches) == ["conv1", "conv2"]

    def test_axes_describe_the_branch(self, method: str) -> None:
        model = Small()
        for name, branch in attach(model, method, IMAGE).branches.items():
            weight = model.get_parameter(f"{name}.weight")
            assert set(branch.axes) == {leaf for leaf, _ in branch.named_parameters()}
            for leaf, axes in branch.axes.items():
                sizes = {"out": weight.shape[0], "in": weight.shape[1]}
                shape = branch.get_parameter(leaf).shape
                assert all(shape[i] == sizes[axis] for i, axis in enumerate(axes) if axis)

    def test_state_goes_to_another_model(self, method: str) -> None:
        model, x = randomize(Small()), torch.randn(5, *IMAGE)
        noise = attach(model, method, IMAGE)
        for _, parameter in noise.named_parameters():
            nn.init.normal_(parameter, std=0.1)
        record = noise.to_json()
        assert make_options(record["method"], record["options"]) == noise.options
        torch.manual_seed(1)
        expected = model(x)
        noise.detach()
        other = copy.deepcopy(model)
        again = attach(other, record["method"], IMAGE, record["options"], record["layers"])
        again.load_state_dict(noise.state_dict())
        torch.manual_seed(1)
        assert torch.equal(other(x), expected)

    def test_penalties_add_up(self, method: str) -> None:
        noise = attach(model := Small(), method, IMAGE)
        torch.manual_seed(0)
        model(x := torch.randn(5, *IMAGE))
        apart = sum(branch.penalty() for branch in noise.branches.values())
        torch.manual_seed(0)
        model(x)
        assert torch.allclose(noise.penalty(), torch.as_tensor(apart))
        assert float(noise.penalty()) == 0  # nothing since the last call

    def test_observing_changes_nothing_and_gives_a_summary(self, method: str) -> None:
        model = randomize(Small())
        noise = attach(model, method, IMAGE)
        before = copy.deepcopy(model.state_dict()), noise.state_dict()
        observe(model, noise, batches_of(torch.randn(6, *IMAGE)))
        assert all(torch.equal(value, before[0][key]) for key, value in model.state_dict().items())
        assert all(torch.equal(value, before[1][key]) for key, value in noise.state_dict().items())
        assert all(math.isfinite(v) for values in noise.summary().values() for v in values.values())
        assert set(noise.summary()) == set(noise.branches)
        assert all(branch.mode is Mode.SAMPLE for branch in noise.branches.values())

    @pytest.mark.parametrize("name", MODELS)
    def test_a_training_step_of_every_architecture(self, method: str, name: str) -> None:
        if name in ("resnet44", "resnet56", "resnet110"):
            pytest.skip("as resnet20, only longer")
        model, shape = build(name)
        noise = attach(model, method, shape)
        learner = Learner(model, noise, TrainOptions())
        before = {key: value.detach().clone() for key, value in noise.named_parameters()}
        learner.step(torch.rand(2, *shape), torch.tensor([1, 2]), lr=1e-3)
        learner.check_finite()
        assert learner.means()["penalty"] > 0
        assert all(parameter.grad is not None for parameter in learner.parameters.values())
        assert all(not torch.equal(value, before[key]) for key, value in noise.named_parameters())

    @pytest.mark.parametrize("name", ["lenet5", "vgg16", "resnet20", "wrn16-2"])
    @pytest.mark.parametrize("optimizer", OptimizerName)
    def test_a_step_stays_on_one_device(self, method: str, name: str, optimizer: OptimizerName) -> None:
        model, shape = build(name)
        model.to("meta")
        noise = attach(model, method, shape)
        learner = Learner(model, noise, TrainOptions(optimizer=optimizer))
        images, labels = torch.empty(4, *shape, device="meta"), torch.empty(4, dtype=torch.long, device="meta")
        with OneDevice() as watch:
            learner.step(images, labels, lr=1e-3)
            with noise.mode(Mode.MEAN):
                model(images)
        assert watch.operations > 100
        assert all(p.grad is not None and p.grad.device.type == "meta" for p in learner.parameters.values())


class OneDevice(TorchDispatchMode):
    """Asserts that the tensors of an operation are on one device; 0-dimensional ones may be elsewhere."""

    operations = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        tensors = [t for t in tree_leaves((args, kwargs, out)) if isinstance(t, Tensor) and t.dim() > 0]
        assert len({tensor.device for tensor in tensors}) <= 1, func
        self.operations += 1
        return out


def test_the_watch_sees_a_foreign_tensor() -> None:
    with OneDevice(), pytest.raises(AssertionError):
        torch.zeros(3).to("meta")


def test_modes_nest_and_survive_errors() -> None:
    noise = attach(Small(), "se-snn", IMAGE)
    modes = {branch.mode for branch in noise.branches.values()}
    with noise.mode(Mode.MEAN):
        with pytest.raises(ValueError, match="stop"), noise.mode(Mode.OBSERVE):
            raise ValueError("stop")
        assert {branch.mode for branch in noise.branches.values()} == {Mode.MEAN}
    assert {branch.mode for branch in noise.branches.values()} == modes


def test_norms_are_found_in_the_graph() -> None:
    model, shape = build("wrn16-2")
    noise = attach(model, "se-snn", shape, graph=trace_channels(model, shape))
    assert noise.norms["block2.layer.0.conv1"] == "block2.layer.0.bn2"
    assert "block2.layer.0.conv2" not in noise.norms


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "se-sn"}, r"unknown method 'se-sn'; did you mean 'se-snn'\?"),
        ({"options": {"omga": 1}}, r"unknown option of method se-snn 'omga'; did you mean 'omega'\?"),
        ({"options": {"omega": "much"}}, "method se-snn: option omega cannot be 'much'"),
        ({"options": {"omega": None}}, "method se-snn: option omega cannot be 'None'"),
        ({"options": {"omega": -1}}, "option omega=-1 is out of range"),
        ({"options": {"margin": "nan"}}, "option margin=nan is out of range"),
        ({"options": {"log_sigma": 900}}, "option log_sigma=900 is out of range"),
        ({"options": {"log_sigma": -900}}, "option log_sigma=-900 is out of range"),
        ({"layers": ["conv1", "conv9"]}, "no hidden layer is called 'conv9'; hidden layers are: conv1, conv2, fc1"),
        ({"layers": ["fc2"]}, "no hidden layer is called 'fc2'"),  # the classifier stays deterministic
    ],
)
def test_wrong_names_and_values(arguments: dict[str, Any], message: str) -> None:
    model = Small()
    with pytest.raises(UsageError, match=message):
        attach(model, **{"method": "se-snn", "input_shape": IMAGE, **arguments})
    assert "forward" not in model.conv1.__dict__


def test_a_model_without_hidden_layers() -> None:
    with pytest.raises(UsageError, match="no hidden convolution or linear layer"):
        attach(nn.Sequential(nn.Flatten(), nn.Linear(192, 4)), "se-snn", IMAGE)
