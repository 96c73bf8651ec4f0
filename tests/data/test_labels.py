"""Labels made wrong on purpose: as many as asked for, in one pattern a seed, and never the test set's."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_data import small_data, write_npz, write_table

from snncompress.data.dataset import Dataset
from snncompress.data.labels import TRAIN, VALIDATION, Corruption, LabelNoise, change, partners
from snncompress.data.sources import load_data
from snncompress.errors import UsageError

PATTERNED = LabelNoise(Corruption.PATTERNED, 0.3)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_npz(tmp_path_factory.mktemp("data") / "quarters.npz", 2000)


@pytest.fixture(scope="module")
def clean(source: str) -> Dataset:
    return load_data(source)


@settings(derandomize=True, deadline=None, max_examples=30)
@given(
    classes=st.integers(2, 12),
    kind=st.sampled_from([Corruption.PATTERNED, Corruption.UNIFORM]),
    strength=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    seed=st.integers(0, 2**40),
)
def test_as_many_labels_as_asked_for_become_another_class(
    classes: int, kind: Corruption, strength: float, seed: int
) -> None:
    labels = torch.arange(6000) % classes
    changed = change(labels, classes, LabelNoise(kind, strength), seed)
    assert changed.dtype == labels.dtype
    assert 0 <= int(changed.min()) <= int(changed.max()) < classes
    share = float((changed != labels).float().mean())
    assert abs(share - strength) <= 5 * (strength * (1 - strength) / 6000) ** 0.5  # five deviations
    if kind is Corruption.PATTERNED:
        wrong = changed != labels
        assert torch.equal(changed[wrong], partners(classes, seed)[labels[wrong]])


@settings(derandomize=True, deadline=None, max_examples=30)
@given(classes=st.integers(2, 12), seed=st.integers(0, 2**40))
def test_no_class_is_its_own_partner(classes: int, seed: int) -> None:
    found = partners(classes, seed)
    assert found.shape == (classes,)
    assert not (found == torch.arange(classes)).any()


def test_uniform_noise_reaches_every_other_class() -> None:
    labels = torch.zeros(8000, dtype=torch.int64)
    counts = change(labels, 5, LabelNoise(Corruption.UNIFORM, 0.8), seed=0).bincount(minlength=5)
    assert abs(counts.float() - 1600).max() < 5 * (8000 * 0.2 * 0.8) ** 0.5


def test_random_labels_know_nothing_of_the_truth() -> None:
    labels = torch.arange(10_000) % 10
    drawn = change(labels, 10, LabelNoise(Corruption.RANDOM), seed=0)
    table = torch.zeros(10, 10).index_put_((labels, drawn), torch.ones(10_000), accumulate=True)
    chi2 = float(((table - 100) ** 2 / 100).sum())  # 99 degrees of freedom at most
    assert chi2 < 99 + 5 * (2 * 99) ** 0.5
    assert drawn.bincount().unique().numel() > 1  # drawn one by one, not permuted


def test_a_seed_decides_all_and_parts_differ() -> None:
    labels = torch.arange(1000) % 10
    assert torch.equal(change(labels, 10, PATTERNED, 3), change(labels, 10, PATTERNED, 3))
    assert not torch.equal(change(labels, 10, PATTERNED, 3), change(labels, 10, PATTERNED, 4))
    train, validation = (change(labels, 10, PATTERNED, 3, part) for part in (TRAIN, VALIDATION))
    assert not torch.equal(train, validation)
    assert any(not torch.equal(partners(10, 0), partners(10, seed)) for seed in (1, 2))


def test_training_and_validation_labels_are_noisy_and_test_labels_true(source: str, clean: Dataset) -> None:
    noisy = load_data(source, label_noise="patterned:0.3")
    assert noisy.label_noise == "patterned:0.3"
    assert noisy.truth is not None
    assert torch.equal(noisy.truth, clean.train.labels)
    assert 0.2 < float((noisy.train.labels != clean.train.labels).float().mean()) < 0.4
    assert 0.2 < float((noisy.validation.labels != clean.validation.labels).float().mean()) < 0.4
    assert noisy.test is not None
    assert clean.test is not None
    assert torch.equal(noisy.test.labels, clean.test.labels)
    indices = torch.arange(20)
    (images, labels), (pictures, _) = noisy.train.batch(indices), clean.train.batch(indices)
    assert torch.equal(images, pictures)
    assert torch.equal(labels, noisy.train.labels[:20])
    assert torch.equal(noisy.train.subset(indices).labels, labels)


def test_half_of_the_test_images_for_validation_are_noisy_too(source: str) -> None:
    clean, noisy = (load_data(source, holdout="test", label_noise=noise) for noise in ("none", "uniform:0.5"))
    assert (clean.label_noise, clean.truth) == (None, None)
    assert not torch.equal(noisy.validation.labels, clean.validation.labels)
    assert noisy.test is not None
    assert clean.test is not None
    assert torch.equal(noisy.test.labels, clean.test.labels)


def test_fewer_training_images(source: str, clean: Dataset) -> None:
    few = load_data(source, limit_train=50)
    assert len(few.train) == 50
    assert torch.equal(few.validation.labels, clean.validation.labels)
    names = [*few.train.names]
    assert len({*names}) == 50
    assert {*names} <= {*clean.train.names}
    places = torch.tensor([[*clean.train.names].index(name) for name in names])
    assert torch.equal(few.train.batch(torch.arange(50))[0], clean.train.batch(places)[0])
    assert [*load_data(source, limit_train=50).train.names] == names
    truth = load_data(source, limit_train=50, label_noise="random").truth
    assert truth is not None
    assert torch.equal(truth, few.train.labels)


@pytest.mark.parametrize("count", [0, -1, 10**6])
def test_too_few_or_too_many_images_are_refused(source: str, count: int) -> None:
    with pytest.raises(UsageError, match=f"--limit-train {count} is out of range: .* has 1,\\d+ training images"):
        load_data(source, limit_train=count)


@pytest.mark.parametrize("text", ["patterned:0.3", "uniform:0", "uniform:1", "random"])
def test_what_is_read_can_be_written(text: str) -> None:
    assert str(LabelNoise.parse(text)) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pattern:0.3", "unknown label noise 'pattern'; did you mean 'patterned'"),
        ("patterned", "write patterned:0.3"),
        ("random:0.5", "write random"),
        ("none:0.5", "write none"),
        ("uniform:x", "'x' is no share"),
        ("uniform:nan", "'nan' is no share"),
        ("uniform:1.5", "out of range"),
        ("patterned:-0.1", "out of range"),
    ],
)
def test_impossible_noise_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        LabelNoise.parse(text)


def test_numbers_cannot_be_mixed_up(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"mixes up classes, but .* is for predicting a number"):
        load_data(write_table(tmp_path / "table.npz"), label_noise="uniform:0.1")


def test_names_follow_the_images(tmp_path: Path) -> None:
    data = small_data(tmp_path)
    parts = [data.train, data.validation, *([] if data.test is None else [data.test])]
    assert all(len(part.names) == len(part) for part in parts)
    some = data.train.subset(torch.tensor([5, 2]))
    assert [*some.names] == [data.train.names[5], data.train.names[2]]
