"""Curves of error against weights removed, and the smaller networks beside them."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from pruned import TRAINING
from small_data import IMAGE
from sparse import feed_of

from snncompress import TrainOptions, evaluate, train
from snncompress.data.dataset import Dataset
from snncompress.errors import UsageError
from snncompress.measure.cost import measure_cost
from snncompress.models.layers import weight_layers
from snncompress.pruning.curves import find_rise, retrain_smaller, sample_moments, smaller, weight_curves
from snncompress.run import Run
from snncompress.training.distillation import DistillOptions
from snncompress.training.langevin import PosteriorOptions

SHARES = (0.0, 30.0, 60.0, 90.0)


@pytest.fixture(scope="module")
def walked(noisy: Run, data: Dataset) -> Run:
    """A run whose weights were sampled."""
    options = TrainOptions(epochs=1, lr=0.01, batch_size=64)
    return train(noisy, data, options, method="dropout", posterior=PosteriorOptions(30, 1e-5))


def test_a_curve_is_what_masking_by_hand_gives(walked: Run, data: Dataset) -> None:
    (curve,) = weight_curves(walked, data, ["magnitude"], shares=SHARES)
    weights = torch.cat([layer.weight.detach().abs().flatten() for layer in weight_layers(walked.model).values()])
    for share, error in zip(curve.shares, curve.errors, strict=True):
        model = copy.deepcopy(walked.model)
        count = round(share / 100 * len(weights))
        bound = weights.sort().values[count]
        with torch.no_grad():
            for layer in weight_layers(model).values():
                layer.weight[layer.weight.abs() < bound] = 0
        batches = feed_of(walked, data).validation
        assert batches is not None
        assert error == evaluate(model, batches).error


def test_all_criteria_begin_alike_and_the_run_is_left_alone(walked: Run, data: Dataset) -> None:
    before = copy.deepcopy(walked.model.state_dict())
    curves = weight_curves(walked, data, ["snr", "spr", "magnitude", "random", "sigma"], shares=SHARES, split="test")
    assert len({curve.errors[0] for curve in curves}) == 1
    assert all(curve.shares == SHARES for curve in curves)
    assert all(torch.equal(tensor, before[name]) for name, tensor in walked.model.state_dict().items())


def test_random_is_the_seeds(walked: Run, data: Dataset) -> None:
    def errors(seed: int) -> tuple[float, ...]:
        return weight_curves(walked, data, ["random"], shares=SHARES, seed=seed)[0].errors

    assert errors(1) == errors(1)
    assert errors(1) != errors(2)


@pytest.mark.parametrize(
    ("errors", "expected"),
    [
        ([2.0, 3.0, 5.0, 9.0], 30 + 30 * 0.5),
        ([2.0, 4.0, 5.0, 9.0], 30.0),
        ([2.0, 2.0, 2.0, 3.9], None),
        ([0.0, 0.0, 0.0, 0.0], None),
        ([2.0, 5.0, 3.0, 9.0], 20.0),  # the first time counts
    ],
)
def test_where_the_error_doubles(errors: list[float], expected: float | None) -> None:
    assert find_rise(SHARES, errors) == (None if expected is None else pytest.approx(expected))


def test_where_the_error_has_risen_by_half() -> None:
    assert find_rise(SHARES, [2.0, 2.0, 4.0, 9.0], 1.5) == pytest.approx(45.0)


def test_what_has_no_distribution_says_so_at_once(data: Dataset, noisy: Run) -> None:
    with pytest.raises(UsageError, match="criterion snr needs a distribution"):
        weight_curves(noisy, data, ["magnitude", "snr"])
    with pytest.raises(UsageError, match="unknown criterion of weights 'taylor'"):
        weight_curves(noisy, data, ["taylor"])


@pytest.mark.parametrize("share", [25.0, 60.0, 90.0])
def test_a_smaller_network_has_as_many_weights(walked: Run, share: float) -> None:
    student = smaller(walked, share)
    assert student is not None
    full = measure_cost(walked.model, IMAGE)
    matrices = sum(layer.weight.numel() for layer in weight_layers(walked.model).values())
    left, target = measure_cost(student.model, IMAGE).parameters, full.parameters - share / 100 * matrices
    assert left <= target
    assert left > target - 100  # a neuron more would be too many
    assert not student.sparse
    assert len(weight_layers(student.model)) == len(weight_layers(walked.model))


def test_a_share_that_no_network_has(walked: Run) -> None:
    assert smaller(walked, 99.9) is None


def test_retrained_networks_are_kept(walked: Run, data: Dataset, tmp_path: Path) -> None:
    teacher = replace(walked, source=None)
    options = replace(TRAINING, epochs=1)
    first = retrain_smaller(teacher, data, tmp_path, options, DistillOptions(), shares=(50.0, 99.9))
    assert first.shares == (50.0,)
    times = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*.safetensors")}
    assert {file.parent.name for file in times} == {"retrained-50"}
    assert retrain_smaller(teacher, data, tmp_path, options, DistillOptions(), shares=(50.0,)) == first
    assert times == {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*.safetensors")}


def test_moments(walked: Run, noisy: Run) -> None:
    found = sample_moments(walked)
    assert found is not None
    means, deviations = found
    weights = sum(layer.weight.numel() for layer in weight_layers(walked.model).values())
    assert len(means) == len(deviations) == min(weights, 3000)
    assert min(deviations) > 0
    assert sample_moments(noisy) is None  # noise on neurons
