"""What holds for every noise method: on, it samples; off, the model is what it was; settled, its mean is left."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from networks import IMAGE, Small, batches_of, randomize, some_of
from noisy_layers import METHODS, VARIANTS

from snncompress import registry
from snncompress.models.channels import trace_channels
from snncompress.noise.attach import Noise, attach, make_options
from snncompress.noise.branch import Branch, Mode, Reach
from snncompress.pruning.compaction import compact
from snncompress.pruning.coupling import find_groups
from snncompress.training.epoch_end import observe


def disturb(noise: Noise, std: float = 1.0) -> None:
    """Gives every parameter of the noise a value of its own."""
    with torch.no_grad():
        for _, parameter in noise.named_parameters():
            parameter.add_(std * torch.randn_like(parameter))


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
        assert not torch.equal(model(x), plain(x))  # on
        model.load_state_dict(plain.state_dict())
        noise.detach()
        assert torch.equal(model(x), plain(x))
        noise.detach()  # twice does no harm

    @pytest.mark.parametrize("training", [False, True])
    def test_settled_the_plain_model_is_that_of_mean_propagation(self, method: str, training: bool) -> None:
        model, x = randomize(Small()).train(training), torch.randn(5, *IMAGE)
        noise = attach(model, method, IMAGE)
        disturb(noise, 4.0)
        with noise.mode(Mode.MEAN), torch.no_grad():
            mean = model(x)
        noise.settle()
        for mode in (Mode.MEAN, Mode.OBSERVE):
            with noise.mode(mode), torch.no_grad():
                assert torch.equal(model(x), mean)
        hollow = noise.find_hollow()
        assert noise.to_json()["hollow"] == hollow  # as before settling
        noise.detach()
        assert torch.equal(model(x), mean)

    def test_more_training_starts_from_the_same_distribution(self, method: str) -> None:
        model, x = randomize(Small()).double(), torch.randn(5, *IMAGE).double()
        noise = attach(model, method, IMAGE)
        disturb(noise, 2.0)
        noise.settle()
        outputs = []
        for _ in range(2):
            for mode in (Mode.MEAN, Mode.ZERO, Mode.SAMPLE):
                torch.manual_seed(1)
                with noise.mode(mode), torch.no_grad():
                    outputs.append(model(x))
            noise.unsettle()
        for before, after in zip(outputs[:3], outputs[3:], strict=True):
            torch.testing.assert_close(after, before)

    def test_the_model_keeps_its_parameters(self, method: str) -> None:
        model = Small()
        before = [*model.state_dict()], [id(p) for p in model.parameters()], dict(model.conv1.__dict__)
        noise = attach(model, method, IMAGE, layers=["conv1", "fc1"])
        assert ([*model.state_dict()], [id(p) for p in model.parameters()]) == before[:2]
        assert not {id(p) for _, p in noise.named_parameters()} & set(before[1])
        noise.settle()
        noise.detach()
        assert ([*model.state_dict()], [id(p) for p in model.parameters()], dict(model.conv1.__dict__)) == before

    def test_state_goes_to_another_model(self, method: str) -> None:
        model, x = randomize(Small()), torch.randn(5, *IMAGE)
        noise = attach(model, method, IMAGE)
        disturb(noise, 0.1)
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

    def test_penalties_and_kls_add_up(self, method: str) -> None:
        noise = attach(model := Small(), method, IMAGE)
        x = torch.randn(5, *IMAGE)
        torch.manual_seed(1)
        model(x)
        apart = sum(branch.penalty(model.get_submodule(name)) for name, branch in noise.branches.items())
        torch.manual_seed(1)  # what a layer pays may depend on the noise before it
        model(x)
        torch.testing.assert_close(noise.penalty(), torch.as_tensor(apart))
        with torch.no_grad():
            kls = [branch.kl(model.get_submodule(name)) for name, branch in noise.branches.items()]
        assert noise.kl() == (None if kls[0] is None else pytest.approx(float(sum(kls)), rel=1e-6))  # type: ignore[arg-type]

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

    def test_noise_is_drawn_anew_but_not_around_the_mean(self, method: str) -> None:
        model, x = randomize(Small()), torch.randn(5, *IMAGE)
        noise = attach(model, method, IMAGE)
        random = torch.get_rng_state()
        with noise.mode(Mode.MEAN):
            assert torch.equal(model(x), model(x))
            assert torch.equal(torch.get_rng_state(), random)  # a check of the mean may not disturb a resumed run
        for mode in (Mode.SAMPLE, Mode.ZERO):
            with noise.mode(mode):
                assert not torch.equal(model(x), model(x))


@pytest.mark.parametrize("variant", VARIANTS)
class TestCompaction:
    def test_axes_describe_the_branch(self, variant: str) -> None:
        method, options = VARIANTS[variant]
        model = Small()
        for name, branch in attach(model, method, IMAGE, options, [Reach.HIDDEN]).branches.items():
            weight = model.get_parameter(f"{name}.weight")
            assert set(branch.axes) == {leaf for leaf, _ in branch.named_parameters()}
            for leaf, axes in branch.axes.items():
                sizes = {"out": weight.shape[0], "in": weight.shape[1], "read": weight.shape[1], "": 1}
                shape = branch.get_parameter(leaf).shape
                assert all(shape[i] == sizes[axis] for i, axis in enumerate(axes))

    def test_branches_shrink_with_their_layers(self, variant: str) -> None:
        method, options = VARIANTS[variant]
        model, x = randomize(Small()), torch.randn(4, *IMAGE)
        noise = attach(model, method, IMAGE, options, [Reach.HIDDEN])
        disturb(noise)
        noise.detach()
        before = noise.state_dict()
        generator = torch.Generator().manual_seed(1)
        groups = find_groups(trace_channels(model, IMAGE))
        removed = some_of(groups, lambda: float(torch.rand((), generator=generator)) < 0.4)
        smaller, cuts = compact(model, removed, noise)
        fresh = attach(copy.deepcopy(smaller), method, IMAGE, options, [Reach.HIDDEN])
        shapes = {name: value.shape for name, value in fresh.state_dict().items()}
        assert {name: value.shape for name, value in noise.state_dict().items()} == shapes
        for name, value in noise.state_dict().items():
            assert torch.equal(value, cuts[f"noise.{name}"](before[name]))
        noise.attach(smaller)
        for mode in Mode:
            with noise.mode(mode):
                assert bool(torch.isfinite(smaller(x)).all())
        (smaller(x).sum() + noise.penalty()).backward()
        assert all(p.grad is not None for _, p in noise.named_parameters() if p.requires_grad)
        noise.settle()


def test_modes_nest_and_survive_errors() -> None:
    noise = attach(Small(), "se-snn", IMAGE)
    modes = {branch.mode for branch in noise.branches.values()}
    with noise.mode(Mode.MEAN):
        with pytest.raises(ValueError, match="stop"), noise.mode(Mode.OBSERVE):
            raise ValueError("stop")
        assert {branch.mode for branch in noise.branches.values()} == {Mode.MEAN}
    assert {branch.mode for branch in noise.branches.values()} == modes


def test_norms_are_found_in_the_graph() -> None:
    module = registry.load("models", "wrn16-2")
    model, shape = module.wrn16_2(), module.INPUT_SHAPE
    noise = attach(model, "se-snn", shape, graph=trace_channels(model, shape))
    assert noise.norms["block2.layer.0.conv1"] == "block2.layer.0.bn2"
    assert "block2.layer.0.conv2" not in noise.norms


def test_methods_share_a_model() -> None:
    plain = randomize(Small())
    model, x = copy.deepcopy(plain), torch.randn(5, *IMAGE)
    first = attach(model, "se-snn", IMAGE, layers=["conv*"])
    second = attach(model, "variance", IMAGE, layers=["fc1"])
    first.detach()
    with second.mode(Mode.MEAN):
        assert not torch.equal(model(x), plain(x))
    second.detach()
    assert torch.equal(model(x), plain(x))
