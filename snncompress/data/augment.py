"""Augmentations by name: each takes a batch of images (B, C, H, W), uint8 or float, before normalization.

Random numbers come from the default generator of the images' device, which a run saves with its state.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

SHIFT_PIXELS = 2  # digits keep about four empty pixels on each side
CROP_PIXELS = 4  # the customary padding for CIFAR
# how far `affine` goes: degrees, and shares of the image's side
TURN, STRETCH, SHEAR, MOVE = 8.0, 0.08, 0.1, 0.04
# `elastic` moves the knots of a net over the image: how many a side, and how far, as a share of the image's side
KNOTS, BEND = 6, 0.02


def none(images: Tensor) -> Tensor:
    """The images as they are."""
    return images


def shift(images: Tensor) -> Tensor:
    """Moves each image by up to 2 pixels in each direction; what comes in is background (0)."""
    return _random_translation(images, SHIFT_PIXELS)


def crop_flip(images: Tensor) -> Tensor:
    """Pads each image by 4 pixels of background, cuts out a random part, mirrors half of them."""
    mirrored = torch.rand(len(images), device=images.device) < 0.5
    return mirror(_random_translation(images, CROP_PIXELS), mirrored)


def affine(images: Tensor) -> Tensor:
    """Turns, stretches, shears and moves each image a little, between pixels; what comes in is background (0)."""
    return warp(images, _random_maps(images))


def elastic(images: Tensor) -> Tensor:
    """Also bends each image, as if it were printed on rubber (Simard, Steinkraus, Platt, ICDAR 2003)."""
    maps = _random_maps(images)
    knots = torch.randn(len(images), 2, KNOTS, KNOTS, device=images.device) * 2 * BEND
    down, right = (_between_knots(side, images.device) for side in images.shape[2:])
    return warp(images, maps, down @ knots @ right.T)


AUGMENTATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": none,
    "shift": shift,
    "affine": affine,
    "elastic": elastic,
    "crop-flip": crop_flip,
}


def translate(images: Tensor, down: Tensor, right: Tensor, reach: int) -> Tensor:
    """Moves each image by its own number of pixels, at most ``reach`` either way."""
    count, channels, height, width = images.shape
    padded = F.pad(images, (reach, reach, reach, reach))
    padded_height, padded_width = height + 2 * reach, width + 2 * reach
    # A row of the result is `width` neighbours in the padded batch: copying such runs is several times
    # faster than indexing pixels.
    planes = torch.arange(count * channels, device=images.device).view(count, channels, 1) * padded_height
    rows = torch.arange(height, device=images.device) + (reach - down).view(-1, 1, 1)  # (B, 1, H)
    starts = (planes + rows) * padded_width + (reach - right).view(-1, 1, 1)  # (B, C, H)
    runs = padded.flatten().unfold(0, width, 1)  # (pixels, W), a view
    return runs.index_select(0, starts.flatten()).view(images.shape)


def warp(images: Tensor, maps: Tensor, bends: Tensor | None = None) -> Tensor:
    """Images whose point p is the original's ``maps`` · (p, 1) + ``bends``, from −1 to 1 in each direction, bilinear.

    Args:
        images: (B, C, H, W).
        maps: (B, 2, 3).
        bends: (B, 2, H, W), right and down; none by default.
    """
    count, _, height, width = images.shape
    y, x = (((2 * torch.arange(side, device=maps.device) + 1) / side - 1) for side in (height, width))
    points = torch.stack((x.repeat(height), y.repeat_interleave(width), torch.ones_like(y).repeat_interleave(width)))
    places = (maps.flatten(0, 1) @ points).view(count, 2, height, width)  # torch's affine_grid is ten times slower
    if bends is not None:
        places = places + bends
    moved = F.grid_sample(images.to(maps.dtype), places.permute(0, 2, 3, 1), align_corners=False)
    return (moved if images.is_floating_point() else moved.round()).to(images.dtype)


def mirror(images: Tensor, mirrored: Tensor) -> Tensor:
    """Swaps left and right of those images for which ``mirrored`` is true."""
    return torch.where(mirrored.view(-1, 1, 1, 1), images.flip(3), images)


def _random_maps(images: Tensor) -> Tensor:
    """A small turn, stretch, shear and move for each image: (B, 2, 3)."""
    count = len(images)

    def draw(reach: float, *shape: int) -> Tensor:
        return (2 * torch.rand(count, *shape, device=images.device) - 1) * reach

    angle = draw(math.radians(TURN))
    turned = torch.stack((angle.cos(), -angle.sin(), angle.sin(), angle.cos()), 1).view(count, 2, 2)
    turned = turned / (1 + draw(STRETCH, 2, 1))
    turned[:, 0, 1] += draw(SHEAR)
    return torch.cat((turned, draw(2 * MOVE, 2, 1)), 2)


def _between_knots(side: int, device: torch.device) -> Tensor:
    """Weights of the knots for each pixel along a side, by cubic interpolation: (side, KNOTS)."""
    knots = torch.eye(KNOTS, device=device).view(1, 1, KNOTS, KNOTS)
    return F.interpolate(knots, (side, KNOTS), mode="bicubic", align_corners=True)[0, 0]


def _random_translation(images: Tensor, reach: int) -> Tensor:
    down, right = torch.randint(-reach, reach + 1, (2, len(images)), device=images.device)
    return translate(images, down, right, reach)
