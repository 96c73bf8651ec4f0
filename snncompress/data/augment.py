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
    return warp(images, maps, knots)


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


def warp(images: Tensor, maps: Tensor, knots: Tensor | None = None) -> Tensor:
    """Images whose point p is the original's ``maps`` · (p, 1) and a bend, from −1 to 1 in each direction, bilinear.

    Args:
        images: (B, C, H, W).
        maps: (B, 2, 3).
        knots: (B, 2, KNOTS, KNOTS): how far knots of a net over the image are moved, right and down; the pixels
            between follow smoothly. None are moved by default.
    """
    count, _, height, width = images.shape
    # Moves along a side are a sum of functions: its knots', the coordinate itself, and one.
    down, right = (_functions(side, maps.device) for side in (height, width))  # (H, KNOTS + 2)
    shares = maps.new_zeros(count, 2, KNOTS + 2, KNOTS + 2)
    if knots is not None:
        shares[:, :, 2:, 2:] = knots
    shares[:, :, 0, 0] = maps[:, :, 2]
    shares[:, :, 0, 1] = maps[:, :, 0]
    shares[:, :, 1, 0] = maps[:, :, 1]
    across = (shares.view(-1, KNOTS + 2) @ right.T).view(2 * count, KNOTS + 2, width)
    places = torch.bmm(down.expand(2 * count, -1, -1), across).view(count, 2, height, width)
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


def _functions(side: int, device: torch.device) -> Tensor:
    """One, the coordinate, and the weight of each knot by cubic interpolation, for each pixel: (side, KNOTS + 2)."""
    coordinate = (2 * torch.arange(side, device=device) + 1) / side - 1
    knots = torch.eye(KNOTS, device=device).view(1, 1, KNOTS, KNOTS)
    between = F.interpolate(knots, (side, KNOTS), mode="bicubic", align_corners=True)[0, 0]
    return torch.cat((torch.ones_like(coordinate)[:, None], coordinate[:, None], between), 1)


def _random_translation(images: Tensor, reach: int) -> Tensor:
    down, right = torch.randint(-reach, reach + 1, (2, len(images)), device=images.device)
    return translate(images, down, right, reach)
