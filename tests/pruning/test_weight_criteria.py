"""What a weight is worth: each criterion's equation, what holds for all of them, and which one is picked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from networks import IMAGE, Small, randomize
from subjects import make_subject, sampled, some_batches
from torch import Tensor

from snncompress import registry
from snncompress.errors import UsageError
from snncompress.models.layers import weight_layers
from snncompress.noise.attach import attach
from snncompress.noise.weights import WeightBranch
from snncompress.pruning.moments import weight_moments
from snncompress.pruning.options import Scope
from snncompress.pruning.sparsifier import Sparsifier, pick_weight_criterion
from snncompress.pruning.subject import Subject
from snncompress.training.feed import Feed

KIND = "weight-criteria"
CRITERIA = list(registry.entries(KIND))
METHODS = [None, *registry.entries("methods")]
WITH_MOMENTS = ("sparse-vd", "vd", "variance", "posterior")  # of weights
HOLLOW = ("variance",)


def drawn(seed: int = 0, shape: tuple[int, ...] = (5, 4, 3, 3)) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator), torch.rand(shape, generator=generator) + 0.01


EQUATIONS: dict[str, Any] = {
    "snr": lambda mean, deviation: np.abs(mean) / deviation,
    "spr": lambda mean, deviation: np.abs(mean) + deviation,
    "log-alpha": lambda mean, deviation: -(np.log(deviation**2) - np.log(mean**2 + 1e-8)),
    "sigma": lambda mean, deviation: deviation,
    "magnitude": lambda mean, deviation: np.abs(mean),
}


def test_all_criteria_have_an_equation_here() -> None:
    assert EQUATIONS.keys() | {"random"} == set(CRITERIA)


@pytest.mark.parametrize("criterion", EQUATIONS)
def test_equations(criterion: str) -> None:
    mean, deviation = drawn()
    found = registry.load(KIND, criterion).score(mean, deviation)
    expected = EQUATIONS[criterion](mean.double().numpy(), deviation.double().numpy())
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("criterion", CRITERIA)
class TestContract:
    def test_a_score_for_every_weight(self, criterion: str) -> None:
        module = registry.load(KIND, criterion)
        mean, deviation = drawn()
        before = mean.clone(), deviation.clone()
        torch.manual_seed(3)
        scores = module.score(mean, deviation)
        assert scores.shape == mean.shape
        assert scores.dtype == mean.dtype
        assert bool(torch.isfinite(scores).all())
        assert torch.equal(mean, before[0])
        assert torch.equal(deviation, before[1])
        torch.manual_seed(3)
        assert torch.equal(module.score(mean, deviation), scores)
        if criterion != "random":  # the sign of a weight does not matter
            assert torch.equal(module.score(-mean, deviation), scores)

    def test_weights_that_are_zero_or_sure(self, criterion: str) -> None:
        module = registry.load(KIND, criterion)
        mean, deviation = drawn(1)
        mean.view(-1)[:3] = 0.0
        deviation.view(-1)[2:5] = 0.0
        assert not bool(module.score(mean, deviation).isnan().any())

    def test_where_no_deviation_is_needed_none_is_read(self, criterion: str) -> None:
        module = registry.load(KIND, criterion)
        assert getattr(module, "NEEDS_DEVIATION", True) == (criterion not in ("magnitude", "random"))
        if not getattr(module, "NEEDS_DEVIATION", True):
            mean, _ = drawn()
            torch.manual_seed(0)
            scores = module.score(mean, torch.tensor(0.0))
            torch.manual_seed(0)
            assert torch.equal(scores, module.score(mean, torch.tensor(float("nan"))))

    @pytest.mark.parametrize("method", [*METHODS, "posterior"])
    def test_it_ranks_the_weights_or_says_why_not(self, criterion: str, method: str | None) -> None:
        if method in HOLLOW and criterion in ("magnitude", "random"):
            return  # refused before: the means carry nothing
        sparsifier = make_sparsifier(method)
        subject = sparsifier.subject
        before = {name: tensor.clone() for name, tensor in subject.tensors().items() if name != "random.cpu"}
        if criterion in ("magnitude", "random") or method in WITH_MOMENTS:
            ranking = sparsifier.rank(criterion)
            layers = sparsifier.hollow or list(weight_layers(subject.model))
            shapes = {name: subject.model.get_parameter(f"{name}.weight").shape for name in layers}
            assert ranking.shapes == shapes
            assert ranking.least == len(layers)
            assert ranking.total == sum(shape.numel() for shape in shapes.values())
        else:
            with pytest.raises(UsageError, match=rf"^criterion {criterion} needs a distribution.*magnitude$"):
                sparsifier.rank(criterion)
        after = subject.tensors()
        assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())


def make_sparsifier(method: str | None) -> Sparsifier:
    """A network with the noise of a method, hollow where that is, or with a sampled posterior."""
    known = method if method != "posterior" else None
    subject = make_subject(Small(), known, posterior=method == "posterior")
    if subject.noise is not None and method in HOLLOW:
        subject.noise.hollow = list(subject.noise.branches)
    batches = some_batches(4)
    return Sparsifier(subject, Feed(batches, batches, batches, None))


def order(criterion: str, mean: Tensor, deviation: Tensor) -> list[int]:
    return registry.load(KIND, criterion).score(mean, deviation).flatten().argsort(stable=True).tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("seed", range(5))
def test_log_alpha_and_snr_give_the_same_order(seed: int) -> None:
    mean, deviation = (tensor.double() for tensor in drawn(seed))
    mean = mean.sign() * mean.abs().clamp_min(0.05)  # far above the floor of the logarithm
    assert order("log-alpha", mean, deviation) == order("snr", mean, deviation)
    assert order("spr", mean, deviation) != order("snr", mean, deviation)
    assert order("snr", mean, torch.ones_like(mean)) == order("magnitude", mean, deviation)
    assert order("spr", torch.zeros_like(mean), deviation) == order("sigma", mean, deviation)


def test_the_published_threshold() -> None:
    module = registry.load(KIND, "log-alpha")
    assert (module.THRESHOLD, module.SIGN) == (3.0, -1)
    mean = torch.full((1, 3), 0.5)
    deviation = (mean.square() * torch.tensor([2.9, 3.1, -5.0]).exp()).sqrt()
    assert (module.score(mean, deviation) >= module.SIGN * module.THRESHOLD).tolist() == [[True, False, True]]


# --- where moments come from ----------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["sparse-vd", "vd", "variance"])
def test_moments_are_those_of_the_noise(method: str) -> None:
    subject = make_subject(Small(), method)
    assert subject.noise is not None
    found = weight_moments(subject.model, subject.noise, None)
    assert found.keys() == subject.noise.branches.keys()
    for name, branch in subject.noise.branches.items():
        assert isinstance(branch, WeightBranch)
        mean, variance = branch.moments(subject.model.get_submodule(name))  # type: ignore[arg-type]
        assert torch.equal(found[name].mean, mean)
        assert torch.allclose(found[name].deviation.square(), variance)
        assert found[name].deviation.shape == subject.model.get_parameter(f"{name}.weight").shape
        assert not found[name].mean.requires_grad


def test_moments_of_samples_have_the_present_weights_as_means() -> None:
    model = randomize(Small())
    posterior = sampled(model)
    with torch.no_grad():
        model.get_parameter("fc1.weight").add_(1.0)  # fine-tuned since
    found = weight_moments(model, None, posterior)
    assert found.keys() == weight_layers(model).keys()
    for name, (mean, deviation) in found.items():
        assert torch.equal(mean, model.get_parameter(f"{name}.weight"))
        assert torch.allclose(deviation.square(), posterior[f"{name}.weight.variance"])
    assert weight_moments(model, None, None) == {}


def test_noise_on_some_layers_ranks_those_only() -> None:
    subject = make_subject(Small(), "sparse-vd", layers=["fc*"])
    batches = some_batches(4)
    sparsifier = Sparsifier(subject, Feed(batches, batches, batches, None))
    assert set(sparsifier.rank("log-alpha").shapes) == {"fc1", "fc2"}
    assert set(sparsifier.rank("magnitude").shapes) == {"conv1", "conv2", "fc1", "fc2"}
    assert set(sparsifier.rank("magnitude", keep=("conv*", "fc2")).shapes) == {"fc1"}
    assert set(sparsifier.rank("log-alpha", keep=("fc2",), scope=Scope.LAYER).shapes) == {"fc1"}


# --- auto -----------------------------------------------------------------------------------------------------


def test_what_auto_picks() -> None:
    def auto(subject: Subject) -> str:
        return pick_weight_criterion("auto", subject.noise, subject.posterior)

    assert {method: auto(make_subject(Small(), method)) for method in METHODS} == {
        None: "magnitude", "se-snn": "magnitude", "vib": "magnitude", "dropout": "magnitude",
        "sparse-vd": "log-alpha", "vd": "log-alpha", "variance": "log-alpha",  # the last is not settled: not hollow yet
    }  # fmt: skip
    assert auto(make_subject(Small(), "dropout", posterior=True)) == "spr"
    assert auto(make_subject(Small(), None, posterior=True)) == "spr"
    assert auto(make_subject(Small(), "sparse-vd", posterior=True)) == "log-alpha"
    assert auto(make_sparsifier("variance").subject) == "sigma"
    model = Small()
    noise = attach(model, "vd", IMAGE, {"log_alpha": 15.0})
    noise.settle()
    assert noise.hollow
    assert pick_weight_criterion("auto", noise, None) == "sigma"


def test_what_was_asked_for_stays_if_there_is_such_a_thing() -> None:
    for criterion in CRITERIA:
        assert pick_weight_criterion(criterion, None, None) == criterion
    with pytest.raises(UsageError, match="unknown criterion of weights 'sigm'; did you mean 'sigma'"):
        pick_weight_criterion("sigm", None, None)
    with pytest.raises(UsageError, match="'taylor'"):  # one of neurons
        pick_weight_criterion("taylor", None, None)
