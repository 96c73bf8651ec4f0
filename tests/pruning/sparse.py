"""Quick options of weight pruning, and what must hold for every sparse run."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch
from pruned import TRAINING, plan_of
from small_data import IMAGE
from torch import Tensor, nn

from snncompress import WeightOptions
from snncompress.data.dataset import Dataset
from snncompress.measure.cost import measure_cost
from snncompress.models.layers import find_zeros, weight_layers
from snncompress.pruning.ranking import Ranking
from snncompress.pruning.sparsifier import Sparsifier
from snncompress.pruning.subject import Subject
from snncompress.run import Run
from snncompress.training.feed import Feed, make_feed
from snncompress.training.learner import Learner

ONCE = WeightOptions(criterion="magnitude", finetune_steps=0, final_epochs=0)
ROUNDS = replace(ONCE, finetune_steps=2, final_epochs=1)


def feed_of(run: Run, data: Dataset) -> Feed:
    return make_feed(data, None, TRAINING, run.normalization, torch.device("cpu"))


def sparsifier_of(run: Run, data: Dataset, keep: tuple[str, ...] = ()) -> Sparsifier:
    """What pruning works with, in its first state; for runs whose mean carries something."""
    model = copy.deepcopy(run.model)
    noise = run.attach_noise(model)
    if noise is not None:
        noise.detach()
    learner = Learner(model, None, TRAINING, sparse=True)
    subject = Subject(learner, noise, run.input_shape, keep=keep, posterior=run.posterior)
    return Sparsifier(subject, feed_of(run, data))


def kept_by(ranking: Ranking, run: Run) -> int:
    """How many weights stayed when a run was pruned at once by scores without ties."""
    threshold = plan_of(run)["threshold"]
    return ranking.least if threshold is None else ranking.above(threshold)


def assert_counted(run: Run) -> None:
    """The plan says what the model costs, and no more than was asked for."""
    plan, cost = plan_of(run), measure_cost(run.measured_model(), IMAGE)
    assert {"flops": cost.flops, "size": cost.weights, "memory": cost.memory} == {
        key: plan[key] for key in ("flops", "size", "memory")
    }
    assert all(plan[name] <= target for name, target in plan["targets"].items())
    left = {name: int(layer.weight.count_nonzero()) for name, layer in weight_layers(run.measured_model()).items()}
    assert left == {name: layer["left"] for name, layer in plan["layers"].items()}
    assert run.sparse


def assert_zeros_stay(before: nn.Module, after: nn.Module) -> None:
    """What was zero is zero, and something else has changed."""
    zeros, now = find_zeros(before), find_zeros(after)
    assert zeros.keys() == now.keys()
    assert sum(int(zero.sum()) for zero in zeros.values())
    for name, zero in zeros.items():
        assert not bool((zero & ~now[name]).any()), name
    assert any(not torch.equal(p, q) for p, q in zip(before.parameters(), after.parameters(), strict=True))


def logits(model: nn.Module, inputs: Tensor) -> Tensor:
    with torch.no_grad():
        output: Tensor = model.eval()(inputs)
    return output


def some_inputs() -> Tensor:
    return torch.randn(50, *IMAGE, generator=torch.Generator().manual_seed(0))


def without_small(run: Run, threshold: float) -> nn.Module:
    """A copy whose weights of less than a size are zero, but for the largest of each layer."""
    model = copy.deepcopy(run.model)
    for layer in weight_layers(model).values():
        weight: Any = layer.weight.data
        weight[(weight.abs() < threshold) & (weight.abs() < weight.abs().max())] = 0
    return model
