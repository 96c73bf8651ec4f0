"""Options of pruning: each does what it says to the network that comes out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from pruned import (
    OPTIONS,
    QUICK,
    TRAINING,
    assert_kept_fits,
    assert_within_one_removal,
    plan_of,
    removals,
    widths_of,
)
from small_data import CLASSES, IMAGE, batches, small_run
from torch import Tensor, nn

import snncompress
from snncompress import PruneOptions, TrainOptions, prune, train
from snncompress.data.dataset import Dataset
from snncompress.errors import TargetError, UsageError
from snncompress.measure.cost import measure_cost
from snncompress.noise.branch import Mode
from snncompress.pruning.coupling import Group
from snncompress.pruning.options import Allocation, Per
from snncompress.pruning.subject import Subject
from snncompress.run import Run
from snncompress.training.distillation import DistillOptions
from snncompress.training.learner import Learner


@pytest.mark.parametrize("allocation", Allocation)
def test_widths_are_rounded(residual: Run, data: Dataset, allocation: Allocation) -> None:
    options = replace(QUICK, target_flops="55%", allocation=allocation, round_to=4)
    small = prune(residual, data, options, TRAINING)
    full = {"stem.0": 8, "block.0": 12, "block.3": 8, "last.0": 16, "head.1": 10}
    widths = {name: len(small.model.get_parameter(f"{name}.weight")) for name in full}
    assert all(width % 4 == 0 or width == full[name] for name, width in widths.items())
    assert widths != full
    assert_within_one_removal(small, residual, unit=4)


def test_widths_are_rounded_wherever_the_error_stops_it(residual: Run, data: Dataset) -> None:
    options = replace(QUICK, target_flops="20%", max_drop=2.0, round_to=4, finetune_steps=0)
    small = prune(residual, data, options, replace(TRAINING, lr=1e-9))
    plan = plan_of(small)
    assert plan["stopped"]
    for point in plan["points"]:
        full = {"stem.0": 8, "block.0": 12, "last.0": 16, "head.1": 10}
        assert all(width % 4 == 0 or width == full[name] for name, width in point["widths"].items())


def test_a_layer_keeps_what_it_must(residual: Run, noisy: Run, data: Dataset) -> None:
    least = prune(residual, data, replace(QUICK, target_flops="40%", min_neurons=6), TRAINING)
    assert all(width >= 6 for width in widths_of(least).values())
    with pytest.raises(TargetError, match=r"70 FLOPs cannot be met.*still cost 288.*--min-neurons"):
        prune(noisy, data, replace(QUICK, target_flops="70", min_neurons=4), TRAINING)
    only_dead = prune(noisy, data, replace(QUICK, min_neurons=12), TRAINING)
    assert widths_of(only_dead) == {"1": 12, "3": 8}


def test_layers_that_are_kept(residual: Run, data: Dataset) -> None:
    kept = prune(residual, data, replace(QUICK, target_flops="70%", keep=("last.*",)), TRAINING)
    assert kept.model.get_submodule("last.0").out_channels == 16  # though two of its neurons are dead
    assert "last.0" in plan_of(kept)["unprunable"]
    assert "last.0" not in plan_of(kept)["kept"]
    sum_kept = prune(residual, data, replace(QUICK, target_flops="70%", keep=("block.3", "head.1")), TRAINING)
    assert sum_kept.model.get_submodule("stem.0").out_channels == 8  # the block adds to the stem
    assert sum_kept.model.get_submodule("head.1").out_features == 10
    assert sum_kept.model.get_submodule("block.0").out_channels < 12
    with pytest.raises(UsageError, match=r"^unknown layer 'last.1'; did you mean 'last.0'\? \(known: .*stem.0\)$"):
        prune(residual, data, replace(QUICK, target_flops="70%", keep=("last.1",)), TRAINING)
    with pytest.raises(TargetError, match=r"cannot be met.*--keep"):
        prune(residual, data, replace(QUICK, target_flops="10%", keep=("*",)), TRAINING)


@pytest.mark.parametrize("step", [1, 3])
def test_as_many_neurons_a_round_as_asked_for(
    noisy: Run, data: Dataset, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    seen = removals(monkeypatch)
    small = prune(noisy, data, replace(QUICK, target_flops="30%", step=step), TRAINING)
    assert all(len(groups) == step for groups in seen[:-1])
    assert 1 <= len(seen[-1]) <= step
    assert plan_of(small)["points"][-1]["round"] == len(seen)


def test_auto_steps_grow_while_the_error_allows_it(data: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    wide = snncompress.load("mlp", arguments={"widths": "90-60"}, classes=CLASSES, input_shape=IMAGE)
    wide = train(wide, data, TrainOptions(epochs=3, lr=0.01, batch_size=64))
    seen = removals(monkeypatch)
    options = replace(QUICK, target_flops="10%", step=0, criterion="magnitude")
    prune(wide, data, replace(options, finetune_steps=8), TRAINING)
    sizes = [len(groups) for groups in seen]
    left = 150 - sizes[0]
    assert sizes[0] in (2, 3)  # 2% of what is not dead
    assert max(sizes) > sizes[0]
    assert all(size <= max(1, round(0.04 * left)) for size in sizes)
    rough = removals(monkeypatch)
    prune(wide, data, replace(options, finetune_steps=1), replace(TRAINING, lr=0.3))  # ruins it
    assert max(len(groups) for groups in rough[-10:-1]) < max(sizes)


@pytest.mark.parametrize("per", Per)
def test_the_global_ranking_by_hand(noisy: Run, data: Dataset, monkeypatch: pytest.MonkeyPatch, per: Per) -> None:
    """The first neuron that goes has the least importance by the cost that it frees."""
    seen, ranks = removals(monkeypatch), []

    def rank(self: Subject, *args: Any, **more: Any) -> dict[Group, float]:
        """The second layer is less important, but frees less."""
        importance = {group: {"1": 0.02, "3": 0.01}[group.family] + 1e-5 * group.number for group in self.groups}
        ranks.append((importance, self.widths()))
        return importance

    monkeypatch.setattr(Subject, "rank", rank)
    options = replace(QUICK, target_flops="85%", allocation=Allocation.GLOBAL, per=per, step=1)
    small = prune(noisy, data, options, TRAINING)
    assert_within_one_removal(small, noisy)
    ranked, widths = ranks[1]  # the first was the trial whether the criterion works
    first, second = widths["1"], widths["3"]
    freed = {
        Per.NONE: {"1": 1, "3": 1}, Per.FLOPS: {"1": 64 + second, "3": first + 4},
        Per.SIZE: {"1": 65 + second, "3": first + 1 + 4}, Per.MEMORY: {"1": 1, "3": 1},
    }[per]  # fmt: skip
    assert seen[0] == [min(ranked, key=lambda group: ranked[group] / freed[group.family])]
    assert seen[0][0].family == ("1" if per in (Per.FLOPS, Per.SIZE) else "3")


def test_over_the_budget_the_last_model_within_it_comes_back(noisy: Run, data: Dataset, tmp_path: Path) -> None:
    options = replace(QUICK, target_flops="8%", max_drop=3.0, finetune_steps=0, step=1)
    small = prune(noisy, data, options, TRAINING, out=tmp_path / "small")
    plan = plan_of(small)
    assert "exceeds the budget" in plan["stopped"]
    limit = plan["points"][0]["error"] + 3.0
    assert small.metrics["validation"]["error"] <= limit
    assert plan["flops"] > plan["targets"]["flops"]
    assert plan["flops"] == measure_cost(small.model, IMAGE).flops
    assert any(point["error"] > limit for point in plan["points"])
    assert_kept_fits(small)
    assert snncompress.load(tmp_path / "small").plan == plan


def test_the_smaller_of_two_error_budgets_counts(noisy: Run, data: Dataset) -> None:
    before = noisy.metrics["validation"]["error"]
    options = replace(QUICK, target_flops="8%", finetune_steps=0, step=1)
    by_drop = prune(noisy, data, replace(options, max_drop=4.0), TRAINING)
    for max_error, max_drop in ((before + 4.0, None), (before + 4.0, 90.0), (100.0, 4.0)):
        other = prune(noisy, data, replace(options, max_error=max_error, max_drop=max_drop), TRAINING)
        assert plan_of(other) == plan_of(by_drop)
    generous = prune(noisy, data, replace(options, max_error=100.0), TRAINING)
    assert plan_of(generous)["stopped"] is None
    assert_within_one_removal(generous, noisy)


def test_as_far_as_the_error_allows(noisy: Run, data: Dataset) -> None:
    """A limit without a target: pruning goes on until the error stops it."""
    small = prune(noisy, data, replace(QUICK, max_drop=5.0), TRAINING)
    first, plan = plan_of(small)["points"][0], plan_of(small)
    assert plan["stopped"]
    assert plan["flops"] < first["flops"]
    assert small.metrics["validation"]["error"] <= first["error"] + 5.0
    assert min(point["flops"] for point in plan["points"]) < plan["flops"]  # it has tried to go further


def test_a_budget_that_the_model_itself_exceeds(data: Dataset) -> None:
    fresh = small_run()  # guesses
    options = replace(QUICK, target_flops="50%", max_error=1.0)
    with pytest.raises(
        TargetError, match=r"begins with has a validation error of \d+\.\d+%, more than 1%; raise --max-error"
    ):
        prune(fresh, data, options, replace(TRAINING, lr=1e-9))


@pytest.mark.parametrize("method", ["se-snn", "sparse-vd", "vd", "dropout"])
def test_fine_tuning_with_noise(data: Dataset, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    """The plain model that comes out is the mean of the noise that comes with it, which has been trained, too."""
    weak = {"kl_scale": 0.05} if method == "sparse-vd" else {}  # there are few images, so the prior would win
    options = TrainOptions(epochs=4, lr=0.01, batch_size=64)
    run = train(small_run(), data, options, method=method, method_options=weak)
    step, clocks = Learner.step, []

    def note(self: Learner, *args: Any, **more: Any) -> None:
        if self.noise is not None:
            clocks.extend(branch.clock for branch in self.noise.branches.values())
        step(self, *args, **more)

    monkeypatch.setattr(Learner, "step", note)
    pruning = replace(QUICK, target_flops="50%", finetune_noise=True, final_epochs=3)
    small = prune(run, data, pruning, options)
    assert {clock.examples for clock in clocks} == {len(data.train)}  # the KL is divided by them
    assert small.noise is not None
    plain = torch.cat([inputs for inputs, _ in batches(100)])
    expected = small.model(plain)
    noise = small.attach_noise(small.model)
    assert noise is not None
    with torch.no_grad(), noise.mode(Mode.MEAN):
        assert torch.allclose(small.model(plain), expected, atol=1e-5)
    noise.detach()
    assert small.metrics["validation"]["error"] < 40  # 75 is a guess
    still = prune(run, data, replace(pruning, finetune_noise=False), options)
    assert still.noise is not None
    if small.noise.tensors:
        name = next(iter(small.noise.tensors))
        original = run.noise.tensors[name] if run.noise is not None else torch.zeros(())
        assert set(still.noise.tensors[name].flatten().tolist()) <= set(original.flatten().tolist())
        assert not set(small.noise.tensors[name].flatten().tolist()) <= set(original.flatten().tolist())


def test_distillation_alone_does_not_look_at_labels(noisy: Run, tmp_path: Path) -> None:
    right = batches()
    wrong = [(inputs, (labels + 1) % 4) for inputs, labels in right]
    options = replace(QUICK, target_flops="40%", criterion="magnitude", final_epochs=1)

    def pruned(pairs: list[tuple[Tensor, Tensor]], **teaching: Any) -> Tensor:
        return prune(noisy, pairs, options, TRAINING, **teaching).model.get_parameter("1.weight")

    deaf = {"teacher": noisy, "distill": DistillOptions(weight=1.0)}
    assert torch.equal(pruned(right, **deaf), pruned(wrong, **deaf))
    assert not torch.equal(pruned(right), pruned(wrong))
    assert not torch.equal(pruned(right), pruned(right, teacher=noisy))


def test_a_teacher_of_another_shape_and_one_that_does_not_fit(noisy: Run, data: Dataset, tmp_path: Path) -> None:
    small = prune(noisy, data, OPTIONS, TRAINING, out=tmp_path / "small", teacher=noisy)
    assert small.config["distill"] == {"run": noisy.name, "temperature": 4.0, "weight": 0.9}
    taught = prune(noisy, data, OPTIONS, TRAINING, teacher=small, distill=DistillOptions(2.0, 0.5))
    assert taught.config["distill"] == {"run": str(tmp_path / "small"), "temperature": 2.0, "weight": 0.5}
    other = snncompress.wrap(nn.Sequential(nn.Flatten(), nn.Linear(64, 5)), IMAGE)
    with pytest.raises(UsageError, match="gives 5 outputs"):
        prune(noisy, data, OPTIONS, TRAINING, teacher=other)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"step": -1}, "0 or more"), ({"finetune_steps": -1}, "0 or more"), ({"candidates": 0}, "1 or more"),
        ({"trial_steps": 0}, "1 or more"), ({"round_to": 0}, "1 or more"), ({"min_neurons": 0}, "1 or more"),
        ({"final_epochs": -1}, "0 or more"), ({"max_error": -0.1}, "0 or more"), ({"max_drop": -1.0}, "0 or more"),
        ({"max_error": float("nan")}, "0 or more"), ({"final_lr": 0.0}, "above 0"),
        ({"final_lr": float("inf")}, "above 0"),
    ],
)  # fmt: skip
def test_impossible_options_are_refused(wrong: dict[str, Any], words: str) -> None:
    name = next(iter(wrong)).replace("_", "-")
    with pytest.raises(UsageError, match=f"^--{name} .* is out of range; give .*{words}$"):
        PruneOptions(target_flops="10%", **wrong)


def test_what_options_say_of_themselves() -> None:
    assert not PruneOptions().aimed
    assert not PruneOptions().limited
    for name in ("flops", "size", "memory", "latency"):
        assert PruneOptions(**{f"target_{name}": "50%"}).aimed  # type: ignore[arg-type]
    assert PruneOptions(max_error=0.0).limited
    assert PruneOptions(max_drop=0.0).limited


def test_the_last_learning_rate(noisy: Run, data: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """A constant rate between rounds, one that falls from its own start at the end."""
    rates, step = [], Learner.step

    def note(self: Learner, *args: Any, lr: float) -> None:
        rates.append(lr)
        step(self, *args, lr=lr)

    monkeypatch.setattr(Learner, "step", note)
    prune(noisy, data, replace(QUICK, target_flops="40%", final_epochs=1, final_lr=0.02), TRAINING)
    steps = -(-len(data.train) // TRAINING.batch_size)
    assert set(rates[:-steps]) == {TRAINING.lr}
    last = rates[-steps:]
    assert last[0] == pytest.approx(0.02)
    assert last == sorted(last, reverse=True)
    assert last[-1] < 0.002
