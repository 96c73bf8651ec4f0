"""Killed at random moments and resumed, `train` and `prune` end with the weights of an uninterrupted run.

The student is the hardest case: noise of its own, a teacher that is sampled, and Langevin dynamics after training.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from small_data import write_npz

from snncompress.cli import main, run

# What a command imports: the server does it once, and each process that it forks starts at once.
PRELOAD = [
    "snncompress.cli.app", "snncompress.cli.opening", "snncompress.pruning.pipeline", "snncompress.data.npz",
    "torch._dynamo",  # the optimizers import it when they are made
]  # fmt: skip
DRAWN = {"curve.json", "curve.png"}  # from the finished run; a kill may come first
PATIENCE = 120  # seconds for one command; they take about one


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Sums in the same order in every process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield


@dataclass(frozen=True)
class Command:
    """A command without its --out, the folder of an uninterrupted run of it, and the seconds that took."""

    words: list[str]
    whole: Path
    seconds: float


def start(words: list[str]) -> Any:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    process = context.Process(target=main, args=([*words, "--quiet"],))
    process.start()
    return process


def complete(words: list[str]) -> float:
    began = time.monotonic()
    process = start(words)
    process.join(PATIENCE)
    assert process.exitcode == 0
    return time.monotonic() - began


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Command]:
    folder = tmp_path_factory.mktemp("whole")
    data = write_npz(folder / "quarters.npz")
    model = ["mlp", "--model-arg", "widths=12-8", "--data", data, "--batch-size", "64"]
    train = ["train", *model, "--method", "se-snn", "--epochs", "3", "--lr", "0.01", "--save-every", "0"]
    prune = ["prune", str(folder / "train"), "--target-flops", "30%", "--max-drop", "40", "--candidates", "2"]
    prune += ["--finetune-steps", "3", "--final-epochs", "1", "--batch-size", "64", "--step", "2", "--save-every", "0"]
    hollow = ["train", *model, "--method", "variance", "--layers", "3", "--epochs", "1"]
    student = ["train", *model, "--method", "vd", "--distill", str(folder / "hollow"), "--epochs", "1"]
    student += ["--posterior", "sgld:40", "--save-every", "0"]
    complete(["list", "data"])  # starts the server, so that the next ones are timed without it
    made = {}
    for name, words in (("train", train), ("prune", prune), ("hollow", hollow), ("student", student)):
        made[name] = Command(words, folder / name, complete([*words, "--out", str(folder / name)]))
    return made


def status(out: Path) -> str:
    """missing, running without a state, saved, or complete."""
    if not (out / "run.json").exists():
        return "missing"
    if json.loads((out / "run.json").read_text())["status"] == "complete":
        return "complete"
    return "saved" if (out / "state.safetensors").exists() else "running"


def history(out: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (out / "history.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


def assert_same(out: Path, whole: Path) -> None:
    ours, theirs = (
        {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()} for folder in (out, whole)
    )
    assert ours - {"state.safetensors"} <= theirs  # killed right before it was dropped
    assert theirs - DRAWN <= ours
    for name in ours - {"run.json", "history.jsonl", "state.safetensors"} - DRAWN:
        assert (out / name).read_bytes() == (whole / name).read_bytes(), name
    assert history(out) == history(whole)
    header, expected = (json.loads((folder / "run.json").read_text()) for folder in (out, whole))
    assert {**header, "command": None} == {**expected, "command": None}


def kill_often(command: Command, folder: Path, kills: int, seed: int) -> list[str]:
    """Kills and resumes runs until there were enough kills; returns in which status each one hit."""
    moments = random.Random(seed)
    hits: list[str] = []
    runs = 0
    while len(hits) < kills or "saved" not in hits:
        assert runs < 10 * kills, f"{runs} runs, but only these kills: {hits}"
        out = folder / f"run{runs}"
        runs += 1
        while status(out) != "complete":
            words = [*command.words, "--out", str(out)]
            process = start(words if status(out) == "missing" else [*words, "--resume"])
            if len(hits) < kills or "saved" not in hits:
                process.join(moments.uniform(0, command.seconds))
                if process.exitcode is None:
                    process.kill()
            process.join(PATIENCE)
            assert process.exitcode in (0, -signal.SIGKILL)
            if process.exitcode:
                hits.append(status(out))
        assert_same(out, command.whole)
    return hits


@pytest.mark.parametrize("name", ["train", "prune", "student"])
def test_three_kills(commands: dict[str, Command], tmp_path: Path, name: str) -> None:
    assert len(kill_often(commands[name], tmp_path, kills=3, seed=1)) >= 3


@pytest.mark.slow
@pytest.mark.parametrize("name", ["train", "prune", "student"])
def test_a_hundred_kills(commands: dict[str, Command], tmp_path: Path, name: str) -> None:
    hits = kill_often(commands[name], tmp_path, kills=100, seed=2)
    assert len(hits) == 100
    assert hits.count("saved") > 20


def test_ctrl_c_of_the_real_command(commands: dict[str, Command], tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = [*commands["train"].words, "--out", str(out)]
    words[words.index("--epochs") + 1] = "100000"
    process = subprocess.Popen(
        [sys.executable, "-m", "snncompress", *words, "--quiet"], stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + PATIENCE
    while status(out) != "saved" and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert err.count("\n") == 1
    assert err.startswith("error: interrupted at step ")
    assert "--resume" in err
    assert status(out) == "saved"


def test_ctrl_c_before_anything_began(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("snncompress.cli.opening.open_run", interrupt)
    assert run(["train", "mlp", "--data", "mnist-sample", "--out", "never"]) == 130
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "error: interrupted; a run that had begun goes on with --resume\n"
