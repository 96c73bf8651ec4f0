"""MNIST and its drop-in successor, read from their idx files (gzipped or not).

``mnist``: handwritten digits, 60,000 + 10,000 gray images of 28×28 (LeCun et al. 1998)
``fashion-mnist``: articles of clothing, 60,000 + 10,000 gray images of 28×28 (Xiao et al. 2017)

The files are looked for where torchvision puts them (ROOT/MNIST/raw, ROOT/FashionMNIST/raw) and in ROOT.
"""

from __future__ import annotations

import gzip
import zlib
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from snncompress.data.dataset import Normalization
from snncompress.data.download import missing, run_download
from snncompress.data.request import DataRequest, Parts, check_labels
from snncompress.errors import DataError

UNSIGNED_BYTES = 8  # the idx format's code for uint8, the only type these sets use
GARMENTS = "T-shirt/top,Trouser,Pullover,Dress,Coat,Sandal,Shirt,Sneaker,Bag,Ankle boot"
# name: (torchvision's class, and its folder below the root; names of the classes)
SETS = {
    "mnist": ("MNIST", tuple("0123456789")),
    "fashion-mnist": ("FashionMNIST", tuple(GARMENTS.split(","))),
}


def load(request: DataRequest) -> Parts:
    """Loads the set from its four idx files."""
    title, classes = SETS[request.name]
    folders = [request.root / title / "raw", request.root]
    folder = _find(folders)
    if folder is None and request.download:
        run_download(title, request.root)
        folder = _find(folders)
    if folder is None:
        raise missing(request.name, folders)
    train, test = (request.hold(*read_part(folder, part, len(classes))) for part in ("train", "t10k"))
    return Parts(classes, Normalization.parse(request.name, 1), train, None, test)


def read_idx(file: Path) -> Tensor:
    """Reads an idx file of unsigned bytes, gzipped if its name says so."""
    try:
        content = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"cannot read {file} ({error}); fetch it again") from None
    # Two zero bytes, the type, the number of dimensions, then each size as four big-endian bytes.
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] != UNSIGNED_BYTES:
        raise DataError(f"{file} is no idx file of unsigned bytes; fetch it again")
    start = 4 + 4 * content[3]
    sizes = [int.from_bytes(content[i : i + 4], "big") for i in range(4, start, 4)]
    if len(content) != start + prod(sizes):
        raise DataError(
            f"{file} is truncated or damaged: {len(content)} bytes, its header says "
            f"{start + prod(sizes)}; fetch it again"
        )
    # A copy, since the bytes object is read-only.
    return torch.frombuffer(bytearray(content[start:]), dtype=torch.uint8).view(sizes)


def read_part(folder: Path, part: str, classes: int) -> tuple[Tensor, Tensor]:
    """Reads images (N, 1, 28, 28) and labels of the part ``train`` or ``t10k``."""
    images, labels = (read_idx(_file(folder, stem)) for stem in _stems(part))
    if images.dim() != 3 or labels.dim() != 1:
        raise DataError(f"{folder}: the {part} files hold no images and labels; fetch them again")
    check_labels(labels, len(images), classes, f"{folder} ({part})")
    return images.unsqueeze(1), labels


def _stems(part: str) -> tuple[str, str]:
    return f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte"


def _file(folder: Path, stem: str) -> Path:
    plain = folder / stem
    return plain if plain.is_file() else folder / f"{stem}.gz"


def _find(folders: list[Path]) -> Path | None:
    """The first folder with any of the files; a missing one among them is then named by the reader."""
    stems = _stems("train") + _stems("t10k")
    return next((f for f in folders if any(_file(f, stem).is_file() for stem in stems)), None)
