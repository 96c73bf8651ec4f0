"""What to say when a set is not there, and torchvision's downloads of the ones it knows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from snncompress.errors import DataError


def missing(name: str, folders: Sequence[Path]) -> DataError:
    """The error for a data set that is in none of ``folders``."""
    looked = " or ".join(str(folder) for folder in folders)
    return DataError(f"no {name} files in {looked}; name their folder with --data-root, or fetch them with --download")


def run_download(title: str, root: Path) -> None:
    """Lets torchvision download the set of class ``title`` (such as ``MNIST``) into ``root``."""
    from snncompress.vision import torchvision

    try:
        getattr(torchvision.datasets, title)(str(root), download=True)
    except Exception as error:  # torchvision lets everything through: network, checksum and disk errors
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(
            f"the download of {title} into {root} failed ({reason}); try again, or fetch it yourself "
            "and name its folder with --data-root"
        ) from error
