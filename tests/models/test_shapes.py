"""The widths of a compact model, written down and set on a fresh build: the same outputs."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from networks import IMAGE, Small, Ways, close, networks, randomize, some_of
from torch import Tensor, nn

from snncompress.errors import ModelError
from snncompress.models.channels import trace_channels
from snncompress.models.initial import reinitialize
from snncompress.models.padding import ChannelPad
from snncompress.models.shapes import record_shapes, restore
from snncompress.pruning.compaction import compact
from snncompress.pruning.coupling import by_family, find_groups


@settings(derandomize=True, deadline=None, max_examples=40, suppress_health_check=list(HealthCheck))
@given(networks(), st.randoms(use_true_random=False))
def test_round_trip(model: nn.Module, random: object) -> None:
    groups = some_of(find_groups(trace_channels(model, IMAGE)), lambda: random.random() < 0.5)  # type: ignore[attr-defined]
    fresh = copy.deepcopy(model)
    compacted, _ = compact(model, groups)
    shapes = json.loads(json.dumps(record_shapes(compacted)))  # it has to survive a file
    restore(fresh, shapes, compacted.state_dict())
    x = torch.randn(3, *IMAGE, dtype=torch.float64)
    assert close(fresh(x), compacted(x), 0)
    assert record_shapes(fresh) == record_shapes(compacted)
    restore(fresh, record_shapes(model), model.state_dict())  # and back
    assert close(fresh(x), model(x), 0)


def small() -> tuple[nn.Module, nn.Module]:
    model = randomize(Small())
    groups = find_groups(trace_channels(model, IMAGE))
    return model, compact(model, [members[0] for members in by_family(groups).values()])[0]


def test_what_is_recorded() -> None:
    _, compacted = small()
    assert record_shapes(compacted) == {
        "conv1": {"in_channels": 3, "out_channels": 3, "groups": 1},
        "norm1": {"num_features": 3},
        "conv2": {"in_channels": 3, "out_channels": 4, "groups": 1},
        "norm2": {"num_features": 4},
        "fc1": {"in_features": 64, "out_features": 5},
        "fc2": {"in_features": 5, "out_features": 4},
    }


def test_groups_and_paddings_are_recorded() -> None:
    padded = Ways("add", ChannelPad(2, 2, 2), nn.Conv2d(4, 8, 3, stride=2, padding=1, groups=2))
    model = randomize(nn.Sequential(nn.Conv2d(3, 4, 1), padded, nn.GroupNorm(4, 8), nn.Conv2d(8, 4, 4)))
    groups = find_groups(trace_channels(model, IMAGE))
    compacted, _ = compact(model, groups[:1])
    shapes = record_shapes(compacted)
    assert shapes == {
        "0": {"in_channels": 3, "out_channels": 2, "groups": 1},
        "1.branches.0": {"pad_before": 0, "pad_after": 2},
        "1.branches.1": {"in_channels": 2, "out_channels": 4, "groups": 1},
        "2": {"num_channels": 4, "num_groups": 2},
        "3": {"in_channels": 4, "out_channels": 4, "groups": 1},
    }
    x = torch.randn(2, *IMAGE)
    restore(model, shapes, compacted.state_dict())
    assert close(model(x), compacted(x), 0)


def test_attributes_that_a_module_names_itself() -> None:
    class Pad(nn.Module):
        shape_attributes = ("before",)
        before = 2

        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.pad(x, (self.before, 0))

    model, changed = nn.Sequential(Pad()), nn.Sequential(Pad())
    changed[0].before = 5  # type: ignore[assignment]
    restore(model, record_shapes(changed), {})
    assert model(torch.zeros(1, 1)).shape == (1, 6)


def test_frozen_parameters_stay_frozen() -> None:
    model, compacted = small()
    model.conv1.weight.requires_grad_(False)  # type: ignore[union-attr]
    restore(model, record_shapes(compacted), compacted.state_dict())
    assert not model.conv1.weight.requires_grad  # type: ignore[union-attr]
    assert model.conv2.weight.requires_grad  # type: ignore[union-attr]


def test_errors_name_the_layer() -> None:
    model, compacted = small()
    with pytest.raises(ModelError, match="'other'"):
        restore(model, {"other": {"in_features": 3}}, {})
    tensors = compacted.state_dict()
    del tensors["fc1.bias"]
    with pytest.raises(ModelError, match=r"fc1\.bias") as caught:
        restore(model, record_shapes(compacted), tensors)
    assert "\n" not in str(caught.value)


def test_new_weights_of_a_compact_model() -> None:
    _, compacted = small()
    before = copy.deepcopy(compacted.state_dict())
    reinitialize(compacted)
    after = compacted.state_dict()
    assert {name: value.shape for name, value in before.items()} == {name: value.shape for name, value in after.items()}
    drawn = [name for name in after if name.startswith(("conv", "fc"))]
    assert not any(torch.equal(before[name], after[name]) for name in drawn)
    assert torch.equal(after["norm1.running_mean"], torch.zeros(3))
    again = copy.deepcopy(after)
    torch.manual_seed(3)
    reinitialize(compacted)
    first = copy.deepcopy(compacted.state_dict())
    torch.manual_seed(3)
    reinitialize(compacted)
    assert all(torch.equal(first[name], value) for name, value in compacted.state_dict().items())
    assert not torch.equal(again["fc1.weight"], first["fc1.weight"])
