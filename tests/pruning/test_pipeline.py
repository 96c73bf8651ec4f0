"""Pruning of a run: to the target, within the budget, resumed in every phase."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from small_data import CLASSES, IMAGE, batches, small_data, small_run
from torch import Tensor, nn

import snncompress
from snncompress import PruneOptions, TrainOptions, preview, prune, train
from snncompress.data.dataset import Dataset
from snncompress.errors import TargetError, TrainingDivergedError, UsageError
from snncompress.measure.cost import measure_cost
from snncompress.pruning import neurons
from snncompress.pruning.options import Allocation
from snncompress.run import Run
from snncompress.run_folder import RunFolder

TRAINING = TrainOptions(lr=0.003, batch_size=64, save_every=0)
OPTIONS = PruneOptions("40%", candidates=3, finetune_steps=2, final_epochs=1, step=3)


class CrashError(Exception):
    """Stands for a SIGKILL right after a state was saved."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return small_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def noisy(data: Dataset) -> Run:
    """A trained network with noise, one of its neurons dead."""
    run = train(small_run(), data, TrainOptions(epochs=4, lr=0.01, batch_size=64), method="se-snn")
    with torch.no_grad():
        first = run.model.get_submodule("1")
        first.weight[3] = 0  # type: ignore[index]
        first.bias[3] = -1.0  # type: ignore[index]
    return run


def watch(monkeypatch: pytest.MonkeyPatch, crash: int = 0) -> list[str]:
    """Notes the phase of every state that is saved; lets the process die after number ``crash``."""
    save, phases = RunFolder.save, []

    def save_and_note(self: RunFolder, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
        save(self, tensors, meta)
        phases.append(meta["phase"])
        if len(phases) == crash:
            raise CrashError

    monkeypatch.setattr(RunFolder, "save", save_and_note)
    return phases


def history(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]


def assert_same(run: Run, other: Run) -> None:
    assert run.model.state_dict().keys() == other.model.state_dict().keys()
    for name, tensor in run.model.state_dict().items():
        assert torch.equal(tensor, other.model.state_dict()[name]), name
    assert run.plan == other.plan
    assert run.metrics == other.metrics


def assert_kept_fits(run: Run) -> None:
    assert run.plan is not None
    for name, numbers in run.plan["kept"].items():
        assert len(numbers) == run.model.get_submodule(name).out_features, name
        assert numbers == sorted(set(numbers))


def test_it_meets_the_target_and_leaves_its_input_alone(noisy: Run, data: Dataset, tmp_path: Path) -> None:
    before = {name: tensor.clone() for name, tensor in noisy.model.state_dict().items()}
    small = prune(noisy, data, OPTIONS, TRAINING, out=tmp_path / "small")
    assert all(torch.equal(before[name], tensor) for name, tensor in noisy.model.state_dict().items())
    target = int(0.4 * noisy.original["flops"])
    assert small.plan is not None
    assert small.plan["target"] == target
    assert small.plan["removed_dead"] >= 1
    assert small.plan["logit_change"] <= 1e-5
    assert small.plan["flops"] == measure_cost(small.model, IMAGE).flops <= target
    assert small.original == noisy.original
    assert 3 not in small.plan["kept"]["1"]  # the dead one
    assert_kept_fits(small)
    costs = [point["flops"] for point in small.plan["points"]]
    assert costs == sorted(costs, reverse=True)
    assert history(tmp_path / "small") == [
        {"phase": line["phase"], **point}
        for line, point in zip(history(tmp_path / "small"), small.plan["points"], strict=True)
    ]
    assert_same(small, snncompress.load(tmp_path / "small"))


@pytest.mark.parametrize(
    "options",
    [
        OPTIONS,
        replace(OPTIONS, allocation=Allocation.GLOBAL),
        replace(OPTIONS, criterion="random", finetune_steps=0),
        replace(OPTIONS, target_flops="12%", max_drop=4.0),
    ],
    ids=["compete", "global", "random", "budget"],
)
def test_it_resumes_in_every_phase(
    noisy: Run, data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: PruneOptions
) -> None:
    monkeypatch.setattr(neurons, "TRIAL_STEPS", 4)
    with monkeypatch.context() as patch:
        phases = watch(patch)
        whole = prune(noisy, data, options, TRAINING, out=tmp_path / "whole")
    expected = {"allocate", "rounds", "final", "done"} | ({"recover"} if options.max_drop is not None else set())
    assert set(phases) == expected
    if options.max_drop is not None:
        assert whole.plan is not None
        assert whole.plan["stopped"]
    seen: Counter[str] = Counter()
    moments = []
    for number, phase in enumerate(phases, 1):  # the second state of each phase, and its last
        seen[phase] += 1
        if seen[phase] == 2 or number == len(phases) or phases[number] != phase:
            moments.append(number)
    for number in moments:
        out = tmp_path / f"run{number}"
        with monkeypatch.context() as patch, pytest.raises(CrashError):  # noqa: PT012
            watch(patch, crash=number)
            prune(noisy, data, options, TRAINING, out=out)
        torch.manual_seed(99)
        resumed = prune(noisy, data, options, TRAINING, out=out, resume=True)
        assert_same(whole, resumed)
        assert history(out) == history(tmp_path / "whole")
        assert (out / "model.safetensors").read_bytes() == (tmp_path / "whole" / "model.safetensors").read_bytes()


def test_over_the_budget_the_last_model_within_it_comes_back(noisy: Run, data: Dataset, tmp_path: Path) -> None:
    options = replace(OPTIONS, target_flops="8%", max_drop=3.0, finetune_steps=0, final_epochs=0, candidates=1, step=1)
    small = prune(noisy, data, options, TRAINING, out=tmp_path / "small")
    assert small.plan is not None
    assert "exceeds the budget" in small.plan["stopped"]
    limit = small.plan["points"][0]["error"] + 3.0
    assert small.metrics["validation"]["error"] <= limit
    assert small.plan["flops"] > small.plan["target"]
    assert small.plan["flops"] == measure_cost(small.model, IMAGE).flops
    assert any(point["error"] > limit for point in small.plan["points"])
    assert_kept_fits(small)
    assert_same(small, snncompress.load(tmp_path / "small"))


def test_a_target_above_the_models_cost_only_removes_the_dead(noisy: Run, data: Dataset) -> None:
    small = prune(noisy, data, replace(OPTIONS, target_flops="200%"), TRAINING)
    assert small.plan is not None
    inputs = torch.cat([inputs for inputs, _ in batches()])
    with torch.no_grad():
        before, after = noisy.model(inputs), small.model(inputs)
    assert (before - after).abs().max() <= 1e-5 * before.abs().max()
    assert small.model.get_submodule("1").out_features == 12 - small.plan["removed_dead"] + (
        8 - small.model.get_submodule("3").out_features
    )
    assert small.noise is not None  # nothing was fine-tuned without it


def test_an_impossible_target_is_refused_before_anything_is_written(noisy: Run, data: Dataset, tmp_path: Path) -> None:
    least = 64 + 1 + 4  # one neuron in each hidden layer
    with pytest.raises(TargetError, match=f"still costs {least}"):
        prune(noisy, data, replace(OPTIONS, target_flops=str(least - 1)), TRAINING, out=tmp_path / "small")
    tiny = prune(noisy, data, replace(OPTIONS, target_flops=str(least), step=5), TRAINING)
    assert measure_cost(tiny.model, IMAGE).flops == least
    assert list(tmp_path.iterdir()) == []


def test_a_criterion_that_cannot_score_is_refused_before_anything_is_written(data: Dataset, tmp_path: Path) -> None:
    plain = small_run()
    for criterion, words in (("entropy", "needs noise"), ("entropi", "did you mean 'entropy'")):
        with pytest.raises(UsageError, match=words):
            prune(plain, data, replace(OPTIONS, criterion=criterion), TRAINING, out=tmp_path / "small")
    assert list(tmp_path.iterdir()) == []


def test_pruned_twice_percentages_are_of_the_first_original(noisy: Run, data: Dataset, tmp_path: Path) -> None:
    once = prune(noisy, data, OPTIONS, TRAINING, out=tmp_path / "once")
    again = train(snncompress.load(tmp_path / "once"), data, replace(TRAINING, epochs=1), method="se-snn")
    assert again.plan is None  # training removes nothing
    twice = prune(again, data, replace(OPTIONS, target_flops="20%"), TRAINING, out=tmp_path / "twice")
    assert twice.original == noisy.original == once.original
    assert twice.plan is not None
    assert twice.plan["target"] == int(0.2 * noisy.original["flops"])
    assert measure_cost(twice.model, IMAGE).flops <= twice.plan["target"]
    assert_same(twice, snncompress.load(tmp_path / "twice"))


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
    plan = preview(noisy, data, OPTIONS, TRAINING)
    assert all(torch.equal(before[name], tensor) for name, tensor in noisy.model.state_dict().items())
    assert plan.flops == noisy.original["flops"]
    assert plan.target is not None
    assert plan.planned_flops == 64 * plan.planned["1"] + plan.planned["1"] * plan.planned["3"] + 4 * plan.planned["3"]
    assert plan.planned_flops <= plan.target < plan.flops
    assert plan.dead >= 1
    assert plan.neurons == 20


@pytest.mark.parametrize("wrong", [{"step": -1}, {"finetune_steps": -1}, {"candidates": 0}, {"max_drop": -1.0}])
def test_impossible_options_are_refused(wrong: dict[str, Any]) -> None:
    name = next(iter(wrong)).replace("_", "-")
    with pytest.raises(UsageError, match=f"--{name}"):
        PruneOptions("10%", **wrong)
