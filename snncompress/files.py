"""Files that are whole or not there: written beside their place, synced, and renamed."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from snncompress.errors import RunError

META_KEY = "snncompress"  # where our JSON stands in a safetensors header; one key, since their order is random
LEFTOVERS = ".*.*.tmp"
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)


def storage_error(path: Path, error: OSError) -> RunError:
    """One line for a file that could not be written."""
    if error.errno in FULL:
        return RunError(f"cannot write {path}: the disk is full; make room, or choose another --out")
    if error.errno in FORBIDDEN:
        return RunError(f"cannot write {path}: permission denied; choose an --out folder that you may write to")
    return RunError(f"cannot write {path}: {error.strerror or error}; choose another --out")


def write_bytes(path: Path, data: bytes) -> None:
    """Replaces a file at once: a crash at any moment leaves the old or the new one."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")  # as LEFTOVERS says
    try:
        with beside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise storage_error(path, error) from error
    finally:
        beside.unlink(missing_ok=True)  # there after any failure, a second Ctrl-C too


def make_folder(path: Path) -> None:
    """Makes a folder, unless it is there."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise storage_error(path, error) from error


def lock_folder(path: Path) -> Callable[[], None]:
    """Keeps other processes from locking a folder; returns what lets them, as does the end of this process.

    Raises:
        RunError: If another process has locked it.
    """
    try:
        folder = os.open(path, os.O_RDONLY)
    except OSError as error:
        raise storage_error(path, error) from error
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(folder)
        raise RunError(f"another process writes into {path}; wait for its end, or choose another --out") from None
    except OSError:
        pass  # some file systems know no locks
    return lambda: os.close(folder)


def remove_leftovers(folder: Path) -> None:
    """Removes what processes that were killed while they wrote have left beside the files, in folders within too."""
    for file in folder.rglob(LEFTOVERS):
        file.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Writes JSON that a person can read."""
    write_bytes(path, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())


def read_json(path: Path) -> Any:
    """Reads JSON; a missing or damaged file is one clear error."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunError(f"no such file: {path}") from None
    except (ValueError, OSError) as error:
        raise RunError(f"cannot read {path}: {error}") from error


def write_tensors(path: Path, tensors: Mapping[str, Tensor], meta: Any = None) -> None:
    """Writes tensors, and JSON-able data beside them, as one safetensors file."""
    own: dict[str, Tensor] = {}
    places = set()
    for name, tensor in tensors.items():
        own[name] = tensor.detach().cpu().contiguous()
        if own[name].untyped_storage().data_ptr() in places:  # tied weights: safetensors wants each by itself
            own[name] = own[name].clone()
        places.add(own[name].untyped_storage().data_ptr())
    header = json.dumps({"meta": meta, "crc32": _checksum(meta, own)})
    write_bytes(path, safetensors.torch.save(own, metadata={META_KEY: header}))


def _checksum(meta: Any, tensors: Mapping[str, Tensor]) -> str:
    """Safetensors itself notices no flipped bit in its data."""
    value = zlib.crc32(json.dumps(meta).encode())
    for name, tensor in sorted(tensors.items()):
        value = zlib.crc32(f"{name} {tensor.dtype} {list(tensor.shape)}".encode(), value)
        value = zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy().data, value)
    return f"{value:08x}"


def read_tensors(path: Path) -> tuple[dict[str, Tensor], Any]:
    """Reads what ``write_tensors`` wrote."""
    try:
        with safetensors.safe_open(path, framework="pt") as file:  # type: ignore[no-untyped-call]
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            if file.metadata() is None:  # put there by another program
                return tensors, None
            header = json.loads(file.metadata()[META_KEY])
        if header["crc32"] != _checksum(header["meta"], tensors):
            raise ValueError("its checksum does not fit its content")
        return tensors, header["meta"]
    except FileNotFoundError:
        raise RunError(f"no such file: {path}") from None
    except (safetensors.SafetensorError, OSError, ValueError, LookupError, TypeError) as error:
        raise RunError(f"{path} is damaged ({error}); restore it, or run the command again with --force") from error
