"""Pruning of a run's weights: to the targets, thresholds and budgets, no further, by the rules that were given."""

from __future__ import annotations

import copy
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from networks import close
from pruned import COUNTS, TRAINING, assert_kept_fits, plan_of
from small_data import IMAGE, batches
from sparse import (
    ONCE,
    ROUNDS,
    assert_counted,
    feed_of,
    kept_by,
    logits,
    some_inputs,
    sparsifier_of,
    without_small,
)

import snncompress
from snncompress import evaluate, prune_weights
from snncompress.data.dataset import Dataset
from snncompress.errors import TargetError, UsageError
from snncompress.models.layers import weight_layers
from snncompress.pruning.options import Scope, WeightOptions
from snncompress.run import Run
from snncompress.training.batchnorm import reestimate

TARGETS = [
    {"target_size": "50%"}, {"target_size": "200"}, {"target_size": "5%"}, {"target_flops": "50%"},
    {"target_flops": "0.4k"}, {"target_memory": "90%"}, {"target_memory": "70"},
    {"target_flops": "80%", "target_size": "30%", "target_memory": "95%"},
]  # fmt: skip
NAMES = [" ".join(targets.values()) for targets in TARGETS]


def assert_no_weight_more(small: Run, source: Run, data: Dataset, options: WeightOptions) -> None:
    """With one weight more some target would be missed."""
    sparsifier = sparsifier_of(source, data, options.keep)
    ranking = sparsifier.rank(plan_of(small)["criterion"], options.keep, options.scope)
    stay, plan = kept_by(ranking, small), plan_of(small)
    cost = sparsifier.cost_of(ranking, stay)
    assert {name: getattr(cost, name) for name in COUNTS} == {name: plan[name] for name in COUNTS}
    more = sparsifier.cost_of(ranking, stay + 1)
    assert any(getattr(more, name) > target for name, target in plan["targets"].items())


@pytest.mark.parametrize("targets", TARGETS, ids=NAMES)
def test_targets_are_met_and_not_by_more_than_a_weight(plain: Run, data: Dataset, targets: dict[str, str]) -> None:
    before = copy.deepcopy(plain.model.state_dict())
    options = replace(ONCE, **targets)
    small = prune_weights(plain, data, options, TRAINING)
    assert all(torch.equal(before[name], tensor) for name, tensor in plain.model.state_dict().items())
    plan = plan_of(small)
    for name, text in targets.items():
        kind = name.removeprefix("target_")
        if text.endswith("%"):
            assert plan["targets"][kind] == int(float(text[:-1]) / 100 * plain.original[COUNTS[kind]])
    assert_counted(small)
    assert_kept_fits(small)
    assert_no_weight_more(small, plain, data, options)
    assert plan["removed_neurons"] == 20 - sum(len(numbers) for numbers in plan["kept"].values())
    assert plan["logit_change"] <= 1e-5
    assert plan["stopped"] is None
    assert small.original == plain.original
    assert close(
        logits(small.model, some_inputs()), logits(without_small(plain, plan["threshold"]), some_inputs()), 1e-5
    )


@pytest.mark.parametrize("scope", Scope)
@pytest.mark.parametrize("targets", [{"target_size": "3%"}, TARGETS[3], TARGETS[7]], ids=str)
def test_with_batch_norms_and_residuals(residual: Run, data: Dataset, targets: dict[str, str], scope: Scope) -> None:
    small = prune_weights(residual, data, replace(ONCE, **targets, scope=scope), TRAINING)
    assert_counted(small)
    assert_kept_fits(small)
    assert len(plan_of(small)["points"]) == 2


@pytest.mark.parametrize("name", ["plain", "residual"])
def test_in_rounds(request: pytest.FixtureRequest, data: Dataset, name: str) -> None:
    small = prune_weights(request.getfixturevalue(name), data, replace(ROUNDS, target_size="20%"), TRAINING)
    assert_counted(small)
    assert_kept_fits(small)
    plan = plan_of(small)
    sizes = [point["size"] for point in plan["points"]]
    assert sizes == sorted(sizes, reverse=True)
    assert len(sizes) == 1 + 8 + 1  # 0.8^8 < 20%; the last is after the longer fine-tuning
    assert 0.9 * plan["targets"]["size"] < plan["size"] == sizes[-1] == sizes[-2]
    assert [point["step"] for point in plan["points"]][:4] == [0, 2, 4, 6]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("targets", [{"target_size": "10%"}, {"target_flops": "30%"}, {"target_memory": "85%"}])
def test_random_scores_meet_targets_too(plain: Run, data: Dataset, targets: dict[str, str], seed: int) -> None:
    training = replace(TRAINING, seed=seed)
    small = prune_weights(plain, data, replace(ONCE, **targets, criterion="random"), training)
    assert_counted(small)
    again = prune_weights(plain, data, replace(ONCE, **targets, criterion="random"), training)
    assert torch.equal(small.model.get_parameter("1.weight"), again.model.get_parameter("1.weight"))


def test_a_size_is_met_to_the_weight(plain: Run, data: Dataset) -> None:
    """As long as no neuron goes, a step is a weight."""
    for target in (900, 701, 700):
        small = prune_weights(plain, data, replace(ONCE, target_size=str(target)), TRAINING)
        assert plan_of(small)["removed_neurons"] == 0
        assert plan_of(small)["size"] == target
    rounds = prune_weights(plain, data, replace(ROUNDS, target_size="700"), TRAINING)
    assert plan_of(rounds)["size"] == 700
    same = prune_weights(plain, data, replace(ONCE, target_size="200%"), TRAINING)
    assert all(torch.equal(p, q) for p, q in zip(same.model.parameters(), plain.model.parameters(), strict=True))


@pytest.mark.parametrize("target", ["size", "flops", "memory"])
@pytest.mark.parametrize("keep", [(), ("1",)], ids=["", "keep"])
def test_a_target_that_cannot_be_met_says_how_far_it_could_be(
    plain: Run, data: Dataset, tmp_path: Path, target: str, keep: tuple[str, ...]
) -> None:
    options = replace(ONCE, keep=keep)
    with pytest.raises(TargetError, match=rf"^a target of 1 .* cannot be met: .*raise --target-{target}") as caught:
        prune_weights(plain, data, replace(options, **{f"target_{target}": "1"}), TRAINING, out=tmp_path / "small")
    assert not (tmp_path / "small").exists()
    found = re.search(r"still has ([\d,]+);", str(caught.value))
    assert found is not None
    closest = found[1].replace(",", "")
    small = prune_weights(plain, data, replace(options, **{f"target_{target}": closest}), TRAINING)
    assert plan_of(small)[target] == int(closest)  # that one can


def test_a_threshold_is_that_of_the_criterion(plain: Run, data: Dataset, tmp_path: Path) -> None:
    for threshold in (0.0, 0.05, 0.3):
        small = prune_weights(plain, data, replace(ONCE, threshold=threshold), TRAINING)
        assert_counted(small)
        expected = without_small(plain, threshold)
        assert close(logits(small.model, some_inputs()), logits(expected, some_inputs()), 1e-5)
        assert plan_of(small)["threshold"] >= threshold
        if not plan_of(small)["removed_neurons"]:
            for name, layer in weight_layers(expected).items():
                assert torch.equal(small.model.get_parameter(f"{name}.weight"), layer.weight)
    all_gone = prune_weights(plain, data, replace(ONCE, threshold=1e9), TRAINING, out=tmp_path / "gone")
    assert plan_of(all_gone)["threshold"] is None
    json.loads(
        (tmp_path / "gone" / "plan.json").read_text(), parse_constant=pytest.fail
    )  # no Infinity: that is no JSON
    # What a run was pruned at gives the same again.
    half = prune_weights(plain, data, replace(ONCE, target_size="50%"), TRAINING)
    again = prune_weights(plain, data, replace(ONCE, threshold=plan_of(half)["threshold"]), TRAINING)
    assert all(torch.equal(p, q) for p, q in zip(half.model.parameters(), again.model.parameters(), strict=True))


def test_log_alpha_has_a_threshold_of_its_own(drowned: Run, data: Dataset) -> None:
    """Sparse VD has zeros already: only the neurons that they leave idle go."""
    options = replace(ONCE, criterion="auto")
    small = prune_weights(drowned, data, options, TRAINING)
    plan = plan_of(small)
    assert plan["criterion"] == "log-alpha"
    assert 0 < plan["threshold"] <= 3
    assert plan["removed_neurons"] > 0
    assert_counted(small)
    assert close(logits(small.model, some_inputs()), logits(drowned.model, some_inputs()), 1e-5)
    assert small.noise is None
    fewer = prune_weights(drowned, data, replace(options, threshold=-2.0), TRAINING)
    assert plan_of(fewer)["threshold"] <= -2
    assert plan_of(fewer)["size"] < plan["size"]
    by_snr = prune_weights(drowned, data, replace(options, criterion="snr", target_size="30%"), TRAINING)
    by_alpha = prune_weights(drowned, data, replace(options, target_size="30%"), TRAINING)
    assert torch.equal(by_snr.model.get_parameter("1.weight"), by_alpha.model.get_parameter("1.weight"))


# --- budgets --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [{"max_error": 10.0}, {"max_drop": 3.0}, {"max_error": 25.0, "max_drop": 10.0}])
@pytest.mark.parametrize("name", ["plain", "residual"])
def test_a_budget_is_kept_and_used(
    request: pytest.FixtureRequest, data: Dataset, budget: dict[str, float], name: str
) -> None:
    source: Run = request.getfixturevalue(name)
    if name == "residual":
        budget = {key: value + 20 for key, value in budget.items()}
    small = prune_weights(source, data, replace(ONCE, **budget), TRAINING)  # type: ignore[arg-type]
    plan, sparsifier = plan_of(small), sparsifier_of(source, data)
    limit = min(budget.get("max_error", 100.0), plan["points"][0]["error"] + budget.get("max_drop", 100.0))
    validation = feed_of(source, data).validation
    assert validation is not None
    assert evaluate(small.model, validation).error == small.metrics["validation"]["error"] <= limit
    assert plan["stopped"] is None
    assert_counted(small)
    ranking = sparsifier.rank("magnitude")
    stay = kept_by(ranking, small)
    assert stay < 0.7 * ranking.alive
    below = range(stay - max(1, round(0.011 * stay)), stay)
    assert any(sparsifier.error_of(ranking, fewer) > limit for fewer in below)  # a hundredth less would be too little


def test_a_budget_that_allows_everything_or_nothing(plain: Run, data: Dataset) -> None:
    assert plan_of(prune_weights(plain, data, replace(ONCE, max_error=100), TRAINING))["threshold"] is None
    with pytest.raises(TargetError, match=r"begins with has a validation error of .*raise --max-error"):
        prune_weights(plain, data, replace(ONCE, max_error=0.0), TRAINING)


@pytest.mark.parametrize("steps", [0, 2])
def test_a_target_beyond_the_budget_ends_with_the_last_model_within_it(plain: Run, data: Dataset, steps: int) -> None:
    options = replace(ONCE, target_size="4%", max_drop=1.0, finetune_steps=steps)
    small = prune_weights(plain, data, options, TRAINING)
    plan = plan_of(small)
    assert "exceeds the budget" in plan["stopped"]
    first = plan["points"][0]
    assert small.metrics["validation"]["error"] <= first["error"] + 1
    assert plan["removed_neurons"] == 20 - sum(len(numbers) for numbers in plan["kept"].values())
    assert plan["size"] > plan["targets"]["size"]
    assert (plan["size"] == first["size"]) == (steps == 0)  # all at once was too much
    assert (plan["threshold"] is None) == (steps == 0)
    validation = feed_of(plain, data).validation
    assert validation is not None
    assert evaluate(small.model, validation).error == small.metrics["validation"]["error"]


# --- rules ----------------------------------------------------------------------------------------------------


def test_the_scope_of_a_layer_takes_the_same_share_of_each(plain: Run, data: Dataset) -> None:
    small = prune_weights(plain, data, replace(ONCE, target_size="60%", scope=Scope.LAYER), TRAINING)
    layers = plan_of(small)["layers"]
    assert plan_of(small)["removed_neurons"] == 0
    share = sum(layer["left"] for layer in layers.values()) / sum(layer["weights"] for layer in layers.values())
    assert all(abs(layer["left"] - share * layer["weights"]) <= 1 for layer in layers.values())
    everywhere = plan_of(prune_weights(plain, data, replace(ONCE, target_size="60%"), TRAINING))["layers"]
    assert layers != everywhere


def test_layers_that_are_kept_lose_nothing(plain: Run, data: Dataset) -> None:
    small = prune_weights(plain, data, replace(ONCE, target_size="88%", keep=("1",)), TRAINING)
    layers = plan_of(small)["layers"]
    assert layers["1"] == {"weights": 768, "left": 768}
    assert torch.equal(small.model.get_parameter("1.weight"), plain.model.get_parameter("1.weight"))
    assert layers["3"]["left"] < layers["3"]["weights"]
    assert_counted(small)


def test_batch_norms_have_the_statistics_of_what_is_left(residual: Run, data: Dataset) -> None:
    for options in (ONCE, ROUNDS):
        small = prune_weights(residual, data, replace(options, target_size="20%"), TRAINING)
        again = copy.deepcopy(small.model)
        reestimate(again, None, feed_of(residual, data).norms)
        buffers = dict(small.model.named_buffers())
        assert any("running_var" in name for name in buffers)
        for name, buffer in again.named_buffers():
            if "running" in name:
                assert torch.allclose(buffer, buffers[name], atol=1e-5), name


def test_the_users_own_batches(plain: Run) -> None:
    small = prune_weights(plain, batches(), replace(ROUNDS, target_size="20%"), TRAINING)
    assert_counted(small)
    assert small.metrics == {}
    judged = prune_weights(plain, batches(), replace(ONCE, max_drop=5), TRAINING, validation=batches(100, seed=1))
    assert "validation" in judged.metrics
    with pytest.raises(UsageError, match="validation="):
        prune_weights(plain, batches(), replace(ONCE, max_drop=5), TRAINING)


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "threshold and target": (
        {"threshold": 0.1, "target_size": "10%"},
        "--threshold says which .* and so does a target",
    ),
    "threshold by layer": ({"threshold": 0.1, "scope": Scope.LAYER}, "and so does --scope layer"),
    "no goal": ({}, r"^how far\? give --target-size"),
    "no distribution": ({"criterion": "snr", "target_size": "10%"}, "criterion snr needs a distribution"),
    "sigma": ({"criterion": "sigma", "threshold": 0.1}, "criterion sigma needs a distribution"),
    "log-alpha": ({"criterion": "log-alpha"}, "criterion log-alpha needs a distribution"),
    "unknown": ({"criterion": "magnitud", "threshold": 0.1}, "did you mean 'magnitude'"),
    "of neurons": ({"criterion": "taylor", "threshold": 0.1}, "unknown criterion of weights"),
    "no such layer": ({"keep": ("7",), "threshold": 0.1}, "unknown layer '7'"),
    "no number": ({"target_size": "few"}, "--target-size 'few' is not a number"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_makes_no_sense_is_refused(plain: Run, data: Dataset, tmp_path: Path, name: str) -> None:
    options, words = BAD[name]
    with pytest.raises(UsageError, match=words) as caught:
        prune_weights(plain, data, replace(ONCE, **options), TRAINING, out=tmp_path / "small")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "small").exists()


def test_it_can_be_loaded_and_says_what_it_did(plain: Run, data: Dataset, tmp_path: Path) -> None:
    small = prune_weights(plain, data, replace(ROUNDS, target_size="20%"), TRAINING, out=tmp_path / "small")
    loaded = snncompress.load(tmp_path / "small")
    assert loaded.plan == plan_of(small)
    assert (loaded.sparse, loaded.storage, loaded.noise) == (True, "csr", None)
    assert torch.equal(logits(loaded.model, some_inputs()), logits(small.model, some_inputs()))
    assert loaded.config["target_size"] == "20%"
    assert loaded.input_shape == IMAGE
