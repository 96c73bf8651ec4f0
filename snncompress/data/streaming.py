"""Images that stay in their files and are decoded when a batch needs them."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from snncompress.data.dataset import TensorImages
from snncompress.errors import DataError

# Pillow decodes outside Python's lock, so threads do; more than eight wait for the disk.
DECODERS = min(8, os.cpu_count() or 1)
HOLD_CHUNK = 256
# What Pillow raises for damaged files, by format.
UNREADABLE = (OSError, SyntaxError, ValueError, EOFError, struct.error, Image.DecompressionBombError)
GRAY_MODES = {"1", "L", "LA", "La"}


class StreamedImages:
    """Image files of one shape, decoded on demand by a few threads.

    Args:
        files: One file an image.
        labels: Class numbers, shape (N,).
        shape: Channels (1 or 3), height, width of every image that comes out.
        device: Where batches go.
        resize: Whether files of another size are resized to ``shape``; without it they are an error.
    """

    def __init__(
        self,
        files: Sequence[Path],
        labels: Tensor,
        shape: tuple[int, int, int],
        *,
        device: torch.device,
        resize: bool = False,
    ) -> None:
        self.files = files
        self.names = files
        self.labels = labels
        self.shape = shape
        self.device = device
        self.resize = resize

    def __len__(self) -> int:
        return len(self.files)

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Images (uint8) and labels at ``indices``, on the training device."""
        return next(self.stream([indices]))

    def subset(self, indices: Tensor) -> StreamedImages:
        """The files at ``indices`` only."""
        files = [self.files[i] for i in indices.tolist()]
        return StreamedImages(files, self.labels[indices], self.shape, device=self.device, resize=self.resize)

    def stream(self, chunks: Iterable[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        """One batch for each chunk of indices, in their order; the next is decoded while one is used."""
        pool = ThreadPoolExecutor(DECODERS)
        try:
            waiting: tuple[Tensor, list[Future[Tensor]]] | None = None
            for chunk in chunks:
                started = chunk, [pool.submit(self._decode, i) for i in chunk.tolist()]
                if waiting:
                    yield self._collect(*waiting)
                waiting = started
            if waiting:
                yield self._collect(*waiting)
        finally:
            pool.shutdown(cancel_futures=True)

    def hold(self) -> TensorImages:
        """Decodes everything into memory on the training device."""
        images = torch.empty((len(self), *self.shape), dtype=torch.uint8, device=self.device)
        chunks = torch.arange(len(self)).split(HOLD_CHUNK)
        for chunk, (decoded, _) in zip(chunks, self.stream(chunks), strict=True):
            images[int(chunk[0]) : int(chunk[-1]) + 1] = decoded
        return TensorImages(images, self.labels, device=self.device, names=self.files)

    def _decode(self, index: int) -> Tensor:
        return decode(self.files[index], self.shape, resize=self.resize)

    def _collect(self, indices: Tensor, decoded: list[Future[Tensor]]) -> tuple[Tensor, Tensor]:
        images = torch.stack([future.result() for future in decoded])
        return images.to(self.device), self.labels[indices].to(self.device)


def read_header(file: Path) -> tuple[int, int, int]:
    """Channels (1 for gray, else 3), height, width of an image file, without decoding it."""
    try:
        with Image.open(file) as image:
            return (1 if image.mode in GRAY_MODES else 3), image.height, image.width
    except UNREADABLE as error:
        raise unreadable(file, error) from None


def decode(file: Path, shape: tuple[int, int, int], *, resize: bool) -> Tensor:
    """Reads an image file to a uint8 tensor of ``shape`` (C, H, W).

    With ``resize`` the shorter side is scaled and the centre is cut out; colours become gray or
    gray becomes colours as the shape asks.
    """
    channels, height, width = shape
    try:
        with Image.open(file) as image:
            if image.mode.startswith(("I", "F")):
                raise DataError(f"{file} has more than 8 bits a channel; convert it to an 8-bit image")
            picture = image.convert("L" if channels == 1 else "RGB")
    except UNREADABLE as error:
        raise unreadable(file, error) from None
    if picture.size != (width, height):
        if not resize:
            raise different_size(file, picture.height, picture.width, height, width)
        scale = max(width / picture.width, height / picture.height)
        scaled = max(width, round(picture.width * scale)), max(height, round(picture.height * scale))
        left, top = (scaled[0] - width) // 2, (scaled[1] - height) // 2
        picture = picture.resize(scaled, Image.Resampling.BILINEAR)
        picture = picture.crop((left, top, left + width, top + height))
    pixels = torch.from_numpy(np.array(picture)).view(height, width, channels)
    return pixels.permute(2, 0, 1).contiguous()


def different_size(file: Path, height: int, width: int, expected_height: int, expected_width: int) -> DataError:
    """The error for an image that is not as large as the others."""
    return DataError(
        f"{file} is {height}×{width}, other images are {expected_height}×{expected_width}; "
        "pass --image-size N to resize all of them to N×N"
    )


def unreadable(file: Path, error: BaseException) -> DataError:
    """The error for an image file that is damaged or no image."""
    reason = " ".join(str(error).split()) or type(error).__name__
    return DataError(f"cannot read image {file} ({reason}); replace or remove it")
