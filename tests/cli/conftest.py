"""What tests of bad input share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from small_data import write_npz
from words import train

from snncompress.cli import run as run_command


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_npz(tmp_path_factory.mktemp("data") / "quarters.npz")


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory, data: str) -> str:
    out = str(tmp_path_factory.mktemp("runs") / "noisy")
    assert run_command([*train(data)[:-1], out, "--quiet"]) == 0
    return out


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs a command that must fail, plainly and with --json; returns the one line."""

    def refused(*words: str, code: int) -> str:
        before = sorted(Path().rglob("*"))
        capsys.readouterr()
        assert run_command([*words]) == code
        out, err = capsys.readouterr()
        line = err.removesuffix("\n")
        assert out == ""
        assert line.startswith("error: ")
        assert "\n" not in line
        assert "Traceback" not in line
        assert "(unexpected;" not in line
        assert sorted(Path().rglob("*")) == before
        assert run_command([*words, "--json"]) == code
        out, err = capsys.readouterr()
        assert out == ""
        assert json.loads(err) == {"failure": line.removeprefix("error: ")}
        return line

    return refused


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Any:
    def call(*words: str | Path) -> str:
        """Runs a command that must succeed; returns its stdout."""
        capsys.readouterr()
        code = run_command([str(word) for word in words])
        out, err = capsys.readouterr()
        assert code == 0, err
        return out

    return call
