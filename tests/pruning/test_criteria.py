"""Importance of neurons: what holds for every criterion, which one is picked, and what they need."""

from __future__ import annotations

import pytest
import torch
from networks import IMAGE, Small
from subjects import Normed, make_subject, of_layer, some_batches

from snncompress import registry
from snncompress.data.batches import IterableBatches
from snncompress.errors import UsageError
from snncompress.models.channels import trace_channels
from snncompress.noise.branch import Mode
from snncompress.pruning.coupling import find_groups
from snncompress.pruning.scoring import ScoreRequest, pick_criterion, rank
from snncompress.pruning.subject import Subject

CRITERIA = list(registry.entries("criteria"))
METHODS = [None, *registry.entries("methods")]
NEEDED = {  # noise; dropout's weights get a sampled posterior here
    "entropy": ["se-snn", "vib"], "information": ["se-snn", "vib"],
    "weight-posterior": ["sparse-vd", "vd", "dropout"], "weight-robustness": ["sparse-vd", "vd", "dropout"],
}  # fmt: skip


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("criterion", CRITERIA)
class TestContract:
    """On a network that has lost neurons already, with each kind of noise."""

    def test_it_ranks_every_neuron_or_says_why_not(self, criterion: str, method: str | None) -> None:
        subject = make_subject(Normed(), method, posterior=method == "dropout")
        subject.remove([group for group in subject.groups if group.number in (0, 2, 6)])
        batches = some_batches(6, 6)
        before = {name: tensor.clone() for name, tensor in subject.tensors().items() if name != "random.cpu"}
        if method not in NEEDED.get(criterion, [method]):
            with pytest.raises(UsageError, match=f"^criterion {criterion} .*--criterion taylor$"):  # one line
                subject.rank(criterion, batches, 2)
        else:
            torch.manual_seed(5)
            first = subject.rank(criterion, batches, 2)
            assert set(first) == set(subject.groups)
            assert all(isinstance(value, float) for value in first.values())
            assert bool(torch.isfinite(torch.tensor(list(first.values()))).all())
            assert criterion == "oracle" or min(first.values()) >= 0
            torch.manual_seed(5)
            assert subject.rank(criterion, batches, 2) == first
        after = subject.tensors()
        assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
        if subject.noise is not None:
            assert all(branch.mode is Mode.SAMPLE for branch in subject.noise.branches.values())
        assert not any(
            module._forward_pre_hooks or module._forward_hooks or "forward" in module.__dict__
            for module in subject.model.modules()
        )

    def test_auto_is_one_that_works(self, criterion: str, method: str | None) -> None:
        subject = make_subject(Small(), method)
        picked = pick_criterion("auto", subject.noise, None, subject.groups)
        assert set(subject.rank(picked, some_batches(4), 1)) == set(subject.groups)
        assert pick_criterion(criterion, subject.noise, None, subject.groups) == criterion  # what was asked for stays


@pytest.mark.parametrize("criterion", ["entropy", "magnitude", "random", "taylor", "weight-posterior"])
def test_scores_have_unit_length_in_each_layer(criterion: str) -> None:
    subject = make_subject(Small(), posterior=True)
    ranked = subject.rank(criterion, some_batches(6), 1)
    for layer in ("conv1", "conv2", "fc1"):
        assert sum(value**2 for value in of_layer(ranked, layer)) == pytest.approx(1)


def test_scores_that_mean_the_same_everywhere_are_left_alone() -> None:
    subject = make_subject(Small())
    ranked = subject.rank("information", some_batches(6), 1)
    assert subject.noise is not None
    for layer, branch in subject.noise.branches.items():
        assert of_layer(ranked, layer) == pytest.approx(branch.information().tolist())  # type: ignore[operator]


def test_what_auto_picks() -> None:
    def auto(subject: Subject) -> str:
        return pick_criterion("auto", subject.noise, subject.posterior, subject.groups)

    assert {method: auto(make_subject(Small(), method)) for method in METHODS} == {
        None: "taylor", "se-snn": "information", "sparse-vd": "weight-posterior", "vd": "weight-posterior",
        "vib": "information", "variance": "taylor", "dropout": "taylor",  # the second last has noise on one layer only
    }  # fmt: skip
    assert auto(make_subject(Small(), "dropout", posterior=True)) == "weight-posterior"
    assert auto(make_subject(Small(), None, posterior=True)) == "weight-posterior"
    assert auto(make_subject(Small(), "se-snn", posterior=True)) == "information"
    # A neuron that no noise says anything about.
    assert auto(make_subject(Small(), "se-snn", layers=["conv*"])) == "taylor"
    assert auto(make_subject(Small(), "sparse-vd", layers=["fc*"])) == "taylor"
    # One of two makers is enough.
    assert auto(make_subject(Normed(), "se-snn", layers=["conv*"])) == "information"


def test_a_neuron_of_many_makers_has_their_mean() -> None:
    subject = make_subject(Normed(), None)
    lengths = {}
    for name in ("conv2", "short"):
        length = subject.model.get_parameter(f"{name}.weight").detach().double().flatten(1).norm(dim=1)
        lengths[name] = length / length.norm()
    ranked = subject.rank("magnitude", some_batches(2), 1)
    expected = (lengths["conv2"] + lengths["short"]) / 2
    assert [v for g, v in ranked.items() if len(g.outputs) == 2] == pytest.approx(expected.tolist(), rel=1e-6)


def test_it_looks_at_as_many_batches_as_it_is_told() -> None:
    for criterion in ("entropy", "information", "taylor", "oracle"):
        subject, batches = make_subject(Small()), some_batches(6, 6)
        alone = IterableBatches([next(iter(batches))], device=torch.device("cpu"))
        first = subject.rank(criterion, alone, 2)
        assert subject.rank(criterion, batches, 1) == first
        assert subject.rank(criterion, batches, 2) != first


def test_what_criteria_need() -> None:
    plain = make_subject(Small(), None)
    for criterion, words in (
        ("entropy", r"--method se-snn.*or choose --criterion taylor"),
        ("information", r"needs the noise of se-snn.*or choose --criterion taylor"),
        ("weight-posterior", r"needs a distribution of the weights.*--method sparse-vd.*--posterior sgld"),
        ("weight-robustness", r"criterion weight-robustness needs a distribution"),
        ("entrpy", r"unknown criterion 'entrpy'; did you mean 'entropy'\?"),
    ):
        with pytest.raises(UsageError, match=words):
            plain.rank(criterion, some_batches(2), 1)
    partly = make_subject(Small(), layers=["conv*"])
    for criterion in ("entropy", "information"):
        with pytest.raises(UsageError, match=f"criterion {criterion} says nothing about layer fc1"):
            partly.rank(criterion, some_batches(2), 1)


def test_a_request_needs_no_subject() -> None:
    """The library's function, on a model with its noise attached."""
    subject, batches = make_subject(Small()), some_batches(6)
    expected = subject.rank("entropy", batches, 1)
    assert subject.noise is not None
    subject.noise.attach(subject.model)
    request = ScoreRequest(subject.model, subject.noise, batches, groups=subject.groups, norms=subject.norms)
    assert rank("entropy", request) == expected
    assert find_groups(trace_channels(subject.model, IMAGE)) == subject.groups
