"""A network to prune, quick options, and what must hold for every pruned run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from small_data import IMAGE
from torch import Tensor, nn

from snncompress import PruneOptions, TrainOptions
from snncompress.measure.cost import measure_cost
from snncompress.models.channels import trace_channels
from snncompress.pruning.costs import CostModel
from snncompress.pruning.coupling import Group, find_groups
from snncompress.pruning.options import Allocation
from snncompress.pruning.subject import Subject
from snncompress.run import Run

TRAINING = TrainOptions(lr=0.003, batch_size=64, save_every=0)
OPTIONS = PruneOptions(target_flops="40%", candidates=3, trial_steps=4, finetune_steps=2, final_epochs=1, step=3)
QUICK = replace(OPTIONS, target_flops=None, candidates=2, allocation=Allocation.UNIFORM, final_epochs=0)
COUNTS = {"flops": "flops", "size": "weights", "memory": "memory"}  # target: count of the original


def plan_of(run: Run) -> dict[str, Any]:
    assert run.plan is not None
    return run.plan


def widths_of(run: Run) -> dict[str, int]:
    """How many neurons each family has in the end."""
    return plan_of(run)["points"][-1]["widths"]  # type: ignore[no-any-return]


def removals(monkeypatch: pytest.MonkeyPatch) -> list[list[Group]]:
    """What is removed, round by round, the dead not included."""
    remove, seen = Subject.remove, []

    def note(self: Subject, groups: Any, constants: Any = None) -> None:
        if constants is None:
            seen.append(list(groups))
        remove(self, groups, constants)

    monkeypatch.setattr(Subject, "remove", note)
    return seen


def assert_within_one_removal(small: Run, original: Run, unit: int = 1) -> None:
    """At or under all targets, and one more unit of some family would miss one of them."""
    plan, graph = plan_of(small), trace_channels(original.model, IMAGE)
    costs = CostModel(original.model, IMAGE, graph, find_groups(graph))
    cost = measure_cost(small.model, IMAGE)
    assert {"flops": cost.flops, "size": cost.parameters, "memory": cost.memory} == {key: plan[key] for key in COUNTS}
    assert all(plan[name] <= target for name, target in plan["targets"].items())
    widths = widths_of(small)
    wider = [{**widths, name: width + unit} for name, width in widths.items() if width + unit <= costs.full[name]]
    assert any(
        getattr(costs({**costs.full, **more}), name) > target
        for more in wider
        for name, target in plan["targets"].items()
    )


def assert_kept_fits(run: Run) -> None:
    for name, numbers in plan_of(run)["kept"].items():
        assert len(numbers) == len(run.model.get_parameter(f"{name}.weight")), name
        assert numbers == sorted(set(numbers))


class Residual(nn.Module):
    """A stem, a block beside a shortcut, and two layers that read its sum one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.block = nn.Sequential(
            nn.Conv2d(8, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12), nn.ReLU(),
            nn.Conv2d(12, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8),
        )  # fmt: skip
        self.last = nn.Sequential(nn.Conv2d(8, 16, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.ReLU(), nn.Linear(10, 4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = nn.functional.max_pool2d(self.last(torch.relu(x + self.block(x))), 2)
        return self.head(x)  # type: ignore[no-any-return]
