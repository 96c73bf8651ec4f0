"""Importance of neurons: what holds for every criterion, and what each one says."""

from __future__ import annotations

import copy

import pytest
import torch
from networks import IMAGE, Small, batches_of, randomize
from torch import nn

from snncompress import registry
from snncompress.errors import UsageError
from snncompress.models.channels import trace_channels
from snncompress.noise.attach import Noise, attach
from snncompress.noise.branch import Mode
from snncompress.noise.se_snn import NoiseBranch
from snncompress.pruning.coupling import Group, find_groups
from snncompress.pruning.scoring import ScoreRequest, rank

CRITERIA = list(registry.entries("criteria"))


def subject(layers: list[str] | None = None) -> tuple[nn.Module, Noise, list[Group], ScoreRequest]:
    model = randomize(Small())
    groups = find_groups(trace_channels(model, IMAGE))
    noise = attach(model, "se-snn", IMAGE, layers=layers)
    for _, parameter in noise.named_parameters():
        nn.init.normal_(parameter, std=0.3)
    batches = batches_of(torch.randn(6, *IMAGE), torch.randn(6, *IMAGE))
    return model, noise, groups, ScoreRequest(model, noise, batches, None)


@pytest.mark.parametrize("criterion", CRITERIA)
class TestContract:
    def test_every_output_of_every_hidden_layer_is_scored(self, criterion: str) -> None:
        model, _, groups, request = subject()
        scores = registry.load("criteria", criterion).score(request)
        assert {group.layer for group in groups} <= set(scores)
        for name, values in scores.items():
            assert values.shape == model.get_parameter(f"{name}.weight").shape[:1]
            assert bool(torch.isfinite(values).all())
            assert bool((values >= 0).all())
            assert not values.requires_grad

    def test_ranks_have_unit_length_in_each_layer(self, criterion: str) -> None:
        _, _, groups, request = subject()
        ranked = rank(criterion, request, groups)
        assert set(ranked) == set(groups)
        for layer in {group.layer for group in groups}:
            values = [value for group, value in ranked.items() if group.layer == layer]
            assert sum(value**2 for value in values) == pytest.approx(1)

    def test_scoring_changes_nothing_and_repeats_itself(self, criterion: str) -> None:
        model, noise, groups, request = subject()
        before = copy.deepcopy(model.state_dict()), {key: value.clone() for key, value in noise.state_dict().items()}
        torch.manual_seed(5)
        first = rank(criterion, request, groups)
        torch.manual_seed(5)
        assert rank(criterion, request, groups) == first
        assert all(torch.equal(value, before[0][key]) for key, value in model.state_dict().items())
        assert all(torch.equal(value, before[1][key]) for key, value in noise.state_dict().items())
        assert all(branch.mode is Mode.SAMPLE for branch in noise.branches.values())


def test_entropy_is_what_a_neuron_pays() -> None:
    _, noise, groups, request = subject()
    ranked = rank("entropy", request, groups)
    for name, branch in noise.branches.items():
        assert isinstance(branch, NoiseBranch)
        paid = (branch.options.margin - branch.mean_log_sigma()).clamp_min(0)
        expected = (paid / paid.norm()).tolist()
        assert [value for group, value in ranked.items() if group.layer == name] == pytest.approx(expected)


def test_drowned_neurons_are_worth_nothing() -> None:
    _, noise, groups, request = subject()
    branch = noise.branches["fc1"]
    branch.get_parameter("weight").data.zero_()
    branch.get_parameter("bias").data.fill_(1000.0)  # log σ ≈ 6.9, above the margin of 4
    ranked = rank("entropy", request, groups)
    assert [value for group, value in ranked.items() if group.layer == "fc1"] == [0.0] * 6


def test_entropy_looks_at_as_many_batches_as_it_is_told() -> None:
    model, noise, groups, request = subject()
    first = ScoreRequest(model, noise, batches_of(next(iter(request.batches))[0]), None)
    counted = ScoreRequest(model, noise, request.batches, 1)
    assert rank("entropy", counted, groups) == rank("entropy", first, groups) != rank("entropy", request, groups)


def test_magnitude_by_hand() -> None:
    model, _, groups, request = subject()
    ranked = rank("magnitude", request, groups)
    weight = model.get_parameter("conv2.weight").detach().double()
    lengths = weight.pow(2).sum((1, 2, 3)).sqrt()
    expected = (lengths / lengths.norm()).tolist()
    assert [value for group, value in ranked.items() if group.layer == "conv2"] == pytest.approx(expected, rel=1e-5)


def test_random_follows_the_seed() -> None:
    _, _, groups, request = subject()
    torch.manual_seed(1)
    one = rank("random", request, groups)
    torch.manual_seed(2)
    assert rank("random", request, groups) != one


def test_entropy_needs_noise() -> None:
    model, noise, groups, request = subject()
    noise.detach()
    with pytest.raises(UsageError, match=r"--method se-snn.*or choose --criterion magnitude"):
        rank("entropy", ScoreRequest(model, None, request.batches, None), groups)
    _, _, groups, request = subject(["conv*"])
    with pytest.raises(UsageError, match="criterion entropy says nothing about layer fc1"):
        rank("entropy", request, groups)
    with pytest.raises(UsageError, match=r"unknown criterion 'entrpy'; did you mean 'entropy'\?"):
        rank("entrpy", request, groups)
