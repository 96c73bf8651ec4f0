"""Runs that die right after they have saved their state, and what must be the same when they are resumed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from snncompress.run import Run
from snncompress.run_folder import RunFolder


class CrashError(Exception):
    """Stands for a SIGKILL right after a state was saved."""


def crash_at(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Lets the process die after it has saved its state so many times."""
    save, saves = RunFolder.save, []

    def save_and_die(self: RunFolder, *args: Any) -> None:
        save(self, *args)
        saves.append(1)
        if len(saves) == number:
            raise CrashError

    monkeypatch.setattr(RunFolder, "save", save_and_die)


def crash_and_resume(make: Callable[..., Run], monkeypatch: pytest.MonkeyPatch, out: Path, number: int) -> Run:
    """Calls ``make(out=out)``, lets it die after so many states, and resumes it with other random numbers about."""
    with monkeypatch.context() as patch, pytest.raises(CrashError):  # noqa: PT012
        crash_at(patch, number)
        make(out=out)
    torch.manual_seed(1234)
    return make(out=out, resume=True)


def history(folder: Path) -> list[dict[str, Any]]:
    """The history without its times."""
    lines = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


def assert_same(run: Run, other: Run) -> None:
    """Weights, noise, posterior and metrics agree bit for bit."""
    assert_equal(run.model.state_dict(), other.model.state_dict())
    assert (run.noise is None) == (other.noise is None)
    if run.noise is not None and other.noise is not None:
        assert run.noise.json == other.noise.json
        assert_equal(run.noise.tensors, other.noise.tensors)
    assert (run.posterior is None) == (other.posterior is None)
    assert_equal(run.posterior or {}, other.posterior or {})
    assert run.metrics == other.metrics


def assert_equal(some: dict[str, Tensor], others: dict[str, Tensor]) -> None:
    """The same names, the same tensors."""
    assert some.keys() == others.keys()
    for name, tensor in some.items():
        assert torch.equal(tensor, others[name]), name
