"""``snncompress watch``: what it reads from a run's files, while they grow and after."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from snncompress.cli import run as run_command
from snncompress.cli import watch as watch_module
from snncompress.files import write_tensors
from snncompress.reporting.following import SILENT_AFTER, look

HEADER = {"format": 1, "status": "running", "name": "lenet5", "command": [], "parent": None, "task": "classification"}
ORIGINAL = {"weights": 1000, "flops": 1000, "memory": 100}


def begin(folder: Path, config: dict[str, Any], *records: dict[str, Any], **more: Any) -> Path:
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps({**HEADER, "config": config, "original": ORIGINAL, **more}))
    (folder / "history.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return folder


def epoch(number: int, error: float, **more: Any) -> dict[str, Any]:
    return {
        "step": 10 * number,
        "epoch": number,
        "loss": 1 / (number + 1),
        "validation_error": error,
        "seconds": 6.0,
        **more,
    }


TRAINING = {"epochs": 4, "batch_size": 32, "method": "se-snn"}
NOISE = {"conv1": {"log_sigma_25": -3.0, "log_sigma_50": -2.0, "log_sigma_75": -1.0}}


def test_training_under_way(tmp_path: Path, call: Any) -> None:
    run = begin(tmp_path / "run", TRAINING, epoch(0, 90.0), epoch(1, 5.0, noise=NOISE, penalty=0.25))
    status = look(run)
    assert (status.doing, status.share, status.left_seconds) == ("epoch 2 of 4", 0.25, 18.0)
    assert status.errors == (90.0, 5.0)
    assert status.noise() == ("median log σ", {"conv1": -2.0})
    out = call("watch", run, "--once")
    for words in ("train lenet5 with se-snn", "epoch 2 of 4", "25%", "about 18 s left", "penalty 0.2500", "best 5.00%"):
        assert words in out
    assert "conv1 -2.00" in out
    assert "nothing new" not in out


def test_the_state_is_newer_than_the_last_epoch(tmp_path: Path) -> None:
    run = begin(tmp_path / "run", TRAINING, epoch(0, 90.0), epoch(1, 5.0))
    write_tensors(run / "state.safetensors", {}, {"step": 25, "history": 2})
    assert look(run).share == pytest.approx(0.625)
    (run / "state.safetensors").write_bytes(b"damaged")
    assert look(run).share == pytest.approx(0.25)


def test_sampling_of_the_posterior(tmp_path: Path) -> None:
    config = {**TRAINING, "epochs": 1, "posterior": {"samples": 200}}
    run = begin(tmp_path / "run", config, epoch(0, 90.0), epoch(1, 5.0))
    write_tensors(run / "state.safetensors", {}, {"step": 10, "drawn": 50})
    assert (look(run).doing, look(run).share) == ("posterior: sample 50 of 200", 0.25)


def point(number: int, flops: int, error: float, phase: str = "rounds") -> dict[str, Any]:
    widths = {"conv1": flops // 100}
    return {
        "phase": phase, "round": number, "step": number, "flops": flops, "size": flops, "memory": 50, "widths": widths,
        "error": error,
    }  # fmt: skip


PRUNING = {"target_flops": "10%", "target_size": None, "final_epochs": 2, "training": {"batch_size": 32}}


def test_pruning_under_way(tmp_path: Path, call: Any) -> None:
    run = begin(tmp_path / "run", PRUNING, point(0, 1000, 1.0, "dead"), point(3, 316, 1.5))
    status = look(run)
    assert status.doing == "round 3"
    assert status.share == pytest.approx(0.5, abs=0.01)
    out = call("watch", run, "--once")
    for words in ("prune lenet5", "round 3", "50%", "conv1 3", "1.00% → 1.50%"):
        assert words in out


def test_the_last_fine_tuning(tmp_path: Path) -> None:
    parent = begin(tmp_path / "noisy", TRAINING, epoch(0, 9.0), epoch(1, 1.0), status="complete")
    run = begin(tmp_path / "run", PRUNING, point(0, 1000, 1.0, "dead"), point(3, 100, 1.5), parent=str(parent))
    write_tensors(run / "state.safetensors", {}, {"phase": "final", "round_step": 5})
    assert (look(run).doing, look(run).share) == ("the last fine-tuning", 0.25)  # 10 steps an epoch, 2 epochs


def test_a_finished_run(noisy: str, call: Any) -> None:
    out = call("watch", noisy)
    assert out.splitlines()[-1].startswith("epoch 1: loss")
    assert "finished" in call("watch", noisy, "--once")
    assert call("watch", noisy, "--quiet") == ""
    records = [json.loads(line) for line in call("watch", noisy, "--json").splitlines()]
    assert records == [json.loads(line) for line in (Path(noisy) / "history.jsonl").read_text().splitlines()]


def between_looks(monkeypatch: pytest.MonkeyPatch, *steps: Callable[[], object]) -> None:
    """Takes these steps, one each time that the command waits."""
    waiting = iter(steps)
    monkeypatch.setattr(watch_module.time, "sleep", lambda _: next(waiting)())


def finish(run: Path) -> None:
    (run / "run.json").write_text(json.dumps({**HEADER, "status": "complete", "config": TRAINING}))


def test_it_follows_until_the_run_is_complete(tmp_path: Path, call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run = begin(tmp_path / "run", TRAINING, epoch(0, 90.0))
    history = (run / "history.jsonl").open("a")
    line = json.dumps(epoch(1, 5.0)) + "\n"

    def write(text: str) -> Callable[[], object]:
        return lambda: (history.write(text), history.flush())

    between_looks(monkeypatch, write(line[:10]), write(line[10:]), lambda: finish(run))  # half a record is no record
    out = call("watch", run, "--json")
    history.close()
    assert [json.loads(line)["epoch"] for line in out.splitlines()] == [0, 1]


def test_a_resumed_run_is_told_again_from_there(tmp_path: Path, call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run = begin(tmp_path / "run", TRAINING, epoch(0, 90.0), epoch(1, 5.0), epoch(2, 4.0))
    history = run / "history.jsonl"
    begun = "".join(history.read_text().splitlines(keepends=True)[:2])
    again = begun + json.dumps(epoch(2, 3.0)) + "\n"
    steps = (lambda: history.write_text(begun), lambda: history.write_text(again), lambda: finish(run))
    between_looks(monkeypatch, *steps)
    out = call("watch", run)
    assert [line.partition(":")[0] for line in out.splitlines()] == ["epoch 0", "epoch 1", "epoch 2", "epoch 2"]
    assert "3.00%" in out


def test_a_terminal_gets_a_picture(noisy: str, call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_module.sys.stdout, "isatty", lambda: True)
    assert "finished" in call("watch", noisy)


def test_ctrl_c_ends_it(tmp_path: Path, call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(watch_module.time, "sleep", interrupt)
    assert "epoch 0" in call("watch", begin(tmp_path / "run", TRAINING, epoch(0, 90.0)))


def test_silence_is_noticed(tmp_path: Path) -> None:
    run = begin(tmp_path / "run", TRAINING, epoch(0, 90.0))
    assert look(run, time.time() + SILENT_AFTER + 60).silent
    assert not look(run, time.time()).silent


def test_bad_input(refused: Any, elsewhere: None) -> None:
    assert "not a run" in refused("watch", "nowhere", code=1)
    run = begin(Path("run"), TRAINING)
    (run / "history.jsonl").write_text("{no json\n")
    assert "history.jsonl is damaged" in refused("watch", "run", "--once", code=1)
    (run / "run.json").write_text("[]")
    assert "run.json is damaged" in refused("watch", "run", "--once", code=1)
    assert run_command(["watch"]) == 2
