"""Attacks: what holds for all of them, each against its equation, and the noise that must not hide the way."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from networks import IMAGE as SMALL_IMAGE
from networks import Small, randomize
from small_data import CLASSES, IMAGE, small_data, small_run
from torch import Tensor, nn

import snncompress
from snncompress import AttackPlan, TrainOptions, attack, registry, train
from snncompress.data.dataset import Dataset, Normalization, TensorImages, to_float
from snncompress.errors import UsageError
from snncompress.evaluation.attacks import cw, fgs
from snncompress.evaluation.attacks.plan import parse_eps
from snncompress.evaluation.attacks.victim import Gradient, Member, Victim
from snncompress.noise.attach import attach
from snncompress.run import NoiseRecord, Run

ATTACKS = list(registry.entries("attacks"))
METHODS = list(registry.entries("methods"))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return small_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def plain(data: Dataset) -> Run:
    return train(small_run(), data, TrainOptions(epochs=12, lr=0.01, batch_size=64), method="none")


@pytest.fixture(scope="module")
def stochastic(data: Dataset) -> Run:
    """All that its first layer knows is in variances: single gradients say little."""
    options = TrainOptions(epochs=25, lr=0.01, batch_size=64)
    return train(small_run(), data, options, method="variance", layers=["1"])


def pixels_of(data: Dataset, count: int = 24) -> tuple[Tensor, Tensor]:
    images, labels = data.train.batch(torch.arange(count))
    return to_float(images), labels


def with_noise(method: str, model: nn.Module | None = None, **options: Any) -> Run:
    run = snncompress.wrap(model or randomize(Small()), SMALL_IMAGE, classes=CLASSES)
    copied = copy.deepcopy(run.model)
    noise = attach(copied, method, SMALL_IMAGE, options)
    with torch.no_grad():
        for _, parameter in noise.named_parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    noise.settle()
    noise.detach()
    return replace(run, model=copied, noise=NoiseRecord.of(noise))


@pytest.mark.parametrize("name", ATTACKS)
class TestEveryAttack:
    def test_changes_stay_in_range(self, name: str, data: Dataset, plain: Run) -> None:
        pixels, labels = pixels_of(data)
        module = registry.load("attacks", name)
        plan = AttackPlan((0.0, 0.07, 0.2), steps=6, searches=2)
        made = list(module.attack(Victim([plain]), pixels, labels, plan))
        lengths = [False] * 3 if name != "cw" else [True] * 3
        for eps, attacked, euclidean in zip(plan.eps, made, lengths, strict=False):
            assert attacked.shape == pixels.shape
            assert float(attacked.min()) >= 0
            assert float(attacked.max()) <= 1
            change = (attacked - pixels).flatten(1)
            size = change.norm(dim=1) if euclidean else change.abs().amax(1)
            assert float(size.max()) <= eps + 1e-6
        torch.testing.assert_close(made[0], pixels)

    def test_it_is_repeatable_and_leaves_the_run_alone(self, name: str, data: Dataset, stochastic: Run) -> None:
        before = copy.deepcopy(stochastic.model.state_dict())
        plan = AttackPlan(steps=2, searches=1, gradient_samples=3, ensemble_samples=3, limit=16, seeds=2)
        random = torch.get_rng_state()
        first, again = (attack(stochastic, data.validation, name, plan) for _ in range(2))
        assert first.to_json() == again.to_json()
        assert torch.equal(torch.get_rng_state(), random)
        assert all(torch.equal(value, before[key]) for key, value in stochastic.model.state_dict().items())
        assert first.accuracy[0] != first.accuracy[1]  # seeds differ
        assert attack(stochastic, data.validation, name, plan, seed=1).accuracy[0] == first.accuracy[1]

    def test_it_does_harm_and_more_with_more_strength(self, name: str, data: Dataset, plain: Run) -> None:
        plan = AttackPlan((0.0, 1.0, 3.0) if name == "cw" else (0.0, 0.1, 0.3), steps=30, searches=3)
        found = attack(plain, data.validation, name, plan)
        assert found.mean()[0] > 90
        assert found.mean()[2] < 10
        assert found.mean() == sorted(found.mean(), reverse=True)
        assert found.mean("success") == pytest.approx([100 - accuracy for accuracy in found.mean()])
        assert found.l2[0] == pytest.approx(0, abs=1e-6)
        assert found.l2 == tuple(sorted(found.l2))

    def test_aimed_at_a_class(self, name: str, data: Dataset, plain: Run) -> None:
        plan = AttackPlan((0.0, 4.0) if name == "cw" else (0.0, 0.4), targeted=True, steps=30, searches=3)
        found = attack(plain, data.validation, name, plan)
        assert found.mean("success")[0] < 10
        assert found.mean("success")[1] > 70

    @pytest.mark.parametrize("method", METHODS)
    def test_every_kind_of_noise(self, name: str, method: str) -> None:
        run = with_noise(method)
        images = TensorImages(torch.rand(4, *SMALL_IMAGE), torch.tensor([0, 1, 2, 3]), device=torch.device("cpu"))
        plan = AttackPlan((0.0, 0.5), steps=2, searches=1, gradient_samples=2, ensemble_samples=2)
        found = attack(run, images, name, plan)
        assert found.l2[1] > 0.1  # there was a gradient
        assert found.images == 4


def test_fgs_by_its_formula(data: Dataset, plain: Run) -> None:
    pixels, labels = pixels_of(data)
    x = pixels.clone().requires_grad_()
    F.cross_entropy(plain.model(plain.normalization(x)), labels).backward()
    assert x.grad is not None
    plan = AttackPlan((0.1, 0.25))
    for eps, attacked in zip(plan.eps, fgs.attack(Victim([plain]), pixels, labels, plan), strict=True):
        torch.testing.assert_close(attacked, (pixels + eps * x.grad.sign()).clamp(0, 1))
    targeted = replace(plan, targeted=True)
    attacked = next(fgs.attack(Victim([plain]), pixels, labels, targeted))
    torch.testing.assert_close(attacked, (pixels - 0.1 * x.grad.sign()).clamp(0, 1))


@pytest.mark.parametrize("gradient", [Gradient.EXPECTED, Gradient.AVERAGED])
@pytest.mark.parametrize("networks", [1, 2])
def test_the_direction_is_that_of_the_loss(gradient: Gradient, networks: int) -> None:
    """Image by image a positive multiple of what automatic differentiation says, in double precision."""
    runs = [with_noise("se-snn", log_sigma=-1) for _ in range(networks)]
    pixels, labels = torch.rand(5, *SMALL_IMAGE), torch.tensor([0, 1, 2, 3, 0])
    victim = Victim(runs, gradient=gradient, gradient_samples=7)
    torch.manual_seed(1)
    ours = victim.ascent(pixels, labels).flatten(1)
    torch.manual_seed(1)
    x = pixels.clone().requires_grad_()
    log_p = victim.logits(x, 7).double().log_softmax(-1)[:, torch.arange(5), labels]  # (K, B)
    assert len(log_p) == 7 * networks
    loss = -log_p.mean(0) if gradient is Gradient.EXPECTED else -log_p.logsumexp(0)
    theirs = torch.autograd.grad(loss.sum(), x)[0].flatten(1)
    torch.testing.assert_close(F.normalize(ours), F.normalize(theirs), rtol=1e-3, atol=1e-4)


def test_large_logits_hide_nothing(data: Dataset, plain: Run) -> None:
    """p_y is 1 to the last digit: what float32 makes of it is no direction, and no defence."""
    loud = replace(plain, model=copy.deepcopy(plain.model))
    last = [module for module in loud.model.modules() if isinstance(module, nn.Linear)][-1]
    with torch.no_grad():
        last.weight.mul_(1000)
        assert last.bias is not None
        last.bias.mul_(1000)
    plan = AttackPlan((0.1, 0.2, 0.3))
    assert attack(loud, data.validation, "fgs", plan).mean()[2] < 10
    rounded = attack(loud, data.validation, "fgs", plan, gradient=Gradient.ROUNDED).mean()
    assert rounded[2] > 50
    assert attack(plain, data.validation, "fgs", plan, gradient=Gradient.ROUNDED).mean()[2] < 10


@pytest.mark.parametrize("name", ["fgs", "ifgs", "pgd"])
def test_averaged_gradients_aim_at_least_as_well_as_single_ones(name: str, data: Dataset, stochastic: Run) -> None:
    accuracies = [
        sum(attack(stochastic, data.train, name, AttackPlan((0.1, 0.2), steps=5, gradient_samples=k)).mean())
        for k in (1, 30)
    ]
    assert accuracies[1] <= accuracies[0]
    if name == "fgs":
        assert accuracies[1] < accuracies[0] - 2  # two strengths together, in points, on 486 images


def test_predictions_are_averages_of_probabilities(stochastic: Run, plain: Run, data: Dataset) -> None:
    pixels, _ = pixels_of(data)
    victim = Victim([stochastic, plain], ensemble_samples=6)
    torch.manual_seed(2)
    found = victim.predict(pixels).exp()
    torch.manual_seed(2)
    with torch.no_grad():
        each = torch.cat([Member(run, torch.device("cpu")).logits(pixels, 6) for run in (stochastic, plain)])
    torch.testing.assert_close(found, each.softmax(-1).mean(0))
    torch.testing.assert_close(found.sum(-1), torch.ones(len(pixels)))
    torch.testing.assert_close(
        Victim([plain]).predict(pixels), plain.model(plain.normalization(pixels)).log_softmax(-1).detach()
    )


def test_without_samples_the_mean_network_is_attacked(data: Dataset) -> None:
    run = with_noise("se-snn", log_sigma=2)
    bare = replace(run, noise=None)
    images = TensorImages(torch.rand(9, *SMALL_IMAGE), torch.arange(9) % 4, device=torch.device("cpu"))
    for name in ("fgs", "cw"):
        plan = AttackPlan((0.1,), steps=3, searches=1, ensemble_samples=0)
        assert attack(run, images, name, plan).to_json() == attack(bare, images, name, plan).to_json()


class _Shortcut(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.last = nn.Linear(192, 192), nn.Linear(192, 192), nn.Linear(192, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.one(x.flatten(1)))
        return self.last(x + F.relu(self.two(x)))  # type: ignore[no-any-return]


@pytest.mark.parametrize("layer", ["one", "two"])
def test_samples_share_what_comes_before_the_noise_where_that_is_right(layer: str) -> None:
    run = snncompress.wrap(_Shortcut(), SMALL_IMAGE, classes=CLASSES)
    noise = attach(model := copy.deepcopy(run.model), "se-snn", SMALL_IMAGE, {"log_sigma": -19}, [layer])
    noise.detach()
    member = Member(replace(run, model=model, noise=NoiseRecord.of(noise)), torch.device("cpu"))
    pixels = torch.rand(5, *SMALL_IMAGE)
    found = member.logits(pixels, 3)
    wanted = run.model(pixels)
    for sample in found:  # hardly any noise: all samples are the network itself
        torch.testing.assert_close(sample, wanted, rtol=1e-4, atol=1e-5)
    assert member._shared is (layer == "one")  # behind the second there is a shortcut around the noise


def test_what_is_shared_runs_once(data: Dataset) -> None:
    run = small_run()
    noise = attach(model := copy.deepcopy(run.model), "se-snn", IMAGE, {"log_sigma": 0}, ["3"])
    noise.detach()
    member = Member(replace(run, model=model, noise=NoiseRecord.of(noise)), torch.device("cpu"))
    sizes: list[int] = []
    member.model.get_submodule("1").register_forward_hook(lambda module, inputs, output: sizes.append(len(output)))
    made = member.logits(torch.rand(6, *IMAGE), 9)
    assert made.shape == (9, 6, 4)
    assert sizes == [6]
    assert float(made.std(0).min()) > 0  # every sample has noise of its own


def test_cw_finds_the_nearest_point_behind_the_boundary() -> None:
    """Of a linear network with two classes that is the foot of the perpendicular, at margin/‖w‖."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 2))
    run = snncompress.wrap(model, IMAGE, classes=("a", "b"), normalization=Normalization((0.2,), (0.5,)))
    pixels = 0.4 + 0.2 * torch.rand(8, *IMAGE)  # far from 0 and 1
    with torch.no_grad():
        logits = model(run.normalization(pixels))
        weight = (model[1].weight[1] - model[1].weight[0]) / 0.5
    distance = (logits[:, 1] - logits[:, 0]).abs() / weight.norm()
    found = cw.search(Victim([run]), pixels, logits.argmax(1), AttackPlan(steps=150, searches=7))
    assert bool((model(run.normalization(found)).argmax(1) != logits.argmax(1)).all())
    torch.testing.assert_close(cw.lengths(found - pixels), distance, rtol=0.05, atol=0.02)  # a step is 0.08 long


def test_strengths_as_people_type_them() -> None:
    assert parse_eps("0:0.5:0.05") == tuple(round(0.05 * index, 10) for index in range(11))
    assert parse_eps("0.3,0.1") == (0.1, 0.3)
    assert parse_eps("0.2") == (0.2,)
    for bad in ("", "a", "0:1", "0:1:0", "1:0:0.1", "0:1:-1", "0:1:1e-9"):
        with pytest.raises(UsageError, match=r"--eps .* is neither FIRST:LAST:STEP"):
            parse_eps(bad)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"eps": (0.1, -0.1)}, "--eps: -0.1 is out of range"),
        ({"eps": (math.nan,)}, "--eps: nan is out of range"),
        ({"eps": (0.2, 0.1)}, "the smallest first"),
        ({"steps": 0}, "--steps 0 is out of range; give 1 or more"),
        ({"gradient_samples": 0}, "--gradient-samples 0 is out of range"),
        ({"limit": 0}, "--limit 0 is out of range"),
    ],
)
def test_plans_have_ranges(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        AttackPlan(**options)


def test_what_cannot_be_attacked(data: Dataset, plain: Run) -> None:
    with pytest.raises(UsageError, match="no network"):
        Victim([])
    other = TensorImages(torch.rand(4, *SMALL_IMAGE), torch.arange(4), device=torch.device("cpu"))
    with pytest.raises(UsageError, match="they must agree"):
        attack(plain, other)
    with pytest.raises(UsageError, match="unknown attack 'fsg'; did you mean 'fgs'"):
        attack(plain, data.validation, "fsg")
    features = snncompress.wrap(nn.Sequential(nn.Flatten(), nn.Linear(5, 2)), (5, 1, 1))
    with pytest.raises(UsageError, match="these samples are features"):
        attack(features, TensorImages(torch.rand(4, 5, 1, 1), torch.arange(4) % 2, device=torch.device("cpu")))


@pytest.mark.parametrize("name", ["fgs", "pgd"])
def test_foolbox_agrees(name: str, data: Dataset, plain: Run, tmp_path: Path) -> None:
    """The same attacked images for FGS; the same accuracies for PGD, whose random starts differ."""
    foolbox = pytest.importorskip("foolbox")
    pixels, labels = pixels_of(data, 60)
    mean, std = plain.normalization.mean, plain.normalization.std
    theirs = foolbox.PyTorchModel(plain.model, (0, 1), "cpu", {"mean": list(mean), "std": list(std), "axis": -3})
    plan = AttackPlan((0.05, 0.1, 0.2), steps=40)
    kinds = {
        "fgs": foolbox.attacks.LinfFastGradientAttack(random_start=False),
        "pgd": foolbox.attacks.LinfProjectedGradientDescentAttack(rel_stepsize=2.5 / 40, steps=40),
    }
    _, clipped, fooled = kinds[name](theirs, pixels, labels, epsilons=list(plan.eps))
    module = registry.load("attacks", name)
    for index, ours in enumerate(module.attack(Victim([plain]), pixels, labels, plan)):
        if name == "fgs":
            torch.testing.assert_close(ours, clipped[index])
        wrong = Victim([plain]).predict(ours).argmax(-1) != labels
        assert float(wrong.float().mean()) == pytest.approx(float(fooled[index].float().mean()), abs=0.034)
