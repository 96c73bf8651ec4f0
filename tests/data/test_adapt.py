"""Images of another shape: gray and colour, larger and smaller, or refused."""

from __future__ import annotations

import pytest
import torch

from snncompress.data.adapt import adapt, to_gray
from snncompress.data.dataset import TensorImages, resize
from snncompress.errors import DataError

CPU = torch.device("cpu")


def images(*shape: int) -> TensorImages:
    pixels = torch.randint(256, (6, *shape), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return TensorImages(pixels, torch.arange(6), device=CPU)


def test_what_fits_is_left_alone() -> None:
    ours = images(1, 8, 8)
    assert adapt(ours, (1, 8, 8), "x") == (ours, [])


@pytest.mark.parametrize(
    ("have", "want", "done"),
    [
        ((3, 32, 32), (1, 28, 28), ["made gray", "resized from 32×32 to 28×28"]),
        ((1, 28, 28), (3, 32, 32), ["gray repeated in three channels", "resized from 28×28 to 32×32"]),
        ((1, 6, 9), (1, 8, 8), ["resized from 6×9 to 8×8"]),
        ((3, 5, 7), (1, 5, 7), ["made gray"]),
    ],
)
def test_shapes(have: tuple[int, int, int], want: tuple[int, int, int], done: list[str]) -> None:
    ours = images(*have)
    adapted, words = adapt(ours, want, "x")
    assert words == done
    assert adapted.shape == want
    pixels, labels = adapted.batch(torch.tensor([4, 1]))
    assert pixels.shape == (2, *want)
    assert 0 <= float(pixels.min()) <= float(pixels.max()) <= 1
    assert labels.tolist() == [4, 1]
    subset = adapted.subset(torch.tensor([4, 1]))
    assert torch.equal(subset.batch(torch.arange(2))[0], pixels)
    assert [*subset.names] == [4, 1]


def test_gray_is_the_luminance_and_colour_repeats_it() -> None:
    gray = images(1, 8, 8)
    coloured, _ = adapt(gray, (3, 8, 8), "x")
    pixels = coloured.batch(torch.arange(6))[0]
    expected = gray.images / 255
    assert torch.equal(pixels, expected.expand(-1, 3, -1, -1))
    torch.testing.assert_close(to_gray(pixels), expected)  # the three weights sum to 1
    larger, _ = adapt(gray, (1, 12, 12), "x")
    assert torch.equal(larger.batch(torch.arange(6))[0], resize(expected, 12))


@pytest.mark.parametrize(
    ("have", "want"), [((5, 1, 1), (1, 8, 8)), ((1, 8, 8), (64, 1, 1)), ((2, 8, 8), (3, 8, 8)), ((1, 8, 8), (1, 4, 6))]
)
def test_what_has_no_sense_is_refused(have: tuple[int, int, int], want: tuple[int, int, int]) -> None:
    with pytest.raises(DataError, match=f"x has inputs of {'×'.join(map(str, have))}, which cannot be brought to"):
        adapt(images(*have), want, "x")
