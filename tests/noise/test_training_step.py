"""A training step with every method and every choice: on all architectures, on one device, in all precisions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from networks import IMAGE, Small, randomize
from noisy_layers import METHODS, VARIANTS, make_branch, make_layer
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from snncompress import registry
from snncompress.noise.attach import Noise, attach
from snncompress.noise.branch import Branch, Mode, Reach
from snncompress.training.learner import Learner
from snncompress.training.options import OptimizerName, TrainOptions

LONGER = {"resnet32", "resnet44", "resnet56", "resnet110", "vgg16-c100"}  # as their shorter relatives
MODELS = [name for name in registry.entries("models") if name not in LONGER]


def build(name: str) -> tuple[nn.Module, tuple[int, int, int]]:
    module = registry.load("models", name)
    return getattr(module, name.replace("-", "_"))(), module.INPUT_SHAPE


def untouched(learner: Learner) -> set[str]:
    """The parameters that have no gradient."""
    return {name for name, parameter in learner.parameters.items() if parameter.grad is None}


def gradients(noise: Noise) -> list[Tensor]:
    """Of all parameters of the noise that learn."""
    found = [parameter.grad for _, parameter in noise.named_parameters() if parameter.requires_grad]
    assert all(gradient is not None for gradient in found)
    return found  # type: ignore[return-value]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", MODELS)
def test_every_architecture(method: str, name: str) -> None:
    model, shape = build(name)
    noise = attach(model, method, shape)
    hollow = noise.find_hollow()  # by construction: such a layer's own weight is not used
    learner = Learner(model, noise, TrainOptions())
    before = {name: value.clone() for name, value in noise.state_dict().items()}
    learner.step(torch.rand(2, *shape), torch.tensor([1, 2]), lr=1e-3)
    learner.check_finite()
    assert learner.means()["penalty"] >= 0
    assert untouched(learner) == {f"model.{layer}.weight" for layer in hollow}
    assert all(torch.equal(value, before[name]) != value.requires_grad for name, value in noise.named_parameters())


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


def check_one_device(
    name: str, method: str, options: dict[str, str], optimizer: OptimizerName, layers: list[str] | None = None
) -> None:
    with torch.device("meta"):
        model, shape = build(name)
    noise = attach(model, method, shape, options, layers)
    learner = Learner(model, noise, TrainOptions(optimizer=optimizer))
    images, labels = torch.empty(4, *shape, device="meta"), torch.empty(4, dtype=torch.long, device="meta")
    with OneDevice() as watch:
        learner.step(images, labels, lr=1e-3)
        for mode in modes(noise):
            with noise.mode(mode):
                model(images)
    assert watch.operations > 50
    assert untouched(learner) <= {f"model.{layer}.weight" for layer in noise.branches}
    assert all(p.grad is None or p.grad.device.type == "meta" for p in learner.parameters.values())


def modes(noise: Noise) -> list[Mode]:
    """What observes keeps its statistics on the CPU, for Apple's devices have no double precision."""
    watches = any(type(branch).observe is not Branch.observe for branch in noise.branches.values())
    return [mode for mode in Mode if not (watches and mode is Mode.OBSERVE)]


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_choice_stays_on_one_device(variant: str) -> None:
    check_one_device("lenet5", *VARIANTS[variant], OptimizerName.ADAM, [Reach.ALL])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["resnet20", "wrn16-2"])
def test_batch_norms_stay_on_one_device(method: str, name: str) -> None:
    check_one_device(name, method, {}, OptimizerName.SGD)


@pytest.mark.parametrize("variant", VARIANTS)
class TestPrecision:
    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
    def test_outputs_have_the_type_of_the_layer(self, variant: str, dtype: torch.dtype) -> None:
        for name in ("linear", "groups"):
            layer, x = make_layer(name, dtype=dtype)
            branch = make_branch(layer, variant)
            for sample in (branch.sample, branch.sample_zero, branch.mean):
                made = sample(layer, x)
                assert made.dtype == dtype
                assert made.shape == layer(x).shape
                assert bool(torch.isfinite(made).all())

    def test_autocast(self, variant: str) -> None:
        method, options = VARIANTS[variant]
        model, x = randomize(Small()), torch.randn(64, *IMAGE)
        noise = attach(model, method, IMAGE, options)
        for mode in (Mode.SAMPLE, Mode.ZERO, Mode.MEAN):
            spreads = []
            for enabled in (False, True):
                torch.manual_seed(0)
                with noise.mode(mode), torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
                    outputs = model(x)
                penalty = noise.penalty()
                assert penalty.dtype == torch.float32
                (outputs.float().square().mean() + penalty).backward()
                spreads.append(float(outputs.detach().float().std()))
            assert spreads[1] == pytest.approx(spreads[0], rel=0.2)
        assert all(p.grad is None or bool(torch.isfinite(p.grad).all()) for p in model.parameters())
        assert all(bool(torch.isfinite(gradient).all()) for gradient in gradients(noise))


@pytest.mark.parametrize("variant", VARIANTS)
class TestOddModels:
    def test_weights_that_do_not_learn(self, variant: str) -> None:
        method, options = VARIANTS[variant]
        model = Small().requires_grad_(False)
        model.fc2.requires_grad_()
        noise = attach(model, method, IMAGE, options)
        before = {name: value.clone() for name, value in model.state_dict().items()}
        learner = Learner(model, noise, TrainOptions())
        learner.step(torch.randn(3, *IMAGE), torch.tensor([0, 1, 2]), lr=1e-2)
        learner.check_finite()
        assert all(bool(gradient.any()) for gradient in gradients(noise))
        assert torch.equal(model.conv1.weight, before["conv1.weight"])
        noise.settle()

    def test_a_layer_called_twice(self, variant: str) -> None:
        method, options = VARIANTS[variant]
        twice = nn.Linear(12, 12)
        model = nn.Sequential(nn.Flatten(), twice, nn.ReLU(), twice, nn.ReLU(), nn.Linear(12, 4))
        noise = attach(model, method, (3, 2, 2), options, ["1"])
        x = torch.randn(3, 3, 2, 2)
        (model(x).sum() + noise.penalty()).backward()
        assert all(bool(gradient.any()) for gradient in gradients(noise))
        noise.settle()
        with noise.mode(Mode.MEAN):
            mean = model(x)
        noise.detach()
        assert torch.equal(model(x), mean)

    def test_a_layer_of_zeros(self, variant: str) -> None:
        method, options = VARIANTS[variant]
        model = Small()
        nn.init.zeros_(model.conv2.weight)
        noise = attach(model, method, IMAGE, options, ["conv2"])
        learner = Learner(model, noise, TrainOptions())
        for _ in range(2):
            learner.step(torch.randn(3, *IMAGE), torch.tensor([0, 1, 2]), lr=1e-2)
        learner.check_finite()
        noise.settle()

    @pytest.mark.parametrize("name", ["conv", "groups", "reflect"])
    def test_an_image_without_a_batch(self, variant: str, name: str) -> None:
        layer, x = make_layer(name)
        branch = make_branch(layer, variant)
        for sample in (branch.sample, branch.sample_zero, branch.mean):
            assert sample(layer, x[0]).shape == layer(x[0]).shape
        torch.testing.assert_close(branch.mean(layer, x[0]), branch.mean(layer, x)[0])
