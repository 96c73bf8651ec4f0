"""Augmentations by name: each takes a batch of images (B, C, H, W), uint8 or float, before normalization.

Random numbers come from the default generator of the images' device, which a run saves with its state.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

SHIFT_PIXELS = 2  # digits keep about four empty pixels on each side
CROP_PIXELS = 4  # the customary padding for CIFAR


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


AUGMENTATIONS: dict[str, Callable[[Tensor], Tensor]] = {"none": none, "shift": shift, "crop-flip": crop_flip}


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


def mirror(images: Tensor, mirrored: Tensor) -> Tensor:
    """Swaps left and right of those images for which ``mirrored`` is true."""
    return torch.where(mirrored.view(-1, 1, 1, 1), images.flip(3), images)


def _random_translation(images: Tensor, reach: int) -> Tensor:
    down, right = torch.randint(-reach, reach + 1, (2, len(images)), device=images.device)
    return translate(images, down, right, reach)
