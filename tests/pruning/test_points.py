"""Points of the trade-off: every one comes back as the model that pruning had there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from pruned import OPTIONS, TRAINING, plan_of
from small_data import IMAGE

from snncompress import load, prune
from snncompress.data.dataset import Dataset
from snncompress.errors import RunError, UsageError
from snncompress.evaluation.accuracy import evaluate
from snncompress.measure.cost import measure_cost
from snncompress.pruning.points import restore_point
from snncompress.run import Run
from snncompress.training.feed import make_feed


@pytest.fixture(scope="module")
def small(noisy: Run, data: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Run:
    out = tmp_path_factory.mktemp("runs") / "small"
    return prune(noisy, data, replace(OPTIONS, target_flops="20%"), TRAINING, out=out)


def test_every_point_comes_back(small: Run, data: Dataset, tmp_path: Path) -> None:
    points = plan_of(small)["points"]
    assert len(points) > 3
    validation = make_feed(data, None, TRAINING, small.normalization, torch.device("cpu")).validation
    for index, point in enumerate(points):
        run = restore_point(small, point=index, out=tmp_path / str(index))
        cost = measure_cost(run.model, IMAGE)
        assert (cost.flops, cost.parameters, cost.memory) == (point["flops"], point["size"], point["memory"])
        assert evaluate(run.model, validation).error == point["error"] == run.metrics["validation"]["error"]
        again = load(tmp_path / str(index))
        assert again.parent == str(small.path)
        assert all(torch.equal(a, b) for a, b in zip(again.model.parameters(), run.model.parameters(), strict=True))
    last = restore_point(small, point=len(points) - 1)
    assert all(torch.equal(a, b) for a, b in zip(last.model.parameters(), small.model.parameters(), strict=True))


def test_the_cheapest_point_within_an_error(small: Run) -> None:
    points = plan_of(small)["points"]
    for limit in {point["error"] for point in points}:
        found = measure_cost(restore_point(small, under=limit).model, IMAGE).flops
        assert found == min(point["flops"] for point in points if point["error"] <= limit)


def test_what_cannot_be_restored(small: Run, noisy: Run, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no point has a validation error of at most -1%; the best has \d"):
        restore_point(small, under=-1.0)
    with pytest.raises(UsageError, match="there is no point 99; the points of this run are 0 to"):
        restore_point(small, point=99)
    with pytest.raises(UsageError, match="which point"):
        restore_point(small)
    with pytest.raises(UsageError, match="was not pruned"):
        restore_point(noisy, point=0)
    with pytest.raises(RunError, match="missing, so point 0 cannot be restored"):
        restore_point(replace(small, path=tmp_path), point=0)
