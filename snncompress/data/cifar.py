"""CIFAR-10 and CIFAR-100, from the official binary layout or the pickled one that torchvision downloads.

``cifar10``: photographs of ten kinds of things, 50,000 + 10,000 colour images of 32×32 (Krizhevsky 2009)
``cifar100``: the same with a hundred fine classes, 50,000 + 10,000 colour images of 32×32 (Krizhevsky 2009)

The binary files are looked for in ROOT/cifar-10-batches-bin, ROOT/cifar-100-binary and in ROOT itself; the
pickled ones only where torchvision puts them, and only after their md5 sums have been checked.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from snncompress.data.dataset import Normalization
from snncompress.data.download import missing, run_download
from snncompress.data.request import DataRequest, Parts, check_labels
from snncompress.errors import DataError

SHAPE = (3, 32, 32)
IMAGE_BYTES = 3 * 32 * 32


@dataclass(frozen=True)
class Layout:
    """Where the files of one of the two sets are; a record is ``label_bytes`` bytes, then the image."""

    title: str  # of torchvision's class
    classes: int
    label_bytes: int  # CIFAR-100 has a coarse label before the fine one
    binary_folder: str
    train_files: tuple[str, ...]
    test_file: str
    names_file: str
    pickled_folder: str


LAYOUTS = {
    "cifar10": Layout(
        title="CIFAR10",
        classes=10,
        label_bytes=1,
        binary_folder="cifar-10-batches-bin",
        train_files=tuple(f"data_batch_{i}.bin" for i in range(1, 6)),
        test_file="test_batch.bin",
        names_file="batches.meta.txt",
        pickled_folder="cifar-10-batches-py",
    ),
    "cifar100": Layout(
        title="CIFAR100",
        classes=100,
        label_bytes=2,
        binary_folder="cifar-100-binary",
        train_files=("train.bin",),
        test_file="test.bin",
        names_file="fine_label_names.txt",
        pickled_folder="cifar-100-python",
    ),
}


def load(request: DataRequest) -> Parts:
    """Loads the set from the binary files if they are there, else through torchvision."""
    layout = LAYOUTS[request.name]
    folders = [request.root / layout.binary_folder, request.root]
    folder = next((f for f in folders if (f / layout.test_file).is_file()), None)
    if folder:
        classes = _class_names(folder / layout.names_file, layout.classes)
        train = _read_binary([folder / name for name in layout.train_files], layout)
        test = _read_binary([folder / layout.test_file], layout)
    else:
        pickled = request.root / layout.pickled_folder
        if request.download:
            run_download(layout.title, request.root)
        elif not pickled.is_dir():
            raise missing(request.name, [*folders, pickled])
        classes, train, test = _read_pickled(layout, request.root)
    normalization = Normalization.parse(request.name, SHAPE[0])
    return Parts(classes, normalization, request.hold(*train), None, request.hold(*test))


def _read_binary(files: list[Path], layout: Layout) -> tuple[Tensor, Tensor]:
    record_bytes = layout.label_bytes + IMAGE_BYTES
    records = []
    for file in files:
        try:
            content = bytearray(file.read_bytes())
        except OSError as error:
            raise DataError(f"cannot read {file} ({error.strerror}); fetch the set again") from None
        if not content or len(content) % record_bytes:
            raise DataError(
                f"{file} is truncated or damaged: {len(content)} bytes are no multiple of {record_bytes}; "
                "fetch it again"
            )
        part = torch.frombuffer(content, dtype=torch.uint8).view(-1, record_bytes)
        check_labels(part[:, layout.label_bytes - 1], len(part), layout.classes, str(file))
        records.append(part)
    data = torch.cat(records)
    images = data[:, layout.label_bytes :].reshape(-1, *SHAPE)
    return images, data[:, layout.label_bytes - 1].clone()


def _class_names(file: Path, classes: int) -> tuple[str, ...]:
    """The names beside the data, or numbers where there are none."""
    names = tuple(file.read_text(encoding="utf-8").split()) if file.is_file() else ()
    return names if len(names) == classes else tuple(str(number) for number in range(classes))


def _read_pickled(layout: Layout, root: Path) -> tuple[tuple[str, ...], tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    from snncompress.vision import torchvision

    kind = getattr(torchvision.datasets, layout.title)
    try:
        train, test = kind(str(root), train=True), kind(str(root), train=False)  # compares md5 sums first
    except (RuntimeError, OSError) as error:
        raise DataError(
            f"{root / layout.pickled_folder} is damaged or not torchvision's {layout.title} ({error}); "
            "remove it and fetch it again with --download"
        ) from None
    return (
        tuple(train.classes),
        (torch.from_numpy(train.data).permute(0, 3, 1, 2).contiguous(), torch.tensor(train.targets)),
        (torch.from_numpy(test.data).permute(0, 3, 1, 2).contiguous(), torch.tensor(test.targets)),
    )
