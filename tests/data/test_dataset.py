from __future__ import annotations

import pytest
import torch

from snncompress.data.dataset import NORMALIZATIONS, Normalization, TensorImages, resize, split, to_float
from snncompress.errors import UsageError

CPU = torch.device("cpu")


def numbered(count: int) -> TensorImages:
    """Images that carry their own number, so that a subset shows which ones it took."""
    numbers = torch.arange(count)
    return TensorImages(numbers.to(torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 2, 2).clone(), numbers % 3, device=CPU)


def test_normalization_undoes_its_own_mean_and_std() -> None:
    images = torch.rand(4, 3, 5, 5)
    normalization = Normalization((0.1, 0.2, 0.3), (0.5, 0.6, 0.7))
    restored = normalization(images) * torch.tensor([0.5, 0.6, 0.7]).view(3, 1, 1)
    torch.testing.assert_close(restored + torch.tensor([0.1, 0.2, 0.3]).view(3, 1, 1), images)


@pytest.mark.parametrize("name", NORMALIZATIONS)
def test_every_named_normalization_parses_for_its_channels(name: str) -> None:
    mean, std = NORMALIZATIONS[name]
    assert Normalization.parse(name, len(mean)) == Normalization(mean, std)


def test_normalization_reads_numbers_and_spreads_a_single_one() -> None:
    assert Normalization.parse("0.1307/0.3081", 1) == Normalization((0.1307,), (0.3081,))
    assert Normalization.parse("0.5/0.25", 3) == Normalization((0.5,) * 3, (0.25,) * 3)
    assert Normalization.parse("0.485,0.456,0.406/0.229,0.224,0.225", 3) == Normalization.parse("imagenet", 3)
    images = torch.rand(2, 3, 4, 4)
    assert torch.equal(Normalization.parse("none", 3)(images), images)


@pytest.mark.parametrize(
    ("text", "channels", "message"),
    [
        ("imagnet", 3, "neither mnist"),
        ("0.5", 1, "MEAN/STD"),
        ("0.5/0.5/0.5", 1, "MEAN/STD"),
        ("a/b", 1, "MEAN/STD"),
        ("imagenet", 1, "for 3 channels, but the images have 1"),
        ("0.5,0.5,0.5/0.5", 3, "3 means but 1 standard"),
        ("0.5/0", 1, "greater than 0"),
        ("nan/1", 1, "finite"),
    ],
)
def test_bad_normalizations_are_explained(text: str, channels: int, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Normalization.parse(text, channels)


def test_batch_gives_images_and_labels_by_index() -> None:
    images, labels = numbered(10).batch(torch.tensor([7, 2]))
    assert images[:, 0, 0, 0].tolist() == [7, 2]
    assert labels.tolist() == [1, 2]
    assert labels.dtype == torch.int64


def test_split_parts_are_disjoint_complete_and_repeatable() -> None:
    rest, part = split(numbered(50), 0.1, seed=3)
    assert (len(rest), len(part)) == (45, 5)
    taken = [i.images[:, 0, 0, 0].tolist() for i in (rest, part)]
    assert sorted(taken[0] + taken[1]) == list(range(50))
    assert split(numbered(50), 0.1, seed=3)[1].images[:, 0, 0, 0].tolist() == taken[1]
    assert split(numbered(50), 0.1, seed=4)[1].images[:, 0, 0, 0].tolist() != taken[1]


def test_split_leaves_no_part_empty() -> None:
    assert [len(part) for part in split(numbered(2), 0.01, 0)] == [1, 1]
    assert [len(part) for part in split(numbered(2), 0.99, 0)] == [1, 1]


def test_image_size_resizes_batches_and_keeps_constant_images() -> None:
    held = TensorImages(torch.full((3, 1, 4, 6), 51, dtype=torch.uint8), torch.zeros(3), device=CPU, image_size=8)
    images, _ = held.batch(torch.tensor([0, 2]))
    assert held.shape == (1, 8, 8)
    assert held.subset(torch.tensor([1])).shape == (1, 8, 8)
    torch.testing.assert_close(images, torch.full((2, 1, 8, 8), 0.2))


def test_resize_to_the_same_size_is_the_identity() -> None:
    images = torch.rand(2, 3, 6, 6)
    torch.testing.assert_close(resize(images, 6), images)


def test_to_float_scales_bytes_only() -> None:
    assert to_float(torch.tensor([0, 255], dtype=torch.uint8)).tolist() == [0.0, 1.0]
    floats = torch.rand(3)
    assert to_float(floats) is floats
