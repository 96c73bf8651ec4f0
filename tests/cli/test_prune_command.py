"""`prune` and `restore` as a user types them: what comes out, what is shown, what is kept on the way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import snncompress
from snncompress.cli import run as run_command

pytestmark = pytest.mark.usefixtures("elsewhere")
QUICK = ["--candidates", "2", "--trial-steps", "2", "--finetune-steps", "1", "--final-epochs", "0", "--step", "4"]
FLOPS = 64 * 12 + 12 * 8 + 8 * 4
SIZE = 65 * 12 + 13 * 8 + 9 * 4


def config(run: str) -> dict[str, Any]:
    return json.loads(Path(run, "run.json").read_text())["config"]  # type: ignore[no-any-return]


def test_several_targets_at_once(noisy: str, call: Any) -> None:
    words = ["--target-flops", "60%", "--target-size", "0.4k", "--target-memory", "90%"]
    result = json.loads(call("prune", noisy, *words, *QUICK, "--out", "small", "--json"))
    assert result["targets"] == {"flops": int(0.6 * FLOPS), "size": 400, "memory": int(0.9 * 84)}
    assert result["flops"] <= int(0.6 * FLOPS)
    assert result["weights"] <= 400
    assert result["weights_percent"] == pytest.approx(100 * result["weights"] / SIZE)
    assert snncompress.load("small").plan["size"] == result["weights"]  # type: ignore[index]


def test_rules_for_widths(noisy: str, call: Any) -> None:
    words = ["--round-to", "4", "--min-neurons", "3", "--allocation", "global", "--per", "size"]
    call("prune", noisy, "--target-flops", "60%", *words, *QUICK, "--out", "small")
    model = snncompress.load("small").model
    assert [len(model.get_parameter(f"{name}.weight")) % 4 for name in ("1", "3")] == [0, 0]
    assert {key: config("small")[key] for key in ("round_to", "min_neurons", "allocation", "per", "step")} == {
        "round_to": 4, "min_neurons": 3, "allocation": "global", "per": "size", "step": 4,
    }  # fmt: skip
    call("prune", noisy, "--target-flops", "70%", "--keep", "3", *QUICK, "--out", "kept")
    kept = snncompress.load("kept")
    assert kept.model.get_submodule("3").out_features == 8
    assert kept.plan["unprunable"] == ["3"]  # type: ignore[index]
    assert config("kept")["keep"] == ["3"]


def test_a_recipe_of_pruning(noisy: str, call: Any) -> None:
    Path("recipe.toml").write_text(
        'target-size = "50%"\ncriterion = "taylor"\nallocation = "sensitivity"\nstep = "auto"\nkeep = ["3"]\n'
        "round-to = 2\nfinal-epochs = 0\nfinetune-steps = 1\nfinetune-noise = true\n"
    )
    call("prune", noisy, "--config", "recipe.toml", "--out", "a")
    words = ["--target-size", "50%", "--criterion", "taylor", "--allocation", "sensitivity", "--step", "auto"]
    words += ["--keep", "3", "--round-to", "2", "--final-epochs", "0", "--finetune-steps", "1", "--finetune-noise"]
    call("prune", noisy, *words, "--out", "b")
    assert config("a") == config("b")
    assert Path("a/model.safetensors").read_bytes() == Path("b/model.safetensors").read_bytes()


def test_a_layer_of_the_teacher_in_a_recipe(noisy: str, call: Any) -> None:
    Path("recipe.toml").write_text('target-flops = "80%"\ndistill = "self"\ndistill-layers = "3"\nkeep = "3"\n')
    call("prune", noisy, "--config", "recipe.toml", *QUICK, "--out", "taught")
    assert config("taught")["distill"]["layers"] == ["3"]


def test_teachers_of_pruning(noisy: str, call: Any) -> None:
    words = ["prune", noisy, "--target-flops", "40%", *QUICK]
    call(*words, "--out", "alone")
    call(*words, "--distill", "self", "--out", "self")
    call(*words, "--distill", noisy, "--out", "same")
    call(*words, "--distill", "alone", "--distill-temperature", "2", "--distill-weight", "0.5", "--out", "other")
    assert config("alone")["distill"] is None
    assert config("self")["distill"] == {"run": str(Path(noisy).resolve()), "temperature": 4.0, "weight": 0.9}
    assert config("other")["distill"] == {"run": str(Path("alone").resolve()), "temperature": 2.0, "weight": 0.5}
    weights = {name: snncompress.load(name).model.get_parameter("1.weight") for name in ("alone", "self", "same")}
    assert torch.equal(weights["self"], weights["same"])
    assert weights["self"].shape != weights["alone"].shape or not torch.equal(weights["self"], weights["alone"])


def test_a_dry_run_shows_targets_layers_and_time(noisy: str, call: Any) -> None:
    words = ["prune", noisy, "--target-flops", "50%", "--target-memory", "90%", "--keep", "3", "--dry-run"]
    out = call(*words)
    assert f"FLOPs: {FLOPS} now" in out
    assert f"planned, target {int(0.5 * FLOPS)}." in out
    assert f"Weights: {SIZE} now" in out
    assert "Memory: 84 now" in out
    assert "target 75." in out
    assert "Hidden layers that lose no neurons of their own: 3." in out
    assert "rank by information" in out
    assert "steps of fine-tuning, about" in out
    plan = json.loads(call(*words, "--json"))
    assert plan["unprunable"] == ["3"]
    assert plan["steps"] > 0
    assert plan["seconds"] > 0
    assert list(Path().iterdir()) == []
    assert "steps" not in call("prune", noisy, "--target-flops", "200%", "--dry-run")
    json.loads(call(*words, "--finetune-noise", "--json"))


def test_without_a_target(noisy: str, call: Any) -> None:
    assert "no target was given" in call("prune", noisy, "--out", "small")
    assert "met the target already" in call("prune", noisy, "--target-size", "200%", "--out", "other")


def test_points_can_be_restored(noisy: str, call: Any) -> None:
    call("prune", noisy, "--target-flops", "30%", *QUICK, "--step", "1", "--out", "small")
    points = json.loads(Path("small/curve.json").read_text())
    assert json.loads(call("restore", "small", "--json")) == points
    assert len(list(Path("small/points").iterdir())) == len(points) > 4
    assert Path("small/curve.png").read_bytes()[1:4] == b"PNG"
    for index in (0, 3, len(points) - 1):
        call("restore", "small", "--point", str(index), "--out", f"point{index}")
        result = json.loads(call("evaluate", f"point{index}", "--split", "validation", "--json"))
        assert result["error"] == pytest.approx(points[index]["error"])
        (row,) = json.loads(call("report", f"point{index}", "--json"))
        assert (row["flops"], row["memory"]) == (points[index]["flops"], points[index]["memory"])
        assert row["flops_percent"] == pytest.approx(100 * row["flops"] / FLOPS)
    limit = max(point["error"] for point in points)
    best = json.loads(call("restore", "small", "--keep-best-under", f"{limit + 1}", "--out", "best", "--json"))
    assert best["flops"] == min(point["flops"] for point in points)


def test_what_cannot_be_restored(noisy: str, refused: Any) -> None:
    assert run_command(["prune", noisy, "--target-flops", "80%", *QUICK, "--out", "small", "--quiet"]) == 0
    for words, expected in (
        (["small", "--out", "a"], "--keep-best-under ERROR or --point N"),
        (["small", "--point", "99", "--out", "a"], "there is no point 99"),
        (["small", "--point", "-1", "--out", "a"], "there is no point -1"),
        (["small", "--keep-best-under", "-1", "--out", "a"], "the best has"),
        (["small", "--point", "0"], "--out"),
        ([noisy, "--point", "0", "--out", "a"], "was not pruned"),
        (["nowhere", "--point", "0", "--out", "a"], "is not a run"),
    ):
        assert expected in refused("restore", *words, code=2)
    Path("small/points/000.safetensors").unlink()
    assert "points/000.safetensors is missing" in refused("restore", "small", "--point", "0", "--out", "a", code=1)
