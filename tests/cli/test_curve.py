"""`snncompress curve` as a user types it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from snncompress.cli import run as run_command

pytestmark = pytest.mark.usefixtures("elsewhere")


@pytest.fixture(scope="module")
def walked(tmp_path_factory: pytest.TempPathFactory, data: str) -> str:
    out = str(tmp_path_factory.mktemp("runs") / "walked")
    words = ["train", "mlp", "--model-arg", "widths=12-8", "--data", data, "--method", "dropout", "--epochs", "2"]
    assert run_command([*words, "--posterior", "sgld:20", "--out", out, "--quiet"]) == 0
    return out


def test_the_table(walked: str, call: Any) -> None:
    lines = call("curve", walked).splitlines()
    assert lines[0].split() == ["removed", "snr", "spr", "magnitude", "random"]
    assert lines[2].split()[0] == "0%"
    assert len(set(lines[2].split()[1:])) == 1
    assert [line.partition(":")[0] for line in lines[-4:]] == ["snr", "spr", "magnitude", "random"]
    assert all("the error doubles" in line for line in lines[-4:])
    assert list(Path().iterdir()) == []


def test_files_and_json(walked: str, call: Any) -> None:
    words = ["--criteria", "spr, random", "--split", "test", "--beside", walked, "--out", "curves"]
    result = json.loads(call("curve", walked, *words, "--json"))
    assert result == json.loads(Path("curves/curve.json").read_text())
    assert [curve["name"] for curve in result["curves"]] == ["spr", "random"]
    assert result["split"] == "test"
    for curve in result["curves"]:
        assert curve.keys() == {"name", "shares", "errors", "doubles"}
        assert len(curve["shares"]) == len(curve["errors"])
    assert Path("curves/curve.png").read_bytes().startswith(b"\x89PNG")


def test_retrained_networks_stand_beside(walked: str, call: Any) -> None:
    words = ["--criteria", "magnitude", "--retrain", "soft-targets", "--retrain-epochs", "1", "--out", "curves"]
    result = json.loads(call("curve", walked, *words, "--json"))
    retrained = result["curves"][-1]
    assert retrained["name"] == "retrained"
    assert retrained["shares"]
    for share in retrained["shares"]:
        assert json.loads(Path(f"curves/retrained-{share:g}/run.json").read_text())["status"] == "complete"
    text = call("curve", walked, *words)
    assert "retrained" in text.splitlines()[0]


def test_a_run_without_a_distribution(noisy: str, call: Any) -> None:
    assert call("curve", noisy, "--criteria", "magnitude,random").splitlines()[0].split() == [
        "removed", "magnitude", "random",
    ]  # fmt: skip
    assert call("curve", noisy).splitlines()[0].split() == ["removed", "magnitude", "random"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--criteria", "snr"], "criterion snr needs a distribution"),
        (["--criteria", "nothing"], "unknown criterion of weights 'nothing'"),
        (["--criteria", ""], "unknown criterion of weights ''"),
        (["--retrain", "soft-targets"], "give --out FOLDER"),
        (["--beside", "nowhere"], "nowhere"),
    ],
)
def test_what_makes_no_sense(noisy: str, refused: Any, words: list[str], expected: str) -> None:
    assert expected in refused("curve", noisy, *words, code=2)
