"""Full disks and folders that may only be read: one line, and nothing half written."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from words import train

from snncompress import run_files as run_module
from snncompress.cli import run as run_command
from snncompress.errors import RunError

pytestmark = pytest.mark.usefixtures("elsewhere")


def limited(size: int, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs a command that can write no file larger than ``size`` bytes; Python ignores the signal that comes first."""
    program = (
        f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, {size})); "
        f"from snncompress.cli import main; main({list(words)!r})"
    )
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)


def test_a_disk_that_is_full_from_the_start(data: str) -> None:
    result = limited(3000, *train(data))
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1
    assert "the disk is full; make room" in result.stderr
    assert list(Path().iterdir()) == []


def test_a_disk_that_becomes_full(
    data: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*train(data), "--save-every", "0", "--quiet"]
    assert run_command([*words[:-4], "whole", *words[-3:]]) == 0
    fsync, calls = os.fsync, []

    def full(file: int) -> None:
        calls.append(file)
        if len(calls) > 9:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(file)

    capsys.readouterr()
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        assert run_command(words) == 1
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "the disk is full" in err
    assert not [file for file in Path("out").iterdir() if file.name.endswith(".tmp")]
    assert run_command([*words, "--resume"]) == 0
    assert Path("out/model.safetensors").read_bytes() == Path("whole/model.safetensors").read_bytes()


def test_a_full_disk_leaves_no_export(refused: Any, noisy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    assert "the disk is full" in refused("export", noisy, "--out", "model.onnx", code=1)


def test_a_read_only_folder(refused: Any, data: str, noisy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.getuid() == 0:  # root may write everywhere

        def mkdir(self: Path, *_: Any, **__: Any) -> None:
            raise PermissionError(errno.EACCES, "Permission denied", str(self))

        monkeypatch.setattr(Path, "mkdir", mkdir)
        folder = Path("out")
    else:
        Path("locked").mkdir(mode=0o500)
        folder = Path("locked/out")
    for words in (train(data), ["prune", noisy, "--target-flops", "40%"]):
        assert "may write" in refused(*words, "--out", str(folder), "--quiet", code=1)


def test_a_run_that_may_only_be_read_is_evaluated(noisy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(path: Path, _: Any) -> None:
        raise RunError(f"cannot write {path}: permission denied")

    before = Path(noisy, "run.json").read_bytes()
    monkeypatch.setattr(run_module, "write_json", write)
    assert run_command(["evaluate", noisy, "--quiet"]) == 0
    assert Path(noisy, "run.json").read_bytes() == before


def test_output_that_cannot_be_written() -> None:
    command = [sys.executable, "-m", "snncompress", "list", "models"]
    if Path("/dev/full").exists():
        with Path("/dev/full").open("w") as full:
            result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
        assert result.returncode == 1
        assert result.stderr.startswith("error: No space left on device")
        assert result.stderr.count("\n") == 1
    reader, writer = os.pipe()
    os.close(reader)  # as `head` does when it has enough
    result = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert result.stderr == ""
