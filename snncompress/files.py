"""Files that are whole or not there: written beside their place, synced, and renamed."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from snncompress.errors import RunError

META_KEY = "snncompress"  # where our JSON stands in a safetensors header


def storage_error(path: Path, error: OSError) -> RunError:
    """One line for a file that could not be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return RunError(f"cannot write {path}: the disk is full; make room, or choose another --out")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return RunError(f"cannot write {path}: permission denied; choose an --out folder that you may write to")
    return RunError(f"cannot write {path}: {error.strerror or error}")


def write_bytes(path: Path, data: bytes) -> None:
    """Replaces a file at once: a crash at any moment leaves the old or the new one."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
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
        beside.unlink(missing_ok=True)
        raise storage_error(path, error) from error


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
    own = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    header = None if meta is None else {META_KEY: json.dumps(meta)}
    write_bytes(path, safetensors.torch.save(own, metadata=header))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], Any]:
    """Reads what ``write_tensors`` wrote."""
    try:
        with safetensors.safe_open(path, framework="pt") as file:  # type: ignore[no-untyped-call]
            meta = json.loads((file.metadata() or {}).get(META_KEY, "null"))
            return {name: file.get_tensor(name) for name in file.keys()}, meta  # noqa: SIM118
    except FileNotFoundError:
        raise RunError(f"no such file: {path}") from None
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise RunError(f"{path} is damaged ({error}); restore it, or run the command again with --force") from error
