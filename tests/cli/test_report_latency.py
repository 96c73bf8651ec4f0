"""``snncompress report --latency`` as a user types it; no time is asserted on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from snncompress.cli import run as run_command
from snncompress.measure import timing

QUICK = ["--candidates", "1", "--finetune-steps", "1", "--final-epochs", "0", "--step", "4", "--quiet"]


@pytest.fixture(autouse=True)
def _few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "BLOCK_SECONDS", 0.0)


@pytest.fixture(scope="module")
def small(noisy: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    out = str(tmp_path_factory.mktemp("runs") / "small")
    assert run_command(["prune", noisy, "--target-flops", "50%", *QUICK, "--out", out]) == 0
    return out


def test_json_has_the_original_too(small: str, call: Any) -> None:
    rows = json.loads(call("report", small, "--latency", "--latency-batch", "9", "--json"))
    assert [row["name"] for row in rows] == ["original mlp", "small"]
    for row in rows:
        assert {(entry["runtime"], entry["batch"]) for entry in row["latency"]["timings"]} == {
            (runtime, batch) for runtime in ("onnxruntime", "torch") for batch in (1, 9)
        }
        assert row["latency"]["threads"] == 1
        assert row["latency"]["peak_bytes"].keys() == {"1", "9"}
    assert rows[1]["latency"]["file_bytes"] < rows[0]["latency"]["file_bytes"]
    assert rows[0]["flops_percent"] == 100.0


def test_layers_have_shares_and_the_run_remembers(small: str, call: Any, tmp_path: Path) -> None:
    page = tmp_path / "a.html"
    text = call("report", small, "--latency", "--layers", "--latency-batch", "5", "--html", page)
    table = text.split("\n\n")[1].splitlines()
    assert table[1].split()[-1] == "Time"
    shares = [float(line.split()[-1].removesuffix("%")) for line in table[3:]]
    assert sum(shares) == pytest.approx(100, abs=0.5)
    assert table[-1].startswith("between layers")
    assert "Times faster" in page.read_text(encoding="utf-8")
    note = json.loads((Path(small) / "run.json").read_text())["metrics"]["latency"]
    assert note["against"] == "original mlp"
    assert "error" in json.loads((Path(small) / "run.json").read_text())["metrics"]["test"]  # noted in the same report
    assert note["own"]["timings"][0]["times_faster"] != 1.0 == note["original"]["timings"][0]["times_faster"]
    call("report", small, "--html", page)  # from what it remembers
    assert note["machine"] in page.read_text(encoding="utf-8")
    lines = call("report", small, "--latency", "--layers", "--latency-batch", "1", "--format", "csv").splitlines()
    assert lines[0].endswith(",time_share")
    assert all(0 <= float(line.rpartition(",")[2]) <= 1 for line in lines[1:])


def test_speeds_follow_their_rows_when_these_are_sorted(noisy: str, small: str, call: Any) -> None:
    rows = json.loads(call("report", noisy, small, "--latency", "--latency-batch", "1", "--compare", "--json"))
    assert [row["name"] for row in rows] == ["small", "noisy"]
    assert rows[0]["latency"]["file_bytes"] < rows[1]["latency"]["file_bytes"]


def test_text_and_csv(noisy: str, small: str, call: Any) -> None:
    text = call("report", noisy, small, "--latency", "--latency-batch", "3", "--threads", "2")
    assert text.count("onnxruntime        1") == 2
    assert "2 threads" in text
    assert "original" not in text.split("\n\n")[0]  # noisy is the original
    lines = call("report", noisy, "--latency", "--latency-batch", "1", "--format", "csv").split()
    assert lines[0].startswith("model,runtime,batch")
    assert len(lines) == 3


@pytest.mark.usefixtures("elsewhere")
def test_an_original_that_is_gone(data: str, call: Any) -> None:
    source = Path("my_net.py")
    source.write_text(
        "from torch import nn\ndef build(classes, width=6):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 4))\n"
    )
    words = ["--data", data, "--epochs", "0", "--method", "none", "--quiet"]
    call("train", "my_net.py:build", *words, "--model-arg", "width=16", "--out", "run")
    call("prune", "run", "--target-flops", "50%", "--criterion", "magnitude", *QUICK, "--out", "small")
    source.write_text(
        source.read_text().replace("width)", "width + 1)", 1).replace("Linear(width,", "Linear(width + 1,")
    )
    rows = json.loads(call("report", "small", "--latency", "--latency-batch", "2", "--trust-source", "--json"))
    assert rows[0]["latency"] is None
    assert rows[1]["latency"]["timings"][0]["times_faster"] == 1.0


@pytest.mark.usefixtures("elsewhere")
def test_bad_input(noisy: str, refused: Any) -> None:
    assert "latency-batch" in refused("report", noisy, "--latency", "--latency-batch", "0", code=2)
    assert "threads" in refused("report", noisy, "--latency", "--threads", "0", code=2)
