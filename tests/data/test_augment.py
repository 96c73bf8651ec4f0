from __future__ import annotations

import pytest
import torch
from torch import Tensor

from snncompress.data.augment import AUGMENTATIONS, KNOTS, mirror, translate, warp


def digits(dtype: torch.dtype = torch.uint8, channels: int = 2) -> Tensor:
    return (torch.rand(6, channels, 7, 9, generator=torch.Generator().manual_seed(0)) * 255).to(dtype)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_translate_moves_every_image_by_its_own_vector(dtype: torch.dtype) -> None:
    images, reach = digits(dtype), 2
    down, right = torch.tensor([[0, 1, -1, 2, -2, 0], [0, 2, 1, -2, 0, -1]])
    moved = translate(images, down, right, reach)
    for image, result, y, x in zip(images, moved, down.tolist(), right.tolist(), strict=True):
        expected = torch.zeros_like(image)
        expected[:, max(y, 0) : 7 + min(y, 0), max(x, 0) : 9 + min(x, 0)] = image[
            :, max(-y, 0) : 7 + min(-y, 0), max(-x, 0) : 9 + min(-x, 0)
        ]
        assert torch.equal(result, expected)


def test_translate_by_nothing_is_the_identity() -> None:
    nothing = torch.zeros(6, dtype=torch.int64)
    assert torch.equal(translate(digits(), nothing, nothing, 4), digits())


def test_translate_there_and_back_keeps_an_image_with_empty_borders() -> None:
    images = digits()
    images[:, :, [0, 1, -1, -2]] = 0
    images[:, :, :, [0, 1, -1, -2]] = 0
    down, right = torch.randint(-2, 3, (2, 6))
    there = translate(images, down, right, 2)
    assert torch.equal(there.long().sum((1, 2, 3)), images.long().sum((1, 2, 3)))
    assert torch.equal(translate(there, -down, -right, 2), images)


def test_mirror_twice_is_the_identity_and_touches_only_the_chosen() -> None:
    chosen = torch.tensor([True, False, True, False, False, True])
    once = mirror(digits(), chosen)
    assert torch.equal(once[~chosen], digits()[~chosen])
    assert torch.equal(once[chosen], digits()[chosen].flip(3))
    assert torch.equal(mirror(once, chosen), digits())


@pytest.mark.parametrize("name", AUGMENTATIONS)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_every_augmentation_keeps_shape_type_and_input_and_follows_the_seed(name: str, dtype: torch.dtype) -> None:
    images = digits(dtype, channels=3)
    original = images.clone()
    torch.manual_seed(5)
    first = AUGMENTATIONS[name](images)
    torch.manual_seed(5)
    assert torch.equal(AUGMENTATIONS[name](images), first)
    assert first.shape == images.shape
    assert first.dtype == dtype
    assert torch.equal(images, original)


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_every_augmentation_runs_on_its_images_device(name: str) -> None:
    assert AUGMENTATIONS[name](torch.empty(4, 3, 8, 8, device="meta")).device.type == "meta"


def test_none_is_the_identity_and_the_others_move_something() -> None:
    assert torch.equal(AUGMENTATIONS["none"](digits()), digits())
    assert not torch.equal(AUGMENTATIONS["shift"](digits()), digits())
    assert not torch.equal(AUGMENTATIONS["affine"](digits()), digits())
    assert not torch.equal(AUGMENTATIONS["elastic"](digits()), digits())
    assert not torch.equal(AUGMENTATIONS["crop-flip"](digits()), digits())


def test_shift_reaches_two_pixels_and_no_further() -> None:
    images = torch.zeros(500, 1, 9, 9)
    images[:, :, 4, 4] = 1
    rows, columns = AUGMENTATIONS["shift"](images).nonzero()[:, 2:].unbind(1)
    assert len(rows) == 500
    assert set(rows.tolist()) == set(columns.tolist()) == {2, 3, 4, 5, 6}


def test_crop_flip_reaches_four_pixels_and_mirrors_about_half() -> None:
    images = torch.zeros(500, 1, 13, 13)
    images[:, :, 6, 6], images[:, :, 6, 7] = 1, 2
    result = AUGMENTATIONS["crop-flip"](images)
    columns = (result == 1).nonzero()[:, 3]
    assert set(columns.tolist()) == set(range(2, 11))
    mirrored = (result == 1).flatten(1).int().argmax(1) > (result == 2).flatten(1).int().argmax(1)
    assert 150 < int(mirrored.sum()) < 350


def maps(*rows: tuple[float, float, float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float32).expand(6, 2, 3)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_warp_by_nothing_is_the_identity(dtype: torch.dtype) -> None:
    warped = warp(digits(dtype), maps((1, 0, 0), (0, 1, 0)))
    torch.testing.assert_close(warped, digits(dtype), rtol=1e-5, atol=1e-3)


def test_warp_turns_by_a_right_angle_and_moves_by_a_pixel() -> None:
    images = digits(torch.float32)[:, :, :, :7]
    turned = warp(images, maps((0, -1, 0), (1, 0, 0)))
    torch.testing.assert_close(turned, images.rot90(1, (2, 3)), rtol=1e-5, atol=1e-3)
    moved = warp(images, maps((1, 0, 2 / 7), (0, 1, 0)))  # from −1 to 1 are 7 pixels
    torch.testing.assert_close(moved[..., :-1], images[..., 1:], rtol=1e-5, atol=1e-3)
    assert moved[..., -1].abs().max() < 1e-3


def test_warp_moves_points_with_the_knots_around_them() -> None:
    images = digits(torch.float32)
    still = maps((1, 0, 0), (0, 1, 0))
    knots = torch.zeros(6, 2, KNOTS, KNOTS)
    knots[:, 0] = 2 / 9  # from −1 to 1 are 9 pixels: all show what is a pixel to the right
    torch.testing.assert_close(warp(images, still, knots)[..., :-1], images[..., 1:], rtol=1e-5, atol=1e-3)
    knots[:, 0] = 0
    knots[:, 1, 0, 0] = 2 / 7  # the upper left corner shows what is a pixel below; what is far from it stays
    bent = warp(images, still, knots)
    torch.testing.assert_close(bent[:, :, 0, 0], images[:, :, 1, 0], rtol=1e-5, atol=1e-3)
    torch.testing.assert_close(bent[:, :, 4:], images[:, :, 4:], rtol=1e-5, atol=1e-3)
    torch.testing.assert_close(bent[..., 5:], images[..., 5:], rtol=1e-5, atol=1e-3)


def test_elastic_bends_a_straight_edge_and_affine_does_not() -> None:
    torch.manual_seed(0)
    images = torch.zeros(100, 1, 28, 28)
    images[..., :14] = 1
    rows = torch.arange(6.0, 22)
    basis = torch.stack((torch.ones(16), rows), 1)

    def bent(name: str) -> float:
        edges = AUGMENTATIONS[name](images)[:, 0, 6:22, 2:26].sum(2)  # where the edge is in each row, in pixels
        lines = edges @ torch.linalg.pinv(basis).T @ basis.T
        return float((edges - lines).square().mean().sqrt())

    assert bent("affine") < 0.1
    assert 0.2 < bent("elastic") < 0.6


def test_affine_moves_a_little_and_keeps_what_an_image_shows() -> None:
    images = torch.zeros(500, 1, 28, 28)
    images[:, :, 9:19, 12:16] = 1  # a stroke with an empty border
    result = AUGMENTATIONS["affine"](images)
    assert 0 <= result.min() <= result.max() <= 1
    places = torch.arange(28.0)
    mass = result.sum((1, 2, 3))
    assert ((mass > 0.8 * 40) & (mass < 1.25 * 40)).all()
    for axis in (2, 3):
        moved = (result.sum((1, 5 - axis)) * places).sum(1) / mass - 13.5
        assert abs(float(moved.mean())) < 0.1
        assert 0.8 < float(moved.abs().max()) < 1.5  # 4% of 28 pixels, and what stretching adds
