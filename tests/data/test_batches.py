from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from snncompress.data.batches import Batches, IterableBatches
from snncompress.data.dataset import Normalization, TensorImages
from snncompress.errors import UsageError

CPU = torch.device("cpu")
NONE = Normalization((0.0,), (1.0,))


def numbered(count: int) -> TensorImages:
    images = torch.arange(count, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 6, 6).clone()
    return TensorImages(images, torch.arange(count), device=CPU)


def shuffled(count: int = 23, augment: str = "none", seed: int = 0) -> Batches:
    return Batches(numbered(count), 5, NONE, device=CPU, augment=augment, shuffle=True, seed=seed)


def viewed(augment: str = "crop-flip", views: int = 2, count: int = 23) -> Batches:
    return Batches(numbered(count), 5, NONE, device=CPU, augment=augment, shuffle=True, views=views)


def labels(batches: Iterator[tuple[Tensor, Tensor]]) -> list[list[int]]:
    return [target.tolist() for _, target in batches]


def test_without_shuffling_images_come_in_order_scaled_and_normalized() -> None:
    normalization = Normalization((0.25,), (0.5,))
    batches = Batches(numbered(7), 3, normalization, device=CPU)
    assert labels(iter(batches)) == [[0, 1, 2], [3, 4, 5], [6]]
    inputs = torch.cat([x for x, _ in batches])
    torch.testing.assert_close(inputs[:, 0, 0, 0], (torch.arange(7) / 255 - 0.25) / 0.5)


def test_float_images_are_not_scaled() -> None:
    images = torch.rand(4, 1, 3, 3)
    batches = Batches(TensorImages(images, torch.zeros(4), device=CPU), 4, NONE, device=CPU)
    assert torch.equal(next(iter(batches))[0], images)


def test_an_epoch_holds_every_image_once_in_an_order_of_its_own() -> None:
    first, second = (list(chain(*labels(shuffled().epoch(e)))) for e in (0, 1))
    assert sorted(first) == sorted(second) == list(range(23))
    assert first != second
    assert list(chain(*labels(shuffled(seed=1).epoch(0)))) != first


def test_the_order_is_a_function_of_seed_and_epoch_only() -> None:
    before = labels(shuffled().epoch(3))
    torch.manual_seed(99)
    torch.rand(5)
    assert labels(shuffled().epoch(3)) == before


@pytest.mark.parametrize("augment", ["none", "shift", "crop-flip"])
def test_a_resumed_epoch_sees_the_batches_of_an_uninterrupted_one(augment: str) -> None:
    batches = shuffled(augment=augment)
    torch.manual_seed(1)
    whole, states = [], []
    for batch in batches.epoch(2):
        whole.append(batch)
        states.append(torch.get_rng_state())
    torch.set_rng_state(states[1])
    resumed = list(batches.epoch(2, skip=2))
    assert len(resumed) == len(whole) - 2
    for (inputs, targets), (old_inputs, old_targets) in zip(resumed, whole[2:], strict=True):
        assert torch.equal(inputs, old_inputs)
        assert torch.equal(targets, old_targets)


def test_skipping_everything_draws_nothing() -> None:
    state = torch.get_rng_state()
    assert list(shuffled(augment="shift").epoch(0, skip=5)) == []
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(("count", "size", "expected"), [(20, 5, 4), (23, 5, 5), (21, 5, 4), (1, 5, 1), (3, 1, 3)])
def test_length_counts_the_batches_and_leaves_out_a_single_sample(count: int, size: int, expected: int) -> None:
    batches = Batches(numbered(count), size, NONE, device=CPU, shuffle=True)
    assert len(batches) == len(list(batches)) == expected
    assert batches.samples == count


def test_without_shuffling_a_single_sample_stays() -> None:
    batches = Batches(numbered(21), 5, NONE, device=CPU)
    assert len(batches) == len(list(batches)) == 5


def test_batches_are_made_on_the_device_they_are_asked_for() -> None:
    meta = torch.device("meta")
    images = TensorImages(torch.empty(9, 1, 6, 6, device=meta), torch.empty(9, device=meta), device=meta)
    for inputs, targets in Batches(images, 4, NONE, device=meta, augment="crop-flip", shuffle=True):
        assert inputs.device == targets.device == meta


def test_impossible_options_are_explained() -> None:
    with pytest.raises(UsageError, match="--batch-size is 0"):
        Batches(numbered(3), 0, NONE, device=CPU)
    with pytest.raises(UsageError, match="did you mean 'shift'"):
        Batches(numbered(3), 1, NONE, device=CPU, augment="shfit")
    with pytest.raises(UsageError, match="3 channels, but the images have 1"):
        Batches(numbered(3), 1, Normalization.parse("imagenet", 3), device=CPU)


def pairs() -> list[tuple[Tensor, Tensor]]:
    return [(torch.full((2, 1), float(i)), torch.tensor([i, i])) for i in range(3)]


def test_own_batches_pass_through_again_and_again() -> None:
    batches = IterableBatches(pairs(), device=CPU)
    assert len(batches) == 3
    assert batches.samples == 6
    assert labels(batches.epoch(0)) == labels(batches.epoch(1)) == [[0, 0], [1, 1], [2, 2]]
    assert labels(batches.epoch(1, skip=1)) == [[1, 1], [2, 2]]
    assert labels(batches.epoch(1, skip=3)) == []
    assert next(iter(IterableBatches(pairs(), device=torch.device("meta"))))[0].device.type == "meta"


def test_own_loader_knows_its_samples_and_is_not_started_by_wrapping_it() -> None:
    loader = DataLoader(TensorDataset(torch.rand(7, 2), torch.arange(7)), batch_size=3, shuffle=True)
    state = torch.get_rng_state()
    batches = IterableBatches(loader, device=CPU)
    assert (len(batches), batches.samples) == (3, 7)
    assert torch.equal(torch.get_rng_state(), state)
    assert sorted(chain(*labels(iter(batches)))) == list(range(7))


def test_own_batches_without_a_length_are_counted() -> None:
    class Afresh:
        def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
            return iter(pairs())

    batches = IterableBatches(Afresh(), device=CPU)
    assert len(batches) == 3
    assert batches.samples is None


def test_batches_that_run_dry_are_refused() -> None:
    with pytest.raises(UsageError, match="only once"):
        IterableBatches((pair for pair in pairs()), device=CPU)

    class Dry:
        def __init__(self) -> None:
            self.once = iter(pairs())

        def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
            return self.once

    batches = IterableBatches(Dry(), device=CPU)
    assert len(list(batches.epoch(0))) == 3
    with pytest.raises(UsageError, match="only once"):
        list(batches.epoch(1))


def test_own_batches_must_be_pairs_of_tensors() -> None:
    with pytest.raises(UsageError, match="pairs of tensors"):
        list(IterableBatches([torch.rand(2, 2)], device=CPU))


def by_labels(batches: Iterator[tuple[Tensor, Tensor]]) -> dict[tuple[int, ...], Tensor]:
    return {tuple(target.tolist()): inputs for inputs, target in batches}


@pytest.mark.parametrize("augment", ["none", "shift", "crop-flip"])
@pytest.mark.parametrize("count", [43, 41])  # the last batch of three images, or left out
def test_views_come_again_batch_by_batch_in_another_order(augment: str, count: int) -> None:
    batches = viewed(augment, count=count)
    first, second, again = (by_labels(batches.epoch(epoch)) for epoch in (0, 1, 2))
    assert len(first) == len(batches)
    assert first.keys() == again.keys() != second.keys()
    assert list(first) != list(again)
    for key, inputs in first.items():
        assert torch.equal(inputs, again[key])


def test_views_of_an_image_differ() -> None:
    images = TensorImages(torch.rand(40, 1, 6, 6), torch.arange(40), device=CPU)
    batches = Batches(images, 8, NONE, device=CPU, augment="shift", shuffle=True, views=2)
    one, other = ({int(t): x for xs, ts in batches.epoch(e) for x, t in zip(xs, ts, strict=True)} for e in (0, 1))
    assert sum(torch.equal(one[number], other[number]) for number in range(40)) < 10


def test_views_leave_the_default_generator_alone() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    whole = list(viewed().epoch(1))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(4)
    rest = list(viewed().epoch(1, skip=2))
    assert len(rest) == len(whole) - 2
    for (inputs, target), (others, other) in zip(rest, whole[2:], strict=True):
        assert torch.equal(inputs, others)
        assert torch.equal(target, other)
