"""What follows weight pruning, and what goes before it: zeros stay zero, chains, samples, layers without a mean."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from networks import close
from pruned import TRAINING, assert_kept_fits, plan_of
from small_data import IMAGE
from sparse import ONCE, ROUNDS, assert_counted, assert_zeros_stay, feed_of, logits, some_inputs
from torch import Tensor, nn

import snncompress
from snncompress import PruneOptions, TrainOptions, prune, prune_weights, train
from snncompress.data.dataset import Dataset
from snncompress.errors import UsageError
from snncompress.evaluation.sampling import evaluate_samples
from snncompress.models.initial import reinitialize
from snncompress.models.layers import find_zeros, weight_layers
from snncompress.noise.vd import NoiseBranch
from snncompress.pruning.options import Allocation, Scope
from snncompress.pruning.points import restore_point
from snncompress.pruning.sparsifier import DRAWS
from snncompress.run import Run
from snncompress.run_files import load
from snncompress.training.langevin import PosteriorOptions
from snncompress.training.learner import Learner
from snncompress.training.options import OptimizerName

AUTO = replace(ONCE, criterion="auto")
NEURONS = PruneOptions(target_flops="50%", allocation=Allocation.UNIFORM, finetune_steps=2, final_epochs=1, step=3)
TRAINED = TrainOptions(epochs=2, lr=0.01, batch_size=64)


@pytest.fixture(scope="module")
def thin(plain: Run, data: Dataset) -> Run:
    """A sparse run that has all its neurons."""
    run = prune_weights(plain, data, replace(ONCE, target_size="40%"), TRAINING)
    assert plan_of(run)["removed_neurons"] == 0
    return run


# --- zeros stay zero ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scope", Scope)
def test_fine_tuning_keeps_the_zeros(
    residual: Run, data: Dataset, monkeypatch: pytest.MonkeyPatch, scope: Scope
) -> None:
    hold, held = Learner.hold_zeros, []

    def note(self: Learner) -> None:
        hold(self)
        held.append(copy.deepcopy(self.model))

    monkeypatch.setattr(Learner, "hold_zeros", note)
    small = prune_weights(residual, data, replace(ROUNDS, target_size="20%", scope=scope), TRAINING)
    assert_zeros_stay(held[-1], small.model)
    assert find_zeros(held[-1]).keys() == find_zeros(small.model).keys()
    assert [int(z.sum()) for z in find_zeros(held[-1]).values()] == [
        int(z.sum()) for z in find_zeros(small.model).values()
    ]


@pytest.mark.parametrize("method", ["none", "se-snn", "dropout", "vd", "sparse-vd"])
def test_training_keeps_the_zeros(thin: Run, data: Dataset, method: str) -> None:
    trained = train(thin, data, replace(TRAINED, weight_decay=0.01), method=method)
    assert_zeros_stay(thin.model, trained.model)
    assert (trained.sparse, trained.storage) == (True, "csr")


@pytest.mark.parametrize("method", ["sparse-vd", "vd", "variance"])
def test_weights_that_are_zero_have_no_noise(thin: Run, data: Dataset, method: str) -> None:
    run = train(thin, data, TRAINED, method=method)
    noise = run.attach_noise(copy.deepcopy(run.model))
    assert noise is not None
    for name, branch, layer in noise.pairs():
        mean, variance = branch.moments(layer)  # type: ignore[operator]
        zero = thin.model.get_submodule(name).weight == 0
        assert bool(zero.any())
        assert not mean[zero].any()
        assert not variance[zero].any()
        assert variance[~zero].all()


def test_only_weights_that_are_left_pay_for_their_signal(thin: Run, data: Dataset) -> None:
    noise = train(thin, data, TRAINED, method="sparse-vd").attach_noise(copy.deepcopy(thin.model))
    left = sum(int(layer.weight.count_nonzero()) for layer in weight_layers(thin.model).values())
    assert noise is not None
    assert 0 < (noise.kl() or 0) <= 5 * left  # nats: one pays at most ½·log(1 + e⁸) and 0.64


def test_so_do_other_optimizers_and_langevin_dynamics(thin: Run, data: Dataset) -> None:
    slow = replace(TRAINED, optimizer=OptimizerName.SGD, epochs=1)
    assert_zeros_stay(thin.model, train(thin, data, slow).model)
    walked = train(thin, data, replace(TRAINED, epochs=1), method="dropout", posterior=PosteriorOptions(12))
    assert_zeros_stay(thin.model, walked.model)
    assert walked.posterior is not None
    for name, zero in find_zeros(thin.model).items():
        assert not walked.posterior[f"{name}.variance"][zero].any()
        assert bool((walked.posterior[f"{name}.variance"][~zero] > 0).all())
    fewer = prune_weights(walked, data, replace(AUTO, target_size="20%"), TRAINING)
    assert plan_of(fewer)["criterion"] == "spr"
    assert_counted(fewer)


def test_from_scratch_the_pattern_stays(thin: Run, data: Dataset) -> None:
    model = copy.deepcopy(thin.model)
    reinitialize(model, sparse=True)
    assert_zeros_stay(thin.model, model)
    for name, zero in find_zeros(thin.model).items():
        old, new = thin.model.get_parameter(name), model.get_parameter(name)
        assert bool((old[~zero] != new[~zero]).all())
    trained = train(replace(thin, model=model), data, TRAINED)
    assert_zeros_stay(thin.model, trained.model)
    reinitialize(model)  # of a model that is not sparse, zeros mean nothing
    assert all(bool((layer.weight != 0).all()) for layer in weight_layers(model).values())


def test_zeros_of_a_run_that_is_not_sparse_come_back(thin: Run, data: Dataset) -> None:
    trained = train(replace(thin, sparse=False), data, TRAINED)
    assert int(trained.model.get_parameter("1.weight").count_nonzero()) > plan_of(thin)["layers"]["1"]["left"]


# --- chains ---------------------------------------------------------------------------------------------------


def test_neurons_then_weights(noisy: Run, data: Dataset, tmp_path: Path) -> None:
    fewer = prune(noisy, data, NEURONS, TRAINING, out=tmp_path / "neurons")
    small = prune_weights(load(tmp_path / "neurons"), data, replace(ROUNDS, target_size="10%"), TRAINING)
    assert small.original == noisy.original
    assert plan_of(small)["targets"] == {"size": int(0.1 * noisy.original["weights"])}
    assert plan_of(small)["layers"]["1"]["weights"] == fewer.model.get_parameter("1.weight").numel()
    assert plan_of(small)["flops"] <= plan_of(fewer)["flops"]
    assert_counted(small)
    assert_kept_fits(small)


def test_weights_then_neurons(thin: Run, data: Dataset, tmp_path: Path) -> None:
    fewer = prune(thin, data, NEURONS, TRAINING, out=tmp_path / "fewer")
    kept = plan_of(fewer)["kept"]
    patterns = {name.removesuffix(".weight"): zero for name, zero in find_zeros(thin.model).items()}
    cut = {
        "1": patterns["1"][kept["1"]], "3": patterns["3"][kept["3"]][:, kept["1"]], "5": patterns["5"][:, kept["3"]],
    }  # fmt: skip
    assert any(bool(zero.any()) for zero in cut.values())
    for name, zero in cut.items():
        weight = fewer.model.get_parameter(f"{name}.weight")
        assert weight.shape == zero.shape
        assert not weight[zero].any()
        assert bool((weight[~zero] != 0).any())
    loaded = load(tmp_path / "fewer")
    assert (loaded.sparse, loaded.storage) == (True, "csr")
    assert torch.equal(logits(loaded.model, some_inputs()), logits(fewer.model, some_inputs()))
    again = prune_weights(loaded, data, replace(ROUNDS, target_size="10%"), TRAINING)
    assert_counted(again)


def test_weights_then_weights(plain: Run, thin: Run, data: Dataset) -> None:
    """In two steps or at once, without fine-tuning that is the same."""
    options = replace(ONCE, target_size="15%")
    small, at_once = prune_weights(thin, data, options, TRAINING), prune_weights(plain, data, options, TRAINING)
    assert close(logits(small.model, some_inputs()), logits(at_once.model, some_inputs()), 1e-6)
    for key in ("size", "flops", "threshold", "kept"):
        assert plan_of(small)[key] == plan_of(at_once)[key]
    assert plan_of(small)["points"][0]["size"] == plan_of(thin)["size"]  # zeros do not count
    assert_counted(small)


def test_a_posterior_survives_the_pruning_of_neurons(noisy: Run, data: Dataset, tmp_path: Path) -> None:
    walked = train(noisy, data, TRAINED, method="dropout", posterior=PosteriorOptions(20, 1e-5))
    prune(walked, data, NEURONS, TRAINING, out=tmp_path / "fewer")
    fewer = load(tmp_path / "fewer")
    assert walked.posterior is not None
    assert fewer.posterior is not None
    kept = plan_of(fewer)["kept"]
    assert torch.equal(
        fewer.posterior["3.weight.variance"], walked.posterior["3.weight.variance"][kept["3"]][:, kept["1"]]
    )
    for name, weight in fewer.model.named_parameters():
        assert torch.equal(fewer.posterior[f"{name}.mean"], weight)
    small = prune_weights(fewer, data, replace(AUTO, target_size="20%"), TRAINING)
    assert plan_of(small)["criterion"] == "spr"
    rows, threshold = plan_of(small)["kept"]["1"], plan_of(small)["threshold"]
    means = fewer.model.get_parameter("1.weight")
    score = means.abs() + fewer.posterior["1.weight.variance"].sqrt()
    assert torch.equal(small.model.get_parameter("1.weight"), torch.where(score >= threshold, means, 0.0)[rows])
    assert small.posterior is None


# --- layers without a mean ------------------------------------------------------------------------------------


def sampled(run: Run, seed: int = 3) -> Tensor:
    model = copy.deepcopy(run.model)
    assert run.attach_noise(model) is not None
    torch.manual_seed(seed)
    return logits(model, some_inputs())


def averaged(run: Run, data: Dataset) -> float:
    model = copy.deepcopy(run.model)
    noise = run.attach_noise(model)
    validation = feed_of(run, data).validation
    assert noise is not None
    assert validation is not None
    return evaluate_samples(model, noise, validation, DRAWS).averaged.error


HOLLOW = {
    "at once": replace(AUTO, target_size="95%"), "in rounds": replace(AUTO, target_size="92%", finetune_steps=2),
    "tuned": replace(AUTO, target_size="95%", finetune_steps=2, final_epochs=2),
    "budget": replace(AUTO, max_drop=8.0),
}  # fmt: skip


@pytest.mark.parametrize("how", HOLLOW)
@pytest.mark.parametrize("name", ["variances", "blurred"])
def test_deviations_are_pruned(
    request: pytest.FixtureRequest, data: Dataset, tmp_path: Path, name: str, how: str
) -> None:
    source: Run = request.getfixturevalue(name)
    assert source.hollow == ["3"]
    small = prune_weights(source, data, HOLLOW[how], TRAINING, out=tmp_path / "small")
    plan = plan_of(small)
    assert plan["criterion"] == "sigma"
    assert plan["removed_neurons"] == 0
    assert small.hollow == ["3"]
    assert plan["layers"]["3"]["left"] < plan["layers"]["3"]["weights"] == 96
    for layer in ("1", "5"):  # plain weights are not pruned
        assert plan["layers"][layer]["left"] == plan["layers"][layer]["weights"]
        same = torch.equal(small.model.get_parameter(f"{layer}.weight"), source.model.get_parameter(f"{layer}.weight"))
        assert same == (not HOLLOW[how].final_epochs and not HOLLOW[how].finetune_steps)
    assert_counted(small)
    assert int(small.measured_model().get_parameter("3.weight").count_nonzero()) == plan["layers"]["3"]["left"]
    assert small.metrics["validation"]["error"] == averaged(small, data)
    if how == "budget":
        assert averaged(small, data) <= plan["points"][0]["error"] + 8
    loaded = load(tmp_path / "small")
    assert loaded.hollow == ["3"]
    assert torch.equal(sampled(loaded), sampled(small))
    assert not torch.equal(sampled(loaded), sampled(source))


def test_without_fine_tuning_the_deviations_that_stay_are_the_largest(variances: Run, data: Dataset) -> None:
    small = prune_weights(variances, data, replace(AUTO, target_size="94%"), TRAINING)
    before = variances.measured_model().get_parameter("3.weight").detach()
    after = small.measured_model().get_parameter("3.weight")
    gone = after == 0
    assert torch.equal(after[~gone], before[~gone])
    assert float(before[gone].max()) <= float(before[~gone].min()) == pytest.approx(plan_of(small)["threshold"])


@pytest.mark.parametrize("name", ["variances", "blurred"])
def test_more_training_leaves_silent_deviations_silent(
    request: pytest.FixtureRequest, data: Dataset, name: str
) -> None:
    small = prune_weights(request.getfixturevalue(name), data, replace(AUTO, target_size="92%"), TRAINING)
    trained = train(small, data, TRAINED, method=str(small.noise_method))
    assert trained.hollow == ["3"]
    assert_zeros_stay(small.measured_model(), trained.measured_model())


def test_what_hollow_runs_refuse(variances: Run, blurred: Run, data: Dataset, tmp_path: Path) -> None:
    for run in (variances, blurred):
        for criterion in ("magnitude", "snr", "spr", "log-alpha", "random"):
            with pytest.raises(UsageError, match=f"its mean carries nothing, so it cannot be pruned by {criterion}"):
                prune_weights(run, data, replace(ONCE, criterion=criterion, target_size="90%"), TRAINING)
        with pytest.raises(UsageError, match="cannot be met"):  # neurons stay
            prune_weights(run, data, replace(AUTO, target_flops="90%"), TRAINING)
    small = prune_weights(variances, data, replace(AUTO, target_size="95%"), TRAINING, out=tmp_path / "small")
    with pytest.raises(UsageError, match="its mean carries nothing"):  # points hold no variances
        restore_point(small, point=0)
    with pytest.raises(UsageError, match="its mean carries nothing"):
        prune(small, data, NEURONS, TRAINING)


def test_a_kl_counts_as_in_training(blurred: Run, data: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    penalty = NoiseBranch.penalty

    def note(self: NoiseBranch, layer: Any) -> Tensor:
        seen.append(self.clock)
        return penalty(self, layer)

    monkeypatch.setattr(NoiseBranch, "penalty", note)
    prune_weights(blurred, data, replace(AUTO, target_size="95%", finetune_steps=1), TRAINING)
    assert {clock.examples for clock in seen} == {len(data.train)}
    assert {clock.epoch for clock in seen} == {float("inf")}


def test_a_layer_that_two_names_share_counts_once(data: Dataset) -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = nn.Linear(64, 64), nn.Linear(64, 64)
            self.other.weight = self.one.weight
            self.end = nn.Linear(64, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.end(self.other(self.one(x.flatten(1)).relu()).relu())  # type: ignore[no-any-return]

    small = prune_weights(snncompress.wrap(Shared(), IMAGE), data, replace(ONCE, target_size="50%"), TRAINING)
    assert set(plan_of(small)["layers"]) == {"one", "end"}
    assert small.model.get_parameter("one.weight") is small.model.get_submodule("other").weight
    assert_counted(small)
