"""Files are whole or not there."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from snncompress.errors import RunError
from snncompress.files import (
    read_json,
    read_tensors,
    remove_leftovers,
    write_bytes,
    write_json,
    write_tensors,
)


def tensors() -> dict[str, torch.Tensor]:
    return {
        "weight": torch.randn(3, 4),
        "count": torch.tensor(7),
        "half": torch.randn(5).to(torch.bfloat16),
        "empty": torch.zeros(0, 2),
    }


def test_tensors_and_their_json_come_back(tmp_path: Path) -> None:
    stored = tensors()
    meta = {"step": 3, "values": [0.1, None], "text": "σ"}
    write_tensors(tmp_path / "a.safetensors", stored, meta)
    found, found_meta = read_tensors(tmp_path / "a.safetensors")
    assert found_meta == meta
    assert found.keys() == stored.keys()
    for name, tensor in stored.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)


def test_tied_weights_are_written(tmp_path: Path) -> None:
    layer = nn.Linear(3, 3)
    write_tensors(tmp_path / "a.safetensors", {"a": layer.weight, "b": layer.weight, "part": layer.weight[1]})
    found, meta = read_tensors(tmp_path / "a.safetensors")
    assert meta is None
    assert torch.equal(found["a"], found["b"])
    assert torch.equal(found["part"], layer.weight[1].detach())


def test_every_flipped_bit_and_every_cut_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write_tensors(path, tensors(), {"step": 1})
    whole = path.read_bytes()
    for position in range(0, len(whole), 3):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << (position % 8)
        path.write_bytes(damaged)
        try:
            found, meta = read_tensors(path)
        except RunError:
            continue
        write_tensors(path, found, meta)  # spaces that pad the header mean nothing
        assert path.read_bytes() == whole
    for length in (0, 5, 100, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(RunError, match="damaged"):
            read_tensors(path)


@pytest.mark.parametrize(
    ("number", "words"),
    [(errno.ENOSPC, "disk is full"), (errno.EDQUOT, "disk is full"), (errno.EFBIG, "disk is full"),
     (errno.EROFS, "permission denied"), (errno.EACCES, "permission denied"), (errno.EIO, "choose another --out")],
)  # fmt: skip
def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, words: str
) -> None:
    write_bytes(tmp_path / "a", b"old")

    def fail(_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(RunError, match=words):
        write_bytes(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"old"
    assert [file.name for file in tmp_path.iterdir()] == ["a"]


def test_an_interrupted_write_leaves_no_other_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_bytes(tmp_path / "a", b"new")
    assert list(tmp_path.iterdir()) == []


def test_leftovers_of_killed_processes_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(_: Path, __: Path) -> Any:
        raise SystemExit

    write_bytes(tmp_path / "model.safetensors", b"kept")
    (tmp_path / ".hidden").write_bytes(b"kept")
    monkeypatch.setattr(Path, "replace", die)
    monkeypatch.setattr(Path, "unlink", lambda *_, **__: None)  # as a SIGKILL would have it
    with pytest.raises(SystemExit):
        write_bytes(tmp_path / "state.safetensors", b"half")
    monkeypatch.undo()
    assert len(list(tmp_path.iterdir())) == 3
    remove_leftovers(tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == [".hidden", "model.safetensors"]


def test_json_errors_name_the_file(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"a": [1, "é"]})
    assert read_json(tmp_path / "a.json") == {"a": [1, "é"]}
    (tmp_path / "b.json").write_text('{"a": ')
    for name in ("b.json", "none.json"):
        with pytest.raises(RunError, match=name):
            read_json(tmp_path / name)
