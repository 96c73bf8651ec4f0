"""Loads a data set by name, and cuts the validation part from its training images."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import ModuleType

import torch

from snncompress import registry
from snncompress.data.dataset import Dataset, Images, Normalization, split
from snncompress.data.holdout import Holdout
from snncompress.data.labels import LabelNoise, corrupt
from snncompress.data.place import data_place
from snncompress.data.request import DataRequest, Parts
from snncompress.errors import DataError, UsageError, unknown_name

CPU = torch.device("cpu")


def load_data(
    name: str,
    *,
    root: str | Path | None = None,
    download: bool = False,
    normalize: str | None = None,
    validation: float = 0.1,
    holdout: Holdout | str = Holdout.TRAIN,
    seed: int = 0,
    device: torch.device = CPU,
    image_size: int | None = None,
    label_noise: str | None = None,
    limit_train: int | None = None,
    memory_budget_bytes: int = 2 * 2**30,
) -> Dataset:
    """Loads a data set by the name that ``snncompress list data`` shows.

    Args:
        name: Such as ``mnist``, ``folder:PATH`` or ``npz:PATH``.
        root: Where downloaded sets are; else the environment's ``SNNCOMPRESS_DATA``, else ``data``.
        download: Whether a missing set may be downloaded into ``root``.
        normalize: ``mnist``, ``imagenet``, ``none``, ..., or ``MEAN/STD``; else the set's own.
        validation: The share of the training images that is set aside for every choice.
        holdout: ``test`` takes half of the test images for every choice instead, leaves the other half as the test
            set and all training images for training: for a model that has seen all of them. ``none`` sets no image
            aside: for a last training on all of them, when every choice was made.
        seed: Which images those are.
        device: Where batches go, and where sets that fit ``memory_budget_bytes`` are held.
        image_size: Images are resized to this height and width.
        label_noise: Changes labels of training and validation images by ``seed``: ``patterned:0.3``, ``uniform:0.3``
            or ``random``; ``none`` leaves them true.
        limit_train: Keeps only so many training images, chosen by ``seed``.
        memory_budget_bytes: Larger sets of image files are streamed from the disk.

    Raises:
        UsageError: For an unknown name or an impossible option.
        DataError: For data that is missing, damaged or does not fit together.
    """
    if not 0 < validation < 1:
        raise UsageError(f"the validation share is {validation}; it must lie between 0 and 1, such as 0.1")
    if image_size is not None and image_size < 1:
        raise UsageError(f"--image-size is {image_size}; it must be at least 1")
    noise = None if label_noise is None else LabelNoise.parse(label_noise)
    module, source, path = _source(name)
    request = DataRequest(
        name=source,
        path=path,
        root=data_place(root),
        download=download,
        device=device,
        image_size=image_size,
        memory_budget_bytes=memory_budget_bytes,
    )
    try:
        parts: Parts = module.load(request)
    except OSError as error:
        raise DataError(f"cannot read data set '{name}' ({error}); check its files and their permissions") from None
    if holdout == Holdout.TEST:
        parts = _halve_test(name, parts, seed)
    elif holdout not in list(Holdout):
        raise unknown_name("holdout", holdout, Holdout)
    data = _dataset(name, parts, normalize, None if holdout == Holdout.NONE else validation, seed)
    if limit_train is not None:
        data = replace(data, train=_limit(name, data.train, limit_train, seed))
    return data if noise is None else corrupt(data, noise, seed)


def _limit(name: str, images: Images, count: int, seed: int) -> Images:
    """The first so many of the training images in an order by seed."""
    if not 1 <= count <= len(images):
        raise UsageError(f"--limit-train {count} is out of range: {name} has {len(images):,} training images")
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    return images.subset(order[:count].sort().values)


def _halve_test(name: str, parts: Parts, seed: int) -> Parts:
    if parts.test is None or len(parts.test) < 2:
        raise DataError(f"{name} has no test images to halve; leave --holdout test out")
    test, validation = split(parts.test, 0.5, seed)
    return replace(parts, validation=validation, test=test)


def _source(name: str) -> tuple[ModuleType, str, Path | None]:
    """The module of ``source`` or ``source:PATH``, and the two apart."""
    source, _, path = name.partition(":")
    module = registry.load("data", source)
    takes_path = getattr(module, "TAKES_PATH", False)
    if takes_path != bool(path):
        expected = f"{source}:PATH" if takes_path else source
        raise UsageError(f"data set '{name}' is not written that way; write {expected}")
    return module, source, Path(path).expanduser() if path else None


def _dataset(name: str, parts: Parts, normalize: str | None, validation: float | None, seed: int) -> Dataset:
    if len(parts.train) < 2:
        raise DataError(f"{name} has {len(parts.train)} training image(s); a validation split needs at least 2")
    train, held_out = parts.train, parts.validation
    if validation is None and held_out is not None:
        raise UsageError(f"{name} has validation images of its own; leave --holdout none out")
    if validation is not None and held_out is None:
        train, held_out = split(train, validation, seed)
    normalization = parts.normalization
    if normalize is not None:
        normalization = Normalization.parse(normalize, train.shape[0])
    return Dataset(name, parts.classes, normalization, train, held_out, parts.test)
