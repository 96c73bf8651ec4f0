"""The peak memory of a forward pass, against sums by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from snncompress.measure.peak import measure_peak_bytes


def test_a_chain_holds_what_an_operator_reads_and_gives() -> None:
    # 10 floats of input stay with the caller; relu reads 1000 and gives 1000.
    model = nn.Sequential(nn.Flatten(), nn.Linear(10, 1000), nn.ReLU(), nn.Linear(1000, 5))
    assert measure_peak_bytes(model, (10, 1, 1)) == 4 * (10 + 1000 + 1000)
    assert measure_peak_bytes(model, (10, 1, 1), batch=7) == 7 * 4 * (10 + 1000 + 1000)


def test_work_in_place_costs_nothing_more() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(10, 1000), nn.ReLU(inplace=True), nn.Linear(1000, 5))
    assert measure_peak_bytes(model, (10, 1, 1)) == 4 * (10 + 1000 + 5)


def test_a_residual_keeps_its_input_alive() -> None:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 100), nn.Linear(100, 100)

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x.flatten(1))
            return x + self.second(x)

    assert measure_peak_bytes(Residual(), (8, 1, 1)) == 4 * (8 + 3 * 100)


def test_a_model_that_looks_at_values_runs_on_the_cpu() -> None:
    class Peeks(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            x = x.flatten(1)
            return x + 1 if float(x.sum()) == 0 else torch.cat([x, x])

    assert measure_peak_bytes(Peeks(), (100, 1, 1)) >= 4 * 200


def test_the_model_is_left_as_it_was() -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)).train()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    assert measure_peak_bytes(model, (1, 8, 8)) > 0
    assert model.training
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


@pytest.mark.parametrize("batch", [1, 3])
def test_views_are_counted_once(batch: int) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Unflatten(1, (2, 50)), nn.Flatten())
    assert measure_peak_bytes(model, (100, 1, 1), batch) == batch * 400
