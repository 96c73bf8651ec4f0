"""Images of one data set in the shape that a model of another takes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from snncompress.data.dataset import Images, has_pixels, resize, take, to_float
from snncompress.errors import DataError

# ITU-R 601: how bright red, green and blue look, as Pillow has it.
LUMINANCE = (0.299, 0.587, 0.114)


class AdaptedImages:
    """Images resized (shorter side, then the centre) and made gray or coloured, batch by batch.

    Args:
        images: of any size, with 1 or 3 channels.
        shape: channels (1 or 3), height and width (the same) of what comes out.
    """

    def __init__(self, images: Images, shape: tuple[int, int, int], names: Sequence[object] | None = None) -> None:
        self.images = images
        self.shape = shape
        self.names = images.names if names is None else names

    @property
    def labels(self) -> Tensor:
        """Those of the images."""
        return self.images.labels

    def __len__(self) -> int:
        return len(self.images)

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Float images 0..1 and labels at ``indices``."""
        images, labels = self.images.batch(indices)
        images = to_float(images)
        if images.shape[1] != self.shape[0]:
            images = images.expand(-1, 3, -1, -1) if self.shape[0] == 3 else to_gray(images)
        return (images if images.shape[2:] == self.shape[1:] else resize(images, self.shape[1])), labels

    def subset(self, indices: Tensor) -> AdaptedImages:
        """The images at ``indices`` only."""
        return AdaptedImages(self.images.subset(indices), self.shape, take(self.names, indices))


def to_gray(images: Tensor) -> Tensor:
    """The luminance of colour images (B, 3, H, W), (B, 1, H, W)."""
    weights = torch.tensor(LUMINANCE, dtype=images.dtype, device=images.device).view(-1, 1, 1)
    return (images * weights).sum(1, keepdim=True)


def adapt(images: Images, shape: tuple[int, int, int], name: str) -> tuple[Images, list[str]]:
    """Images in another shape, and what was done to them in words.

    Args:
        images: as they are.
        shape: as they are wanted.
        name: of their data set, for the error.

    Raises:
        DataError: If that has no sense.
    """
    have = images.shape
    if have == shape:
        return images, []
    pictures = has_pixels(have) and has_pixels(shape) and {have[0], shape[0]} <= {1, 3}
    if not pictures or (have[1:] != shape[1:] and shape[1] != shape[2]):
        ours, theirs = ("×".join(map(str, each)) for each in (shape, have))
        raise DataError(f"{name} has inputs of {theirs}, which cannot be brought to {ours}; give data of another kind")
    done = []
    if have[0] != shape[0]:
        done.append("made gray" if shape[0] == 1 else "gray repeated in three channels")
    if have[1:] != shape[1:]:
        done.append(f"resized from {have[1]}×{have[2]} to {shape[1]}×{shape[2]}")
    return AdaptedImages(images, shape), done
