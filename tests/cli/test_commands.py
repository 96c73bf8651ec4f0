"""The commands as a user types them, run in this process."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch
from small_data import make_images, write_npz

import snncompress
from snncompress.cli import demo as demo_module
from snncompress.cli import run as run_command

REPORT_KEYS = {
    "name", "error", "weights", "weights_percent", "flops", "flops_percent", "memory", "memory_percent", "bytes",
    "flops_sparse", "stored_bytes", "uncounted", "layers",
}  # fmt: skip
QUICK = ["--candidates", "2", "--finetune-steps", "2", "--final-epochs", "1", "--step", "4"]


@dataclass(frozen=True)
class Runs:
    folder: Path
    data: str

    def __getattr__(self, name: str) -> str:
        return str(self.folder / name)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """noisy: trained with noise; small: pruned from it to 40%."""
    folder = tmp_path_factory.mktemp("runs")
    data = write_npz(folder / "quarters.npz")
    made = Runs(folder, data)
    words = ["mlp", "--model-arg", "widths=12-8", "--data", data, "--epochs", "3", "--lr", "0.01", "--batch-size", "64"]
    assert run_command(["train", *words, "--quiet", "--out", made.noisy]) == 0
    assert run_command(["prune", made.noisy, "--target-flops", "40%", *QUICK, "--quiet", "--out", made.small]) == 0
    return made


def header(run: str | Path) -> dict[str, Any]:
    return json.loads((Path(run) / "run.json").read_text())  # type: ignore[no-any-return]


def test_train_prints_what_it_made_and_records_how(runs: Runs, call: Any, tmp_path: Path) -> None:
    words = ["train", "mlp", "--data", runs.data, "--method", "none", "--epochs", "1", "--out", tmp_path / "run"]
    out = call(*words)
    assert out.count("\n") == 1
    assert "validation error" in out
    assert header(tmp_path / "run")["command"] == ["snncompress", *map(str, words)]
    result = json.loads(call(*words, "--force", "--json"))
    assert result["run"] == str(tmp_path / "run")
    assert result["flops_percent"] == 100.0
    assert result["validation_error"] == header(tmp_path / "run")["metrics"]["validation"]["error"]


def test_prune_prints_what_it_made(runs: Runs, call: Any, tmp_path: Path) -> None:
    words = ["prune", runs.noisy, "--target-flops", "0.3k", *QUICK]
    result = json.loads(call(*words, "--json", "--out", tmp_path / "a"))
    assert result["targets"] == {"flops": 300}
    assert result["flops"] <= 300
    assert result["criterion"] == "information"
    assert result["unprunable"] == []
    assert result["logit_change"] <= 1e-5
    assert result["stopped"] is None
    assert header(tmp_path / "a")["parent"] == str(Path(runs.noisy).resolve())


def test_prune_says_when_the_target_was_met_already(runs: Runs, call: Any, tmp_path: Path) -> None:
    out = call("prune", runs.noisy, "--target-flops", "3M", "--out", tmp_path / "a")
    assert "only dead neurons were removed" in out


def test_prune_says_when_the_budget_stopped_it(runs: Runs, call: Any, tmp_path: Path) -> None:
    words = ["--candidates", "1", "--finetune-steps", "0", "--final-epochs", "0", "--max-drop", "1"]
    out = call("prune", runs.noisy, "--target-flops", "10%", *words, "--out", tmp_path / "a")
    assert "exceeds the budget" in out
    assert snncompress.load(tmp_path / "a").plan["stopped"]  # type: ignore[index]


def test_dry_run_prints_the_plan_and_writes_nothing(runs: Runs, call: Any, tmp_path: Path) -> None:
    out = call("prune", runs.noisy, "--target-flops", "40%", "--dry-run", "--out", tmp_path / "a")
    assert "neurons never fire" in out
    plan = json.loads(call("prune", runs.noisy, "--target-flops", "40%", "--dry-run", "--json"))
    assert plan.keys() == {
        "dead", "neurons", "widths", "planned", "cost", "planned_cost", "targets", "unprunable", "criterion", "steps",
        "seconds",
    }  # fmt: skip
    assert plan["planned_cost"]["flops"] <= plan["targets"]["flops"] < plan["cost"]["flops"]
    assert list(tmp_path.iterdir()) == []


def test_quiet_prints_only_the_result(runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", runs.noisy, "--epochs", "1", "--out"]
    assert run_command([*words, str(tmp_path / "loud")]) == 0
    assert "epoch 1/1: loss" in capsys.readouterr().err
    assert run_command([*words, str(tmp_path / "quiet"), "--quiet"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.count("\n") == 1


def test_report_json_has_the_promised_keys(runs: Runs, call: Any) -> None:
    rows = json.loads(call("report", runs.noisy, runs.small, "--json"))
    assert [row["name"] for row in rows] == ["noisy", "small"]
    for row in rows:
        assert row.keys() == REPORT_KEYS
        assert [layer["name"] for layer in row["layers"]] == ["1", "3", "5"]
        assert sum(layer["flops"] for layer in row["layers"]) == row["flops"]
    assert rows[0]["flops"] == 64 * 12 + 12 * 8 + 8 * 4
    assert rows[1]["flops_percent"] == pytest.approx(100 * rows[1]["flops"] / rows[0]["flops"])
    assert rows[1]["flops_percent"] <= 40
    assert rows[0]["error"] == header(runs.noisy)["metrics"]["test"]["error"]


def test_report_shows_the_original_beside_the_compressed(runs: Runs, call: Any) -> None:
    assert "original mlp" in call("report", runs.small)
    assert "original" not in call("report", runs.noisy, runs.small)[:400]
    assert "12 of 12" in call("report", runs.noisy, "--layers")


def test_report_formats(runs: Runs, call: Any) -> None:
    markdown = call("report", runs.noisy, runs.small, "--format", "markdown")
    assert markdown.startswith("|")
    lines = [line for line in call("report", runs.noisy, runs.small, "--format", "csv").splitlines() if line]
    rows = list(csv.DictReader(io.StringIO("\n".join(lines))))
    assert len(rows) == 2
    assert json.loads(call("report", runs.small, "--format", "json")) == json.loads(
        call("report", runs.small, "--json")
    )


def test_report_of_a_model_without_weights(call: Any) -> None:
    (row,) = json.loads(call("report", "lenet5", "--json"))
    assert row["flops"] == 2_293_000
    assert row["memory"] == 16_020
    assert row["error"] is None


def test_report_draws(runs: Runs, call: Any, tmp_path: Path) -> None:
    call("report", runs.small, "--plot", tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes()[1:4] == b"PNG"


def test_evaluate_json_has_the_promised_keys(runs: Runs, call: Any) -> None:
    result = json.loads(call("evaluate", runs.noisy, "--json"))
    assert result.keys() == {"error", "nll", "samples", "split", "hollow"}
    assert result["samples"] == 60
    assert result["split"] == "test"
    assert header(runs.noisy)["metrics"]["test"]["error"] == result["error"]
    assert json.loads(call("evaluate", runs.noisy, "--split", "train", "--json"))["samples"] == 486
    assert "accuracy" in call("evaluate", runs.noisy)


def test_another_normalization_is_used_but_not_remembered(runs: Runs, call: Any) -> None:
    own = json.loads(call("evaluate", runs.noisy, "--json"))
    before = header(runs.noisy)
    other = json.loads(call("evaluate", runs.noisy, "--normalize", "0.9/0.1", "--json"))
    assert other["nll"] != own["nll"]
    (row,) = json.loads(call("report", runs.noisy, "--normalize", "0.9/0.1", "--json"))
    assert row["error"] == other["error"]
    assert header(runs.noisy) == before


def test_a_model_and_a_checkpoint_wherever_a_run_is_taken(runs: Runs, call: Any, tmp_path: Path) -> None:
    model = ["mlp", "--model-arg", "widths=12-8", "--checkpoint", f"{runs.noisy}/model.safetensors"]
    own = json.loads(call("evaluate", runs.noisy, "--json"))
    assert json.loads(call("evaluate", *model, "--data", runs.data, "--json")) == own
    (row,) = json.loads(call("report", *model, "--data", runs.data, "--json"))
    assert row["error"] == own["error"]
    call("export", *model, "--data", runs.data, "--out", tmp_path / "a.onnx")
    words = ["--criterion", "magnitude", "--target-flops", "50%", *QUICK]
    call("prune", *model, "--data", runs.data, *words, "--out", tmp_path / "small")
    checkpoint = str(Path(runs.noisy, "model.safetensors").resolve())
    assert header(tmp_path / "small")["checkpoint"] == checkpoint


def test_the_data_is_remembered_wherever_the_next_command_starts(
    call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_npz(Path("a.npz"))
    call("train", "mlp", "--data", "npz:a.npz", "--epochs", "0", "--out", "run")
    Path("elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert json.loads(call("evaluate", "../run", "--json"))["samples"] == 60
    write_npz(Path("b.npz"), count=400)
    call("train", "../run", "--data", "npz:b.npz", "--epochs", "0", "--out", "../other")
    assert header("../other")["data"]["name"] == f"npz:{tmp_path}/elsewhere/b.npz"
    assert json.loads(call("evaluate", "../other", "--json"))["samples"] == 40


def test_a_chain_of_commands_ends_in_a_model_that_runs(runs: Runs, call: Any, tmp_path: Path) -> None:
    less, again, smaller = tmp_path / "less", tmp_path / "again", tmp_path / "smaller"
    call("prune", runs.small, "--target-flops", "30%", *QUICK, "--out", less)
    call("train", less, "--epochs", "1", "--out", again)
    call("prune", again, "--target-flops", "20%", *QUICK, "--out", smaller)
    rows = json.loads(call("report", runs.noisy, runs.small, less, again, smaller, "--json"))
    for row, limit in zip(rows, (100, 40, 30, 30, 20), strict=True):  # all of the first original
        assert limit - 15 < row["flops_percent"] <= limit
        assert row["flops_percent"] == pytest.approx(100 * row["flops"] / rows[0]["flops"])
        assert row["weights_percent"] == pytest.approx(100 * row["weights"] / header(runs.noisy)["original"]["weights"])
    out = tmp_path / "smaller.onnx"
    result = json.loads(call("export", smaller, "--with-normalization", "--out", out, "--json"))
    assert result["real_images"]
    assert result["relative_difference"] <= 1e-4
    images = make_images(20)[0].float() / 255
    run = snncompress.load(smaller)
    with torch.no_grad():
        wanted = run.model(run.normalization(images))
    got = onnxruntime.InferenceSession(out).run(None, {"images": images.numpy()})[0]
    assert torch.allclose(torch.from_numpy(got), wanted, atol=1e-4)


def test_from_scratch_keeps_the_shape_and_forgets_the_rest(runs: Runs, call: Any, tmp_path: Path) -> None:
    call("train", runs.small, "--from-scratch", "--method", "none", "--epochs", "0", "--out", tmp_path / "new")
    small, new = snncompress.load(runs.small), snncompress.load(tmp_path / "new")
    assert new.original == small.original
    for name, tensor in small.model.state_dict().items():
        assert new.model.state_dict()[name].shape == tensor.shape
    assert not torch.equal(new.model.get_parameter("1.weight"), small.model.get_parameter("1.weight"))
    call("train", runs.noisy, "--from-scratch", "--epochs", "0", "--out", tmp_path / "noisy")
    old, fresh = snncompress.load(runs.noisy).noise, snncompress.load(tmp_path / "noisy").noise
    assert old is not None
    assert fresh is not None
    assert not all(torch.equal(tensor, fresh.tensors[name]) for name, tensor in old.tensors.items())


def test_a_recipe_gives_the_same_as_its_options(runs: Runs, call: Any, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        f'data = "{runs.data}"\nepochs = 2\nbatch-size = 64\nmethod = "se-snn"\nlayers = "1"\nquiet = true\n'
        '[model-arg]\nwidths = "9-5"\n[option]\nomega = 0.03\n'
    )
    call("train", "mlp", "--config", recipe, "--epochs", "1", "--out", tmp_path / "a")
    words = ["--data", runs.data, "--epochs", "1", "--batch-size", "64", "--layers", "1", "--omega", "0.03"]
    call("train", "mlp", "--model-arg", "widths=9-5", *words, "--out", tmp_path / "b")
    assert header(tmp_path / "a")["config"] == header(tmp_path / "b")["config"]
    assert (tmp_path / "a" / "model.safetensors").read_bytes() == (tmp_path / "b" / "model.safetensors").read_bytes()


def test_the_users_own_model_file(runs: Runs, call: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "my_net.py"
    source.write_text(
        "from torch import nn\n"
        "def build(classes, width=6):\n"
        "    return nn.Sequential(nn.Conv2d(1, width, 3), nn.BatchNorm2d(width), nn.ReLU(), nn.Flatten(),\n"
        "                         nn.Linear(36 * width, classes))\n"
    )
    words = ["--data", runs.data, "--model-arg", "width=8", "--epochs", "1"]
    call("train", f"{source}:build", *words, "--out", tmp_path / "run")
    assert header(tmp_path / "run")["source"]["arguments"] == {"classes": 4, "width": 8}
    call("prune", tmp_path / "run", "--target-flops", "50%", *QUICK, "--out", tmp_path / "small")
    call("export", tmp_path / "small", "--out", tmp_path / "small.onnx")
    source.write_text(source.read_text() + "# changed\n")
    capsys.readouterr()
    assert run_command(["report", str(tmp_path / "small")]) == 1
    assert "--trust-source" in capsys.readouterr().err
    (row,) = json.loads(call("report", tmp_path / "small", "--trust-source", "--json"))
    assert row["flops_percent"] <= 50
    source.write_text(source.read_text().replace("nn.ReLU()", "nn.Tanh()"))
    capsys.readouterr()
    assert run_command(["report", str(tmp_path / "small"), "--trust-source"]) == 1
    assert f"needs {source} as it was" in capsys.readouterr().err


def test_the_embedded_sample(call: Any, tmp_path: Path) -> None:
    words = ["--data", "mnist-sample", "--method", "none", "--epochs", "1"]
    call("train", "mlp", "--model-arg", "widths=20-10", *words, "--out", tmp_path / "run")
    assert header(tmp_path / "run")["normalization"] == {"mean": [0.1307], "std": [0.3081]}
    assert json.loads(call("evaluate", tmp_path / "run", "--json"))["error"] < 85


def test_the_demo_runs_its_commands(runs: Runs, call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    everything = demo_module.commands(Path("demo"))
    assert [command[0] for command in everything][-3:] == ["train", "report", "export"]
    assert "--latency" in everything[-2]
    assert str(Path("demo", "report.html")) in everything[-2]

    def quick(out: Path) -> list[list[str]]:
        plain = str(out / "plain")
        return [
            ["train", runs.noisy, "--epochs", "0", "--out", plain],
            ["report", plain, "--html", str(out / "report.html")],
            ["export", plain, "--out", str(out / "small.onnx")],
        ]

    monkeypatch.setattr(demo_module, "commands", quick)
    out = call("demo", "--out", tmp_path / "demo", "--quiet")
    assert "Next, your own model" in out
    assert f"{tmp_path / 'demo' / 'report.html'} shows what was gained" in out
    assert (tmp_path / "demo" / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    result = json.loads(call("demo", "--out", tmp_path / "demo", "--force", "--json"))
    assert result.keys() == {"report", "export"}
    assert header(tmp_path / "demo" / "plain")["command"][:2] == ["snncompress", "train"]
