"""Criteria against their equations, computed in another way."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from networks import IMAGE, Small, masked, randomize
from subjects import Normed, make_subject, of_layer, some_batches
from torch import Tensor, nn

from snncompress.errors import UsageError
from snncompress.noise.se_snn import NoiseBranch
from snncompress.pruning.subject import Subject
from snncompress.training.learner import Learner
from snncompress.training.options import TrainOptions


def test_entropy_is_what_a_neuron_pays() -> None:
    subject = make_subject(Small())
    ranked = subject.rank("entropy", some_batches(6, 6), 2)
    assert subject.noise is not None
    for name, branch in subject.noise.branches.items():
        assert isinstance(branch, NoiseBranch)
        paid = (branch.options.margin - branch.mean_log_sigma()).clamp_min(0)
        assert of_layer(ranked, name) == pytest.approx((paid / paid.norm()).tolist())


def test_drowned_neurons_are_worth_nothing() -> None:
    subject = make_subject(Small())
    assert subject.noise is not None
    branch = subject.noise.branches["fc1"]
    branch.get_parameter("weight").data.zero_()
    branch.get_parameter("bias").data.fill_(1000.0)  # log σ ≈ 6.9, above the margin of 4
    assert of_layer(subject.rank("entropy", some_batches(6), 1), "fc1") == [0.0] * 6
    assert max(of_layer(subject.rank("information", some_batches(6), 1), "fc1")) < 1e-4


def test_magnitude_by_hand() -> None:
    subject = make_subject(Small(), None)
    lengths = subject.model.get_parameter("conv2.weight").detach().double().pow(2).sum((1, 2, 3)).sqrt()
    ranked = subject.rank("magnitude", some_batches(2), 1)
    assert of_layer(ranked, "conv2") == pytest.approx((lengths / lengths.norm()).tolist(), rel=1e-5)


def test_random_follows_the_seed() -> None:
    subject = make_subject(Small(), None)
    torch.manual_seed(1)
    one = subject.rank("random", some_batches(2), 1)
    torch.manual_seed(2)
    assert subject.rank("random", some_batches(2), 1) != one


def taylor_by_hand(z: Tensor, gradient: Tensor) -> list[float]:
    """1/N Σ_i |1/P Σ_p ∂L/∂z·z|, of unit length."""
    totals = [0.0] * z.shape[1]
    for image in range(len(z)):
        for neuron in range(z.shape[1]):
            totals[neuron] += abs(float((z.detach()[image, neuron] * gradient[image, neuron]).mean())) / len(z)
    length = sum(total**2 for total in totals) ** 0.5
    return [total / length for total in totals]


@pytest.mark.parametrize("method", [None, "se-snn", "sparse-vd"])
def test_taylor_by_autograd(method: str | None) -> None:
    """After the batch norm that follows conv1; before the ReLU and the norm behind conv2, and before fc1's ReLU."""
    model = Small().double()
    subject = make_subject(model, method)
    batches = some_batches(130, 7, dtype=torch.float64)  # more than one pass takes
    x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
    plain = copy.deepcopy(model).requires_grad_(False)
    if method == "sparse-vd" and subject.noise is not None:  # weights that drown in noise are zero in the mean
        for name, branch in subject.noise.branches.items():
            layer: Any = plain.get_submodule(name)
            layer.weight.data = branch.moments(layer)[0]  # type: ignore[operator]
    z1 = plain.norm1(plain.conv1(x)).requires_grad_()
    z2 = plain.conv2(F.relu(z1))
    z3 = plain.fc1(plain.norm2(F.relu(z2)).flatten(1))
    loss = F.cross_entropy(plain.fc2(F.relu(z3)), y, reduction="sum")
    gradients = torch.autograd.grad(loss, [z1, z2, z3])
    ranked = subject.rank("taylor", batches, 2)
    for name, z, gradient in zip(("conv1", "conv2", "fc1"), (z1, z2, z3), gradients, strict=True):
        assert of_layer(ranked, name) == pytest.approx(taylor_by_hand(z, gradient), rel=1e-9), name


def test_taylor_with_frozen_layers_and_in_place_operations() -> None:
    """An activation or a sum that overwrites its input does not change what the neurons gave."""
    model, batches = Normed(), some_batches(6)
    expected = make_subject(model, None).rank("taylor", batches, 1)
    hasty = Normed(inplace=True)
    hasty.load_state_dict(model.state_dict())
    for frozen in (False, True):
        subject = Subject(Learner(hasty, None, TrainOptions()), None, IMAGE)
        for name, parameter in hasty.named_parameters():
            parameter.requires_grad_(not frozen or name.startswith("fc"))
        ranked = subject.rank("taylor", batches, 1)
        assert list(ranked.values()) == pytest.approx(list(expected.values()), rel=1e-5)
        assert not any(parameter.grad is not None for parameter in hasty.parameters())


def test_taylor_uses_the_users_loss() -> None:
    model, batches = randomize(Small()), some_batches(6)
    one = Subject(Learner(model, None, TrainOptions()), None, IMAGE)
    other = Subject(Learner(model, None, TrainOptions(), lambda out, y: out[:, 0].square().mean()), None, IMAGE)
    assert one.rank("taylor", batches, 1) != other.rank("taylor", batches, 1)


class InPlace(nn.Module):
    """Works in place on what layers gave and reads it at the end; one of its modules gives no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 5, 3)
        self.pool = nn.MaxPool2d(2, return_indices=True)
        self.fc1, self.fc2 = nn.Linear(4, 4), nn.Linear(5, 4)
        self.swish = nn.Hardswish(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        first = self.conv1(x).mul_(2)
        self.swish(first)  # in place: what it returns is not needed
        last = self.fc2(self.pool(self.conv2(first))[0].mean((2, 3)))
        return self.fc1(first.mean((2, 3))) + last  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", [Small, Normed, InPlace])
def test_the_oracle_measures(kind: type[nn.Module]) -> None:
    subject = make_subject(kind().double(), None)
    batches = some_batches(5, 9, dtype=torch.float64)
    x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
    ranked = subject.rank("oracle", batches, 2)
    assert len(ranked) > 5
    base = F.cross_entropy(subject.model(x), y)
    for group, value in ranked.items():
        change = F.cross_entropy(masked(subject.model, [group], x), y) - base
        assert value == pytest.approx(float(change.detach()), rel=1e-9, abs=1e-12)


def test_batch_norm_scales() -> None:
    subject = make_subject(Normed(), None)
    subject.model.get_parameter("norm1.weight").data[2] *= -1
    ranked = subject.rank("bn-scale", some_batches(2), 1)
    gamma = {name: subject.model.get_parameter(f"{name}.weight").detach().abs() for name in ("norm1", "norm2", "norm3")}
    assert of_layer(ranked, "conv1") == pytest.approx(gamma["norm1"].tolist())
    both = (gamma["norm2"] + gamma["norm3"]) / 2
    assert [v for g, v in ranked.items() if len(g.outputs) == 2] == pytest.approx(both.tolist())


def test_batch_norm_scales_need_batch_norms() -> None:
    plain = nn.Sequential(nn.Flatten(), nn.Linear(192, 5), nn.ReLU(), nn.Linear(5, 4))
    for model, words in ((plain, "needs batch norms"), (Small(), "says nothing about layer conv2")):
        with pytest.raises(UsageError, match=f"criterion bn-scale {words}.*--criterion taylor"):
            make_subject(model, None).rank("bn-scale", some_batches(2), 1)


WEIGHTS = {
    "weight-posterior": lambda mean, deviation: (mean.abs() / deviation).flatten(1).sum(1),
    "weight-robustness": lambda mean, deviation: (mean.abs() + deviation).flatten(1).sum(1),
}


@pytest.mark.parametrize("criterion", WEIGHTS)
def test_weights_of_sparse_vd(criterion: str) -> None:
    subject = make_subject(Small(), "sparse-vd")
    assert subject.noise is not None
    branch: Any = subject.noise.branches["conv2"]
    weight = subject.model.get_parameter("conv2.weight").detach().double()
    branch.log_sigma2.data[0] = 5.0  # the first neuron drowns
    branch.log_sigma2.data[1:].uniform_(-9, -6)
    deviation = (0.5 * branch.log_sigma2.detach().double()).exp()
    weight[deviation**2 > torch.e**3 * (weight**2 + 1e-8)] = 0
    values = WEIGHTS[criterion](weight, deviation)
    ranked = subject.rank(criterion, some_batches(2), 1)
    assert of_layer(ranked, "conv2") == pytest.approx((values / values.norm()).tolist(), rel=1e-5)
    assert (of_layer(ranked, "conv2")[0] == 0) == (criterion == "weight-posterior")


@pytest.mark.parametrize("method", [None, "dropout", "se-snn"])
@pytest.mark.parametrize("criterion", WEIGHTS)
def test_weights_of_a_sampled_posterior_before_and_after_a_removal(criterion: str, method: str | None) -> None:
    subject = make_subject(Small(), method, posterior=True)
    posterior = {name: values.double() for name, values in (subject.posterior or {}).items()}

    def check(conv1: list[int], conv2: list[int]) -> None:
        """Against the posterior of the whole network, of which these outputs are left."""
        moments = [posterior[f"conv2.weight.{moment}"][conv2][:, conv1] for moment in ("mean", "variance")]
        values = WEIGHTS[criterion](moments[0], moments[1].sqrt())
        ranked = subject.rank(criterion, some_batches(2), 1)
        assert of_layer(ranked, "conv2") == pytest.approx((values / values.norm()).tolist(), rel=1e-6)

    check([0, 1, 2, 3], [0, 1, 2, 3, 4])
    subject.remove([group for group in subject.groups if group.outputs in ((("conv1", 1),), (("conv2", 3),))])
    check([0, 2, 3], [0, 1, 2, 4])
    subject.remove([group for group in subject.groups if group.outputs == (("conv1", 0),)])
    check([2, 3], [0, 1, 2, 4])
    assert subject.posterior is not None
    for name, parameter in subject.model.named_parameters():
        assert subject.posterior[f"{name}.mean"].shape == subject.posterior[f"{name}.variance"].shape == parameter.shape
        assert torch.equal(subject.posterior[f"{name}.mean"], parameter)


def test_a_deviation_of_zero_is_no_infinity() -> None:
    subject = make_subject(Small(), None, posterior=True)
    assert subject.posterior is not None
    for name, values in subject.posterior.items():
        if name.endswith("variance"):
            values.zero_()
    assert all(0 <= value <= 1 for value in subject.rank("weight-posterior", some_batches(2), 1).values())
