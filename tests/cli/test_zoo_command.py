"""``snncompress zoo`` as a user types it, on a zoo of one small entry; and ``zoo:NAME`` as a source."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from crashing import CrashError, crash_at

from benchmarks import tables
from snncompress.cli import run as run_command
from snncompress.cli.steps import call as call_step
from snncompress.errors import RunError
from snncompress.run_files import load
from snncompress.zoo.entries import ZOO_VARIABLE, find_zoo
from snncompress.zoo.measuring import load_own_data, measure, state
from snncompress.zoo.storing import store

RECIPE = """
summary = "a perceptron for two steps"
model = "mlp"
data = "mnist-sample"
licence = "CC BY-SA 3.0"
result = "noisy"

[[steps]]
about = "plainly"
command = "train mlp --model-arg widths=8 --data mnist-sample --data-root {data_root} --method none --epochs 1 --seed {seed} --out {out}/plain"

[[steps]]
about = "with noise, and what it learned before"
command = "train {out}/plain --method se-snn --epochs 1 --distill {out}/plain --save-every 0 --seed {seed} --out {out}/noisy"
"""  # noqa: E501


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An entry `tiny` with stored weights, one `bare` without, and the run `whole` that was never interrupted."""
    folder = tmp_path_factory.mktemp("zoo")
    for name in ("tiny", "bare"):
        (folder / name).mkdir()
        (folder / name / "recipe.toml").write_text(RECIPE)
        (folder / name / "card.md").write_text(f"# {name}\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(ZOO_VARIABLE, str(folder))
        whole = folder / "whole"
        call_step(["zoo", "run", "tiny", "--seed", "3", "--out", str(whole)], quiet=True, json=True)
        run = load(whole / "noisy")
        figures = state([3], [measure(run, load_own_data(run, None))], "test", None)
        store(find_zoo("tiny"), run, figures, whole)
        yield folder


@pytest.mark.usefixtures("zoo")
def test_list_and_show(call: Any) -> None:
    bare, tiny = json.loads(call("zoo", "list", "--json"))
    assert (bare["name"], bare["stored"], bare["figures"]) == ("bare", False, None)
    assert (tiny["name"], tiny["stored"], tiny["figures"]["seeds"]) == ("tiny", True, [3])
    lines = call("zoo", "list").splitlines()
    assert lines[2].split()[-1] == "no"
    assert lines[3].split()[-1] == "yes"
    shown = call("zoo", "show", "tiny", "--seed", "5", "--data-root", "my data")
    assert "--data-root 'my data'" in shown
    assert "snncompress train runs/tiny-seed5/plain --method se-snn" in shown
    assert "# tiny" in shown
    steps = json.loads(call("zoo", "show", "zoo:tiny", "--json"))["steps"]
    assert [step["about"] for step in steps] == ["plainly", "with noise, and what it learned before"]


def test_verify(zoo: Path, call: Any, capsys: pytest.CaptureFixture[str]) -> None:
    lines = call("zoo", "verify", "tiny").splitlines()
    assert [line[:4] for line in lines] == ["PASS"] * 5
    assert "on 1,000 test images of mnist-sample; stated: " in lines[0]
    result = json.loads(call("zoo", "verify", "tiny", "--json"))
    assert result["passed"]
    assert result["checks"][1]["measured"] == result["checks"][1]["stated"]
    file = zoo / "tiny" / "recipe.toml"
    text = file.read_text()
    error = result["checks"][0]["stated"]
    file.write_text(text.replace(f"errors = [{error}]\n", f"errors = [{error + 1}]\n"))
    try:
        assert run_command(["zoo", "verify", "tiny"]) == 1
        out, err = capsys.readouterr()
        assert out.startswith("FAIL error")
        assert out.count("PASS") == 4
        assert "does not have its recipe's figures: error" in err
    finally:
        file.write_text(text)


def test_the_stored_run_is_whole_and_names_no_place(zoo: Path) -> None:
    stored = (zoo / "tiny" / "run.json").read_text()
    assert str(zoo) not in stored
    header = json.loads(stored)
    assert header["command"] == ["snncompress", "zoo", "run", "tiny", "--seed", "3"]
    assert header["config"]["distill"]["run"] == "plain"
    assert not (zoo / "tiny" / "noise.safetensors").exists()
    ours, theirs = load("zoo:tiny").model.state_dict(), load(zoo / "whole" / "noisy").model.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_what_names_a_place_is_not_stored(zoo: Path) -> None:
    run = load(zoo / "whole" / "noisy")
    run.data["name"] = "npz:/somewhere/data.npz"
    figures = find_zoo("tiny").recipe.figures
    assert figures is not None
    before = {file.name for file in (zoo / "bare").iterdir()}
    with pytest.raises(RunError, match=r"npz:/somewhere/data\.npz, a place on this machine"):
        store(find_zoo("bare"), run, figures, zoo / "whole")
    assert {file.name for file in (zoo / "bare").iterdir()} == before


@pytest.mark.parametrize(("saves", "done"), [(1, 0), (5, 1)])  # in the first step, in the second
def test_an_interrupted_run_goes_on(
    zoo: Path, saves: int, done: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["zoo", "run", "tiny", "--seed", "3", "--out", str(tmp_path / "out")]
    with monkeypatch.context() as patch, pytest.raises(CrashError):  # noqa: PT012
        crash_at(patch, saves)
        call_step(words, quiet=True, json=True)
    assert json.loads((tmp_path / "out" / "zoo.json").read_text())["done"] == done
    assert run_command([*words, "--quiet"]) == 2
    assert run_command([*words[:4], "4", *words[5:], "--resume"]) == 2
    result = call_step([*words, "--resume"], quiet=True, json=True)
    assert result["checks"][0]["within"]
    assert result["checks"][0]["passed"] is None
    ours, theirs = (load(folder).model.state_dict() for folder in (tmp_path / "out/noisy", zoo / "whole/noisy"))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    again = call_step([*words, "--resume"], quiet=True, json=True)
    assert again["steps"] == []


@pytest.mark.usefixtures("zoo")
def test_a_recipe_is_followed_as_far_as_asked(tmp_path: Path, call: Any, refused: Any) -> None:
    words = ["zoo", "run", "tiny", "--seed", "3", "--out", str(tmp_path / "out")]
    message = refused(*words, "--until", "plane", code=2)
    assert "unknown run of the recipe 'plane'; did you mean 'plain'? (known: noisy, plain)" in message
    assert not (tmp_path / "out").exists()
    assert "plain is made; --resume goes on from there" in call(*words, "--until", "plain")
    assert not (tmp_path / "out" / "noisy").exists()
    result = json.loads(call(*words, "--until", "noisy", "--resume", "--json"))
    assert (len(result["steps"]), result["run"]) == (1, str(tmp_path / "out" / "noisy"))
    assert result["checks"][0]["within"]


@pytest.mark.usefixtures("elsewhere")
def test_zoo_names_are_sources(zoo: Path, call: Any) -> None:
    files = {file: file.read_bytes() for file in (zoo / "tiny").iterdir()}
    assert call("evaluate", "zoo:tiny").startswith("tiny: error ")
    (row,) = json.loads(call("report", "zoo:tiny", "--json"))
    assert row["name"] == "tiny"
    call("attack", "zoo:tiny", "--eps", "0.1", "--limit", "20")
    assert json.loads(call("calibrate", "zoo:tiny", "--json"))["stored"] is False
    call("export", "zoo:tiny", "--format", "state-dict", "--out", "tiny.safetensors")
    call("train", "zoo:tiny", "--method", "none", "--epochs", "0", "--distill", "zoo:tiny", "--out", "next")
    assert json.loads(Path("next/run.json").read_text())["parent"] == str((zoo / "tiny").resolve())
    assert {file: file.read_bytes() for file in (zoo / "tiny").iterdir()} == files  # nobody wrote there


@pytest.mark.usefixtures("elsewhere", "zoo")
def test_bad_input(refused: Any) -> None:
    for words in (["zoo", "verify", "bare"], ["evaluate", "zoo:bare"], ["report", "zoo:bare"]):
        assert "no stored weights; make them with `snncompress zoo run bare`" in refused(*words, code=2)
    for words in (["zoo", "show", "tinny"], ["zoo", "run", "tinny"], ["evaluate", "zoo:tinny"]):
        assert "unknown zoo entry 'tinny'; did you mean 'tiny'?" in refused(*words, code=2)
    assert "needs no such file" in refused("zoo", "run", "tiny", "--file", "a=b", code=2)
    assert "see `snncompress zoo run --help`" in refused("zoo", "run", "tiny", "--sed", "1", code=2)
    assert "see `snncompress zoo --help`" in refused("zoo", "rum", code=2)
    Path("taken").write_text("")
    assert "taken exists; choose another --out" in refused("zoo", "run", "tiny", "--out", "taken", code=2)


@pytest.mark.usefixtures("zoo")
def test_a_table_is_made_anew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = tables.make(find_zoo("tiny"), str(tmp_path), tmp_path / "out")
    assert line.state == "made"
    assert "step 2 of 2" in capsys.readouterr().out
    run = load(tmp_path / "out" / "tiny" / "noisy")
    assert run.config["seed"] == 0
    assert line.values["error"] == measure(run, load_own_data(run, None)).error
