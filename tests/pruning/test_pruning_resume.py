"""A prune that died and was resumed ends like one that was never interrupted, whatever it was doing."""

from __future__ import annotations

import signal
from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from crashing import assert_same, crash_and_resume, history
from pruned import OPTIONS, TRAINING
from small_data import CLASSES, IMAGE, small_run
from torch import Tensor

import snncompress
from snncompress import PruneOptions, TrainOptions, prune, train
from snncompress.data.dataset import Dataset
from snncompress.pruning.options import Allocation, Per
from snncompress.run import Run
from snncompress.run_folder import RunFolder
from snncompress.training.interrupt import InterruptedRunError
from snncompress.training.langevin import PosteriorOptions


@pytest.fixture(scope="module")
def runs(noisy: Run, residual: Run, data: Dataset) -> dict[str, Run]:
    options = TrainOptions(epochs=2, lr=0.01, batch_size=64)
    wide = snncompress.load("mlp", arguments={"widths": "40-30"}, classes=CLASSES, input_shape=IMAGE)
    return {
        "noisy": noisy,
        "residual": residual,
        "wide": train(wide, data, options),
        "posterior": train(noisy, data, options, method="dropout", posterior=PosteriorOptions(20, 1e-5)),
        "vd": train(small_run(), data, options, method="vd"),
    }


@dataclass(frozen=True)
class Case:
    run: str
    options: PruneOptions
    phases: frozenset[str] = frozenset({"allocate", "rounds", "final", "done"})
    taught: bool = False


UNIFORM = replace(OPTIONS, allocation=Allocation.UNIFORM)
CASES = {
    "compete": Case("noisy", OPTIONS),
    "sensitivity": Case("noisy", replace(OPTIONS, allocation=Allocation.SENSITIVITY)),
    "global": Case("noisy", replace(OPTIONS, allocation=Allocation.GLOBAL, per=Per.FLOPS)),
    "random": Case("noisy", replace(OPTIONS, criterion="random", finetune_steps=0)),
    "random, global": Case("noisy", replace(OPTIONS, criterion="random", allocation=Allocation.GLOBAL, step=1)),
    "budget": Case(
        "noisy", replace(OPTIONS, target_flops="12%", max_drop=4.0),
        frozenset({"allocate", "rounds", "recover", "final", "done"}),
    ),
    "auto step": Case("wide", replace(UNIFORM, target_flops="30%", step=0, criterion="magnitude")),
    "posterior": Case("posterior", replace(UNIFORM, step=2)),
    "size and memory": Case("residual", replace(UNIFORM, target_flops=None, target_size="40%", target_memory="60%")),
    "rounded": Case("residual", replace(UNIFORM, target_flops="50%", round_to=4)),
    "noise": Case("noisy", replace(UNIFORM, finetune_noise=True)),
    "noise of vd": Case("vd", replace(UNIFORM, finetune_noise=True)),
    "teacher": Case("noisy", UNIFORM, taught=True),
}  # fmt: skip


EVERYWHERE = ("compete", "budget")  # die in every phase; the others amid the rounds, and at the end


def phases_of_states(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Notes the phase of every state that is saved."""
    save, phases = RunFolder.save, []

    def save_and_note(self: RunFolder, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
        save(self, tensors, meta)
        phases.append(meta["phase"])

    monkeypatch.setattr(RunFolder, "save", save_and_note)
    return phases


def moments(phases: list[str]) -> list[int]:
    """The second state of each phase, and its last."""
    seen: Counter[str] = Counter()
    chosen = []
    for number, phase in enumerate(phases, 1):
        seen[phase] += 1
        if seen[phase] == 2 or number == len(phases) or phases[number] != phase:
            chosen.append(number)
    return chosen


@pytest.mark.parametrize("name", CASES)
def test_it_ends_like_one_that_was_never_interrupted(
    runs: dict[str, Run], data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    case = CASES[name]
    run = runs[case.run]
    make = partial(prune, run, data, case.options, TRAINING, teacher=run if case.taught else None)
    with monkeypatch.context() as patch:
        phases = phases_of_states(patch)
        whole = make(out=tmp_path / "whole")
    assert set(phases) == case.phases
    assert (whole.plan or {})["stopped" if name == "budget" else "points"]
    middle = phases.index("rounds") + phases.count("rounds") // 2
    for number in moments(phases) if name in EVERYWHERE else [middle, len(phases) - 2]:
        out = tmp_path / f"run{number}"
        resumed = crash_and_resume(make, monkeypatch, out, number)
        assert_same(whole, resumed)
        assert resumed.plan == whole.plan
        assert history(out) == history(tmp_path / "whole")
        assert not (out / "state.safetensors").exists()
        files = [file.relative_to(tmp_path / "whole") for file in (tmp_path / "whole").rglob("*.safetensors")]
        assert {file.relative_to(out) for file in out.rglob("*.safetensors")} == set(files)
        for file in files:  # the points on the way, too
            assert (out / file).read_bytes() == (tmp_path / "whole" / file).read_bytes(), file


def test_ctrl_c_keeps_the_state(noisy: Run, data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = prune(noisy, data, OPTIONS, TRAINING, out=tmp_path / "whole")
    due, asked = RunFolder.due, []

    def interrupt(self: RunFolder) -> bool:
        asked.append(1)
        if len(asked) == 9:
            signal.raise_signal(signal.SIGINT)
        return due(self)

    patient = replace(TRAINING, save_every=1000)  # only the end of a phase, and the interrupt, save
    with monkeypatch.context() as patch, pytest.raises(InterruptedRunError, match="in phase rounds"):  # noqa: PT012
        patch.setattr(RunFolder, "due", interrupt)
        prune(noisy, data, OPTIONS, patient, out=tmp_path / "run")
    assert_same(whole, prune(noisy, data, OPTIONS, patient, out=tmp_path / "run", resume=True))
