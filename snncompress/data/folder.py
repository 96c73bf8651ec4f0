"""A folder of image files.

``folder``: folder:PATH, one folder of image files a class

The classes are the folders' names, sorted. Where PATH/train has class folders of its own, PATH/test is the
test set and PATH/val the validation set (or the test set, if there is no PATH/test). Else a tenth of the
images is set aside as the test set, the same for every ``--seed``. Files without an image's ending are passed
over. Images of different sizes need ``--image-size N``: the shorter side is scaled to N and the centre cut
out. A set is gray if all its images are (with ``--image-size``, if a thousand of them are).
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from snncompress.data.dataset import Images
from snncompress.data.request import DataRequest, Parts, default_normalization, split_test
from snncompress.data.streaming import DECODERS, StreamedImages, different_size, read_header
from snncompress.errors import DataError

TAKES_PATH = True
ENDINGS = {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
# With a given size, headers are read only to tell gray from colour; reading a million takes minutes.
HEADERS = 1000

Labelled = list[tuple[Path, int]]


def load(request: DataRequest) -> Parts:
    """Loads ``folder:PATH``, into memory if it fits the budget."""
    assert request.path is not None
    if not request.path.is_dir():
        raise DataError(f"no such folder: {request.path}; write folder:PATH, with one folder of images a class in it")
    folders = _part_folders(request.path)
    classes = tuple(folder.name for folder in _subfolders(folders["train"]))
    if len(classes) < 2:
        raise DataError(f"{folders['train']} has {len(classes)} class folder(s); a classifier needs two or more")
    listed = {part: _list_images(folder, classes) for part, folder in folders.items()}
    files = [file for part in listed.values() for file, _ in part]
    shape = _common_shape(files, request.image_size)
    # One decision for all parts: they are held together or streamed together.
    fits = len(files) * shape[0] * shape[1] * shape[2] <= request.memory_budget_bytes
    parts = {name: _images(part, shape, request, hold=fits) for name, part in listed.items()}
    train, test = (parts["train"], parts["test"]) if "test" in parts else split_test(parts["train"])
    return Parts(classes, default_normalization(shape[0]), train, parts.get("val"), test)


def _part_folders(path: Path) -> dict[str, Path]:
    """The folders of the parts that are there: train, and maybe test and val."""
    if not (path / "train").is_dir() or not _subfolders(path / "train"):
        return {"train": path}
    found = {part: path / part for part in ("train", "val", "test") if (path / part).is_dir()}
    if "val" in found and "test" not in found:
        found["test"] = found.pop("val")
    return found


def _subfolders(folder: Path) -> list[Path]:
    return sorted(item for item in folder.iterdir() if item.is_dir() and not item.name.startswith((".", "__")))


def _list_images(folder: Path, classes: Sequence[str]) -> Labelled:
    labels = {name: number for number, name in enumerate(classes)}
    images: Labelled = []
    for class_folder in _subfolders(folder):
        if class_folder.name not in labels:
            raise DataError(
                f"{class_folder} is a class without training images; remove it, or add it to the training set"
            )
        files = sorted(
            file for file in class_folder.rglob("*") if file.suffix.lower() in ENDINGS and not file.name.startswith(".")
        )
        if not files:
            raise DataError(f"class folder {class_folder} holds no images; add some, or remove the folder")
        images.extend((file, labels[class_folder.name]) for file in files)
    if not images:
        raise DataError(f"{folder} holds no class folders; add one for each class, or remove it")
    return images


def _common_shape(files: Sequence[Path], image_size: int | None) -> tuple[int, int, int]:
    """Channels, height and width of all images, from the files' headers."""
    if image_size:
        files = files[:: -(-len(files) // HEADERS)]
    with ThreadPoolExecutor(DECODERS) as pool:
        headers = list(pool.map(read_header, files))
    channels = max(header[0] for header in headers)
    if image_size:
        return channels, image_size, image_size
    _, height, width = headers[0]
    for file, header in zip(files, headers, strict=True):
        if header[1:] != (height, width):
            raise different_size(file, *header[1:], height, width)
    return channels, height, width


def _images(labelled: Labelled, shape: tuple[int, int, int], request: DataRequest, *, hold: bool) -> Images:
    files, labels = zip(*labelled, strict=True)
    images = StreamedImages(
        files, torch.tensor(labels), shape, device=request.device, resize=request.image_size is not None
    )
    return images.hold() if hold else images
