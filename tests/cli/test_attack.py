"""`snncompress attack` as a user types it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.usefixtures("elsewhere")
FEW = ["--gradient-samples", "2", "--ensemble-samples", "2"]


def test_the_table(noisy: str, call: Any) -> None:
    lines = call("attack", noisy, *FEW, "--eps", "0:0.2:0.1", "--seeds", "2").splitlines()
    assert lines[0].split() == ["eps", "accuracy", "mean", "L2"]
    assert [line.split()[0] for line in lines[2:5]] == ["0", "0.1", "0.2"]
    assert all("±" in line and "%" in line for line in lines[2:5])
    assert "attacked by fgs on" in lines[-1]
    assert "expected gradient of 2 samples, predictions of 2" in lines[-1]
    assert list(Path().iterdir()) == []


def test_files_json_and_what_the_run_remembers(noisy: str, call: Any) -> None:
    words = ["--attack", "pgd", "--eps", "0,0.3", "--steps", "2", "--split", "validation", "--limit", "20"]
    result = json.loads(call("attack", noisy, *FEW, *words, "--out", "attacked", "--json"))
    assert result == json.loads(Path("attacked/attack.json").read_text())
    assert result["eps"] == [0, 0.3]
    assert (result["attack"], result["split"], result["images"], result["steps"]) == ("pgd", "validation", 20, 2)
    assert all(0 <= accuracy <= 100 for accuracy in result["accuracy"])
    for name in ("attack", "examples"):
        assert Path(f"attacked/{name}.png").read_bytes().startswith(b"\x89PNG")
    call("attack", noisy, *FEW, "--attack", "cw", "--steps", "2", "--searches", "1", "--limit", "10")
    call("attack", noisy, *FEW, "--targeted")
    stored = json.loads((Path(noisy) / "run.json").read_text())["metrics"]["attacks"]
    assert stored["pgd-validation"] == result
    assert {"cw-test", "fgs-targeted-test"} <= set(stored)
    call("report", noisy, "--html", "page.html", "--png", "pictures")
    page = Path("page.html").read_text()
    assert "Under attack" in page
    assert "PGD (20 validation)" in page
    assert {"attacks.png", "attacks-l2.png", "attacks-targeted.png"} <= {
        file.name for file in Path("pictures").iterdir()
    }


def test_cw_tells_how_far_it_had_to_go(noisy: str, call: Any) -> None:
    text = call("attack", noisy, *FEW, "--attack", "cw", "--steps", "5", "--searches", "2", "--limit", "20")
    assert text.splitlines()[0].split() == ["length", "accuracy", "mean", "L2"]
    assert "shortest changes found: mean L2" in text


def test_an_ensemble(noisy: str, data: str, call: Any) -> None:
    plain = ["--model-arg", "widths=12-8", "--data", data, "--epochs", "1", "--method", "none", "--out", "b", "--quiet"]
    call("train", "mlp", *plain)
    words = ["--attack", "ifgs", "--steps", "3", "--eps", "0.1", *FEW, "--runs", f"b, {noisy}"]
    result = json.loads(call("attack", "b", *words, "--json"))
    assert result["runs"] == ["b", "b", Path(noisy).name]
    assert result["gradient"] == "averaged"
    assert "attacks" not in json.loads(Path("b/run.json").read_text())["metrics"]  # it is not b's own
    assert "the average of b, b" in call("attack", "b", *words, "--targeted")


def test_training_with_attacked_images(data: str, call: Any) -> None:
    words = ["--model-arg", "widths=12-8", "--data", data, "--epochs", "1", "--out", "hard", "--quiet"]
    call("train", "mlp", *words, "--adversarial", "fgs:0.1")
    assert json.loads(Path("hard/run.json").read_text())["config"]["adversarial"] == {"attack": "fgs", "eps": 0.1}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--attack", "fsg"], "unknown attack 'fsg'; did you mean 'fgs'?"),
        (["--eps", "0:1"], "--eps '0:1' is neither FIRST:LAST:STEP"),
        (["--eps", "-0.1"], "--eps: -0.1 is out of range"),
        (["--gradient", "true"], "unknown gradient 'true'"),
        (["--seeds", "0"], "--seeds 0 is out of range"),
        (["--runs", "nothing"], "--runs: nothing is not a run"),
    ],
)
def test_bad_input(noisy: str, refused: Any, words: list[str], message: str) -> None:
    assert message in refused("attack", noisy, *words, code=2)
