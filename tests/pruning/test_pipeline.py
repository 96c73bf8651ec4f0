"""Pruning of a run: to the targets, no further, by the rules that were given."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from pruned import (
    COUNTS,
    OPTIONS,
    QUICK,
    TRAINING,
    Residual,
    assert_kept_fits,
    assert_within_one_removal,
    plan_of,
    widths_of,
)
from small_data import CLASSES, IMAGE, batches, small_run
from torch import Tensor, nn

import snncompress
from snncompress import TrainOptions, preview, prune, train
from snncompress.data.dataset import Dataset
from snncompress.errors import TargetError, TrainingDivergedError, UsageError
from snncompress.files import read_tensors
from snncompress.measure.cost import measure_cost
from snncompress.models.shapes import restore
from snncompress.pruning.options import Allocation
from snncompress.run import Run
from snncompress.training.langevin import PosteriorOptions
from snncompress.training.learner import Learner


def test_it_meets_the_target_and_leaves_its_input_alone(noisy: Run, data: Dataset, tmp_path: Path) -> None:
    before = {name: tensor.clone() for name, tensor in noisy.model.state_dict().items()}
    small = prune(noisy, data, OPTIONS, TRAINING, out=tmp_path / "small")
    assert all(torch.equal(before[name], tensor) for name, tensor in noisy.model.state_dict().items())
    plan = plan_of(small)
    assert plan["targets"] == {"flops": int(0.4 * noisy.original["flops"])}
    assert plan["criterion"] == "information"
    assert plan["removed_dead"] >= 1
    assert plan["logit_change"] <= 1e-5
    assert plan["stopped"] is None
    assert_within_one_removal(small, noisy)
    assert small.original == noisy.original
    assert 3 not in plan["kept"]["1"]  # the dead one
    assert_kept_fits(small)
    costs = [point["flops"] for point in plan["points"]]
    assert costs == sorted(costs, reverse=True)
    lines = [json.loads(line) for line in (tmp_path / "small" / "history.jsonl").read_text().splitlines()]
    assert lines == [{"phase": line["phase"], **point} for line, point in zip(lines, plan["points"], strict=True)]
    loaded = snncompress.load(tmp_path / "small")
    assert loaded.plan == plan
    assert all(torch.equal(t, small.model.state_dict()[name]) for name, t in loaded.model.state_dict().items())


@pytest.mark.parametrize("noise", [False, True])
def test_the_last_fine_tuning_is_followed(noisy: Run, data: Dataset, tmp_path: Path, noise: bool) -> None:
    options = replace(OPTIONS, final_epochs=3, finetune_noise=noise)
    small = prune(noisy, data, options, TRAINING, out=tmp_path / "small")
    lines = [json.loads(line) for line in (tmp_path / "small" / "history.jsonl").read_text().splitlines()]
    final = [line for line in lines if line["phase"] == "final"]
    length = -(-len(data.train) // TRAINING.batch_size)
    first = plan_of(small)["points"][-2]["step"]  # the rounds end here
    assert [line["step"] - first for line in final] == [length, 2 * length, 3 * length]
    assert all({"error", "nll"} <= set(line) for line in final)
    assert ["flops" in line for line in final] == [False, False, True]  # the last is a point of the trade-off


def test_every_point_can_be_built_again(noisy: Run, data: Dataset, tmp_path: Path) -> None:
    small = prune(noisy, data, replace(OPTIONS, step=1), TRAINING, out=tmp_path / "small")
    files = sorted((tmp_path / "small" / "points").iterdir())
    points = plan_of(small)["points"]
    assert [file.name for file in files] == [f"{index:03}.safetensors" for index in range(len(points))]
    assert len(points) > 5
    for file, point in zip(files, points, strict=True):
        tensors, meta = read_tensors(file)
        model = small_run().model
        restore(model, meta["shapes"], tensors)
        assert measure_cost(model, IMAGE).flops == point["flops"]
        assert {name: len(model.get_parameter(f"{name}.weight")) for name in ("1", "3")} == point["widths"]
    assert all(torch.equal(tensor, small.model.state_dict()[name]) for name, tensor in tensors.items())


TARGETS = [
    {"target_size": "30%"}, {"target_memory": "50%"}, {"target_flops": "9000"}, {"target_size": "0.9k"},
    {"target_flops": "60%", "target_size": "45%", "target_memory": "80%"},
    {"target_flops": "90%", "target_memory": "300"},
]  # fmt: skip


@pytest.mark.parametrize("targets", TARGETS, ids=lambda targets: " ".join(targets.values()))
@pytest.mark.parametrize("allocation", Allocation)
def test_every_allocation_meets_every_target(
    residual: Run, data: Dataset, targets: dict[str, str], allocation: Allocation
) -> None:
    options = replace(QUICK, **targets, allocation=allocation, finetune_steps=1, step=5)
    small = prune(residual, data, options, TRAINING)
    plan = plan_of(small)
    assert plan["targets"].keys() == {name.removeprefix("target_") for name in targets}
    for name, text in targets.items():
        kind = name.removeprefix("target_")
        if text.endswith("%"):
            assert plan["targets"][kind] == int(float(text[:-1]) / 100 * residual.original[COUNTS[kind]])
    assert_within_one_removal(small, residual)
    assert_kept_fits(small)


def test_dead_and_constant_neurons_go_first_and_exactly(residual: Run, data: Dataset) -> None:
    small = prune(residual, data, QUICK, TRAINING)  # no target
    plan = plan_of(small)
    assert plan["removed_dead"] >= 2
    assert 0 not in plan["kept"]["last.0"]
    assert 1 not in plan["kept"]["last.0"]
    assert plan["targets"] == {}
    assert plan["logit_change"] <= 1e-5
    inputs = torch.cat([inputs for inputs, _ in batches()])
    with torch.no_grad():
        before, after = residual.model(inputs), small.model(inputs)
    assert (before - after).abs().max() <= 1e-5 * before.abs().max()
    assert_kept_fits(small)


def test_a_target_above_the_models_cost_only_removes_the_dead(noisy: Run, data: Dataset) -> None:
    small = prune(noisy, data, replace(OPTIONS, target_flops="200%"), TRAINING)
    inputs = torch.cat([inputs for inputs, _ in batches()])
    with torch.no_grad():
        before, after = noisy.model(inputs), small.model(inputs)
    assert (before - after).abs().max() <= 1e-5 * before.abs().max()
    assert sum(widths_of(small).values()) == 20 - plan_of(small)["removed_dead"]
    assert small.noise is not None  # nothing was fine-tuned without it


def test_an_impossible_target_is_refused_before_anything_is_written(noisy: Run, data: Dataset, tmp_path: Path) -> None:
    least = 64 + 1 + 4  # one neuron in each hidden layer
    with pytest.raises(TargetError, match=f"still cost {least}; raise --target-flops"):
        prune(noisy, data, replace(OPTIONS, target_flops=str(least - 1)), TRAINING, out=tmp_path / "small")
    small = replace(OPTIONS, target_size="70", target_memory="90%")
    with pytest.raises(TargetError, match=r"70 weights cannot be met.*still cost 75; raise --target-size"):
        prune(noisy, data, small, TRAINING, out=tmp_path / "small")
    assert list(tmp_path.iterdir()) == []
    tiny = prune(noisy, data, replace(OPTIONS, target_flops=str(least), step=5), TRAINING)
    assert measure_cost(tiny.model, IMAGE).flops == least


def test_what_cannot_be_used_is_refused_before_anything_is_written(data: Dataset, tmp_path: Path) -> None:
    plain = small_run()
    for wrong, words in (
        ({"criterion": "entropy"}, "needs the noise of se-snn"),
        ({"criterion": "entropi"}, "did you mean 'entropy'"),
        ({"criterion": "entropi", "target_flops": "200%"}, "did you mean 'entropy'"),
        ({"criterion": "bn-scale"}, "needs batch norms"),
        ({"finetune_noise": True}, "--finetune-noise needs a run that was trained with noise"),
        ({"keep": ("8",)}, "unknown layer '8'"),
    ):
        with pytest.raises(UsageError, match=words):
            prune(plain, data, replace(OPTIONS, **wrong), TRAINING, out=tmp_path / "small")  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_weights_that_are_zero_at_first_count(data: Dataset) -> None:
    """Shifts of fresh batch norms are zero; fine-tuning fills them."""
    fresh = snncompress.wrap(Residual(), IMAGE, classes=CLASSES)
    small = prune(fresh, data, replace(QUICK, target_size="30%", criterion="magnitude"), TRAINING)
    assert measure_cost(small.model, IMAGE).weights <= plan_of(small)["targets"]["size"]
    assert_within_one_removal(small, fresh)


def test_a_posterior_ranks(noisy: Run, data: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    options = TrainOptions(epochs=2, lr=0.01, batch_size=64)
    sparse = train(small_run(), data, options, method="sparse-vd")
    assert plan_of(prune(sparse, data, OPTIONS, TRAINING))["criterion"] == "weight-posterior"
    walked = train(noisy, data, options, method="dropout", posterior=PosteriorOptions(20, 1e-5))
    small = prune(walked, data, OPTIONS, TRAINING)
    assert plan_of(small)["criterion"] == "weight-posterior"
    assert_within_one_removal(small, walked)
    assert small.posterior is not None  # the variances, for the pruning of weights that may follow
    for name, weight in small.model.named_parameters():
        assert torch.equal(small.posterior[f"{name}.mean"], weight)
        assert small.posterior[f"{name}.variance"].shape == weight.shape


def test_pruned_twice_percentages_are_of_the_first_original(noisy: Run, data: Dataset, tmp_path: Path) -> None:
    once = prune(noisy, data, OPTIONS, TRAINING, out=tmp_path / "once")
    again = train(snncompress.load(tmp_path / "once"), data, replace(TRAINING, epochs=1), method="se-snn")
    assert again.plan is None  # training removes nothing
    twice = prune(again, data, replace(OPTIONS, target_flops="20%", target_size="30%"), TRAINING)
    assert twice.original == noisy.original == once.original
    assert plan_of(twice)["targets"] == {
        "flops": int(0.2 * noisy.original["flops"]), "size": int(0.3 * noisy.original["weights"]),
    }  # fmt: skip
    assert_within_one_removal(twice, noisy)


def test_the_users_own_batches_and_loss() -> None:
    losses = []

    def smooth(outputs: Tensor, targets: Tensor) -> Tensor:
        losses.append(len(targets))
        return F.cross_entropy(outputs, targets, label_smoothing=0.1)

    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 4))
    run = train(snncompress.wrap(model, IMAGE, classes=CLASSES), batches(), TRAINING, method="se-snn", loss=smooth)
    losses.clear()
    for validation in (None, batches(100, seed=1)):
        small = prune(run, batches(), OPTIONS, TRAINING, loss=smooth, validation=validation)
        assert measure_cost(small.model, IMAGE).flops <= 0.4 * run.original["flops"]
        assert ("validation" in small.metrics) == (validation is not None)
    assert losses
    with pytest.raises(UsageError, match="validation="):
        prune(run, batches(), replace(OPTIONS, max_drop=1.0), TRAINING, loss=smooth)


def test_a_loss_that_is_nan_stops_and_keeps_the_state(noisy: Run, data: Dataset, tmp_path: Path) -> None:
    with pytest.raises(TrainingDivergedError, match="--resume and a smaller --lr"):
        prune(noisy, data, OPTIONS, replace(TRAINING, lr=1e30), out=tmp_path / "small")
    assert (tmp_path / "small" / "state.safetensors").exists()
    healed = prune(noisy, data, OPTIONS, TRAINING, out=tmp_path / "small", resume=True)
    assert measure_cost(healed.model, IMAGE).flops <= 0.4 * noisy.original["flops"]


def test_a_preview_writes_and_trains_nothing(noisy: Run, data: Dataset) -> None:
    before = {name: tensor.clone() for name, tensor in noisy.model.state_dict().items()}
    plan = preview(noisy, data, replace(OPTIONS, target_size="50%"), TRAINING)
    assert all(torch.equal(before[name], tensor) for name, tensor in noisy.model.state_dict().items())
    first, second = plan.planned["1"], plan.planned["3"]
    assert plan.cost == {"flops": noisy.original["flops"], "size": noisy.original["weights"], "memory": 64 + 20}
    assert plan.planned_cost["flops"] == 64 * first + first * second + 4 * second
    assert plan.targets == {"flops": int(0.4 * plan.cost["flops"]), "size": int(0.5 * plan.cost["size"])}
    assert all(plan.planned_cost[name] <= target for name, target in plan.targets.items())
    assert plan.dead >= 1
    assert plan.neurons == 20
    assert plan.widths == {"1": 12, "3": 8}
    assert plan.criterion == "information"
    assert plan.unprunable == []
    assert plan.to_json().keys() == plan.__dataclass_fields__.keys()


def test_a_preview_counts_the_steps_that_pruning_takes(
    noisy: Run, data: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken, step = [], Learner.step

    def count(self: Learner, *args: Any, **more: Any) -> None:
        taken.append(1)
        step(self, *args, **more)

    for allocation in (Allocation.UNIFORM, Allocation.COMPETE):
        options = replace(OPTIONS, allocation=allocation, candidates=9)
        plan = preview(noisy, data, options, TRAINING)
        assert plan.seconds > 0
        with monkeypatch.context() as patch:
            patch.setattr(Learner, "step", count)
            prune(noisy, data, options, TRAINING)
        assert 0 < len(taken) <= plan.steps + 2 * options.finetune_steps  # other widths may need a round more
        assert allocation is Allocation.COMPETE or len(taken) == plan.steps
        taken.clear()
    assert preview(noisy, data, replace(OPTIONS, target_flops="200%"), TRAINING).steps == 0
    auto = preview(noisy, data, replace(OPTIONS, allocation=Allocation.UNIFORM, step=0, final_epochs=0), TRAINING)
    assert auto.steps <= 20 * OPTIONS.finetune_steps  # no more rounds than neurons


def test_a_preview_of_what_cannot_be_pruned(residual: Run, noisy: Run, data: Dataset) -> None:
    plan = preview(residual, data, replace(QUICK, target_flops="80%", keep=("block.0",), round_to=4), TRAINING)
    assert plan.unprunable == ["block.0"]
    assert plan.criterion == "taylor"
    assert all(width % 4 == 0 or width == plan.widths[name] for name, width in plan.planned.items())
    assert preview(noisy, data, replace(OPTIONS, finetune_noise=True), TRAINING).seconds > 0
    with pytest.raises(TargetError, match="cannot be met"):
        preview(noisy, data, replace(OPTIONS, target_flops="1"), TRAINING)
