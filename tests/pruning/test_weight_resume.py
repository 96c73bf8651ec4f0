"""A pruning of weights that died and was resumed ends like one that was never interrupted, whatever it was doing."""

from __future__ import annotations

import shutil
import signal
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from crashing import assert_same, crash_and_resume, history
from pruned import TRAINING as SLOW
from pruned import plan_of
from sparse import ONCE, ROUNDS
from test_pruning_resume import moments, phases_of_states

from snncompress import PruneOptions, TrainOptions, prune, prune_weights, train
from snncompress.data.dataset import Dataset
from snncompress.errors import UsageError
from snncompress.pruning.options import Allocation, Scope, WeightOptions
from snncompress.pruning.sparsifier import Sparsifier
from snncompress.run import Run
from snncompress.run_files import load
from snncompress.run_folder import RunFolder
from snncompress.storage import Storage
from snncompress.training.interrupt import InterruptedRunError
from snncompress.training.langevin import PosteriorOptions

TRAINING = replace(SLOW, batch_size=160)  # three steps an epoch
AUTO = replace(ROUNDS, criterion="auto")


@dataclass(frozen=True)
class Case:
    run: str
    options: WeightOptions
    phases: frozenset[str] = frozenset({"rounds", "final", "done"})
    everywhere: bool = False  # die in every phase; the others amid the rounds, and at the end
    taught: bool = False
    stopped: bool = False


CASES = {
    "rounds": Case("plain", replace(ROUNDS, target_size="35%"), everywhere=True),
    "once": Case("plain", replace(ONCE, target_flops="40%")),
    "search": Case("plain", replace(ONCE, max_drop=4.0, final_epochs=1)),
    "budget": Case(
        "plain", replace(ROUNDS, target_size="4%", max_drop=1.0), frozenset({"rounds", "recover", "final", "done"}),
        everywhere=True, stopped=True,
    ),
    "give up": Case("plain", replace(ONCE, target_size="4%", max_drop=1.0), stopped=True),
    "random": Case("plain", replace(ROUNDS, target_size="40%", criterion="random")),
    "random, once": Case("plain", replace(ONCE, target_flops="40%", criterion="random")),
    "batch norms, layer": Case("residual", replace(ROUNDS, target_size="65%", scope=Scope.LAYER)),
    "log-alpha": Case("drowned", replace(AUTO, threshold=1.0)),
    "snr": Case("drowned", replace(AUTO, criterion="snr", target_size="35%")),
    "posterior": Case("walked", replace(AUTO, target_size="40%", keep=("5",))),
    "variances": Case("variances", replace(AUTO, target_size="95%"), everywhere=True),
    "blurred": Case("blurred", replace(AUTO, target_size="95%")),
    "variances within a budget": Case("variances", replace(AUTO, max_drop=8.0)),
    "teacher": Case("plain", replace(ROUNDS, target_size="50%"), taught=True),
}  # fmt: skip


@pytest.fixture(scope="module")
def walked(plain: Run, data: Dataset) -> Run:
    options = TrainOptions(epochs=1, lr=0.01, batch_size=64)
    return train(plain, data, options, method="dropout", posterior=PosteriorOptions(20, 1e-5))


def assert_same_files(one: Path, other: Path) -> None:
    files = {file.relative_to(one) for file in one.rglob("*.safetensors")}
    assert {file.relative_to(other) for file in other.rglob("*.safetensors")} == files
    for file in files:  # the points on the way, too
        assert (one / file).read_bytes() == (other / file).read_bytes(), file
    assert (one / "plan.json").read_bytes() == (other / "plan.json").read_bytes()


@pytest.mark.parametrize("name", CASES)
def test_it_ends_like_one_that_was_never_interrupted(
    request: pytest.FixtureRequest, data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    case = CASES[name]
    run: Run = request.getfixturevalue(case.run)
    make = partial(prune_weights, run, data, case.options, TRAINING, teacher=run if case.taught else None)
    with monkeypatch.context() as patch:
        phases = phases_of_states(patch)
        whole = make(out=tmp_path / "whole")
    assert set(phases) == case.phases
    assert (plan_of(whole)["stopped"] is not None) == case.stopped
    middle = phases.index("rounds") + (phases.count("rounds") + 1) // 2
    for number in moments(phases) if case.everywhere else sorted({middle, len(phases) - 1}):
        out = tmp_path / f"run{number}"
        resumed = crash_and_resume(make, monkeypatch, out, number)
        assert_same(whole, resumed)
        assert resumed.plan == whole.plan
        assert history(out) == history(tmp_path / "whole")
        assert_same_files(tmp_path / "whole", out)


@pytest.mark.parametrize("number", [1, 3])
def test_before_the_first_state_it_begins_anew(
    plain: Run, data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """As a SIGKILL amid the search leaves it."""
    options = replace(ONCE, max_drop=4.0)
    error_of, asked = Sparsifier.error_of, []

    def leave(self: Sparsifier, *args: Any) -> float:
        asked.append(1)
        if len(asked) == number:
            shutil.copytree(tmp_path / "whole", tmp_path / "run")
        return error_of(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(Sparsifier, "error_of", leave)
        whole = prune_weights(plain, data, options, TRAINING, out=tmp_path / "whole")
    assert not (tmp_path / "run" / "state.safetensors").exists()
    resumed = prune_weights(plain, data, options, TRAINING, out=tmp_path / "run", resume=True)
    assert_same(whole, resumed)
    assert history(tmp_path / "run") == history(tmp_path / "whole")
    assert_same_files(tmp_path / "whole", tmp_path / "run")


def test_ctrl_c_keeps_the_state(plain: Run, data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = replace(ROUNDS, target_size="20%")
    whole = prune_weights(plain, data, options, TRAINING, out=tmp_path / "whole")
    due, asked = RunFolder.due, []

    def interrupt(self: RunFolder) -> bool:
        asked.append(1)
        if len(asked) == 9:
            signal.raise_signal(signal.SIGINT)
        return due(self)

    patient = replace(TRAINING, save_every=1000)  # only the end of a phase, and the interrupt, save
    with monkeypatch.context() as patch, pytest.raises(InterruptedRunError, match="in phase rounds"):  # noqa: PT012
        patch.setattr(RunFolder, "due", interrupt)
        prune_weights(plain, data, options, patient, out=tmp_path / "run")
    resumed = prune_weights(plain, data, options, patient, out=tmp_path / "run", resume=True)
    assert_same(whole, resumed)
    assert resumed.plan == whole.plan


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"threshold": 0.2}, "--threshold"), ({"scope": Scope.LAYER, "threshold": None, "target_size": "50%"}, "--"),
        ({"criterion": "random"}, "--criterion"), ({"keep": ("5",)}, "--keep"),
    ],
)  # fmt: skip
def test_other_options_are_refused(
    plain: Run, data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: dict[str, Any], words: str
) -> None:
    options = replace(ONCE, threshold=0.1)
    make = partial(prune_weights, plain, data, options, TRAINING)
    whole = crash_and_resume(make, monkeypatch, tmp_path / "whole", 1)
    with monkeypatch.context() as patch, pytest.raises(UsageError, match=f"--resume with another {words}"):  # noqa: PT012
        patch.setattr(RunFolder, "finish", lambda self, run: run)  # dies before its end
        prune_weights(plain, data, options, TRAINING, out=tmp_path / "run")
        prune_weights(plain, data, replace(options, **other), TRAINING, out=tmp_path / "run", resume=True)
    with pytest.raises(UsageError, match="--resume with another --storage"):
        prune_weights(plain, data, options, TRAINING, storage=Storage.DENSE, out=tmp_path / "run", resume=True)
    assert_same(whole, prune_weights(plain, data, options, TRAINING, out=tmp_path / "run", resume=True))


def test_neurons_of_a_sparse_run(plain: Run, data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Zeros are held after a resume, too."""
    prune_weights(plain, data, replace(ONCE, target_size="40%"), TRAINING, out=tmp_path / "thin")
    options = PruneOptions(target_flops="50%", allocation=Allocation.UNIFORM, finetune_steps=2, final_epochs=1, step=3)
    make = partial(prune, load(tmp_path / "thin"), data, options, TRAINING)
    with monkeypatch.context() as patch:
        phases = phases_of_states(patch)
        whole = make(out=tmp_path / "whole")
    for number in moments(phases)[-3:]:
        assert_same(whole, crash_and_resume(make, monkeypatch, tmp_path / f"run{number}", number))


def test_training_of_a_sparse_run(plain: Run, data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prune_weights(plain, data, replace(ONCE, target_size="40%"), TRAINING, out=tmp_path / "thin")
    options = TrainOptions(epochs=1, lr=0.01, batch_size=64, save_every=0)
    make = partial(train, load(tmp_path / "thin"), data, options, method="dropout", posterior=PosteriorOptions(6))
    whole = make(out=tmp_path / "whole")
    for number in (4, 12):  # amid the epoch, amid the samples
        assert_same(whole, crash_and_resume(make, monkeypatch, tmp_path / f"run{number}", number))
