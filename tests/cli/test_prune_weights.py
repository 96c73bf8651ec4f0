"""`prune --weights` as a user types it, on the embedded sample: what comes out, what is shown, what is refused."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import snncompress
from snncompress.cli import run as run_command
from snncompress.measure.cost import count_nonzero, measure_cost, state_bytes
from snncompress.models.layers import find_zeros
from snncompress.registry import entries

pytestmark = pytest.mark.usefixtures("elsewhere")
SAMPLE = ["--model-arg", "widths=20-10", "--data", "mnist-sample", "--epochs", "1"]
SIZE = 785 * 20 + 21 * 10 + 11 * 10
FLOPS = 784 * 20 + 20 * 10 + 10 * 10
ONCE = ["--finetune-steps", "0", "--final-epochs", "0"]
SHAPE = (1, 28, 28)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plain run, one of sparse variational dropout, one with a variance layer, and a sparse one of the first."""
    folder = tmp_path_factory.mktemp("runs")
    methods = {
        "plain": [],
        "drowned": ["--method", "sparse-vd", "--noise-lr", "0.05"],
        "hollow": ["--method", "variance"],
    }
    for name, words in methods.items():
        assert run_command(["train", "mlp", *SAMPLE, *words, "--quiet", "--out", str(folder / name)]) == 0
    words = ["--target-size", "5%", "--criterion", "magnitude", *ONCE]
    assert (
        run_command(["prune", str(folder / "plain"), "--weights", *words, "--quiet", "--out", str(folder / "thin")])
        == 0
    )
    return folder


def parameters(run: str | Path) -> dict[str, torch.Tensor]:
    return snncompress.load(run).model.state_dict()


def test_what_a_person_sees(runs: Path, call: Any) -> None:
    text = call("prune", runs / "plain", "--weights", "--target-size", "5%", *ONCE, "--out", "small")
    plan = snncompress.load("small").plan or {}
    lines = text.splitlines()
    assert re.split(r"\s{2,}", lines[0].strip()) == ["layer", "weights left"]
    for line, (name, weights) in zip(lines[2:5], (("1", 15680), ("3", 200), ("5", 100)), strict=True):
        left = plan["layers"][name]["left"]
        assert line.split() == [name, f"{left:,}", "of", f"{weights:,}", f"{100 * left / weights:.2f}%"]
    assert lines[6].startswith(f"{plan['removed_neurons']} neurons were left idle and are gone; logits changed by ")
    stored = Path("small/model.safetensors").stat().st_size
    assert lines[7].startswith("small: 0.0")
    assert (
        f"{plan['size']:,} weights ({100 * plan['size'] / SIZE:.2f}%) in {stored / 1e3:.1f} kB, validation error"
        in lines[7]
    )
    assert len(lines) == 8


def test_json(runs: Path, call: Any) -> None:
    words = ["--target-size", "5%", "--target-flops", "90%", "--criterion", "magnitude", *ONCE]
    result = json.loads(call("prune", runs / "plain", "--weights", *words, "--out", "small", "--json"))
    run = snncompress.load("small")
    cost = measure_cost(run.model, SHAPE)
    plan = run.plan or {}
    assert result["targets"] == {"flops": int(0.9 * FLOPS), "size": int(0.05 * SIZE)}
    assert result["weights"] == cost.weights == count_nonzero(run.model) <= int(0.05 * SIZE)
    assert result["weights_percent"] == pytest.approx(100 * cost.weights / SIZE)
    assert (result["flops"], result["flops_sparse"]) == (cost.flops, cost.flops_sparse)
    assert result["flops_sparse"] < 0.2 * result["flops"]
    assert result["bytes"] == state_bytes(run.model)
    assert result["stored_bytes"] == Path("small/model.safetensors").stat().st_size < 0.3 * result["bytes"]
    assert result["criterion"] == "magnitude"
    for key in ("threshold", "layers", "removed_neurons", "logit_change", "stopped"):
        assert result[key] == plan[key]
    assert set(result["layers"]) == {"1", "3", "5"}
    assert all(layer.keys() == {"weights", "left"} for layer in result["layers"].values())
    assert result["validation_error"] == run.metrics["validation"]["error"]
    assert Path("small/curve.png").read_bytes()[1:4] == b"PNG"


def test_sparse_variational_dropout(runs: Path, call: Any) -> None:
    """Its own threshold; what is shown of each layer is what is left of it."""
    result = json.loads(call("prune", runs / "drowned", "--weights", *ONCE, "--out", "small", "--json"))
    assert result["criterion"] == "log-alpha"
    assert result["threshold"] is None or result["threshold"] <= 3
    drowned = snncompress.load(runs / "drowned")
    assert result["weights"] <= count_nonzero(drowned.model)
    one = json.loads(call("evaluate", "small", "--json"))
    other = json.loads(call("evaluate", runs / "drowned", "--json"))
    assert one["error"] == pytest.approx(other["error"], abs=0.11)
    assert one["nll"] == pytest.approx(other["nll"], rel=1e-3)


def test_a_hollow_run(runs: Path, call: Any) -> None:
    words = ["prune", runs / "hollow", "--weights", "--target-size", "99.5%", *ONCE, "--out", "small", "--json"]
    result = json.loads(call(*words))
    run = snncompress.load("small")
    assert result["criterion"] == "sigma"
    assert run.hollow == ["3"]
    assert result["weights"] == count_nonzero(run.measured_model()) <= int(0.995 * SIZE)
    sampled = json.loads(call("evaluate", "small", "--samples", "3", "--json"))
    assert sampled["averaged"]["error"] < 90


# --- report ---------------------------------------------------------------------------------------------------


def test_reports(runs: Path, call: Any) -> None:
    run = snncompress.load(runs / "thin")
    cost, stored, dense = measure_cost(run.model, SHAPE), run.stored_bytes, state_bytes(run.model)
    assert stored is not None
    (row,) = json.loads(call("report", runs / "thin", "--json"))
    expected = {
        "weights": cost.weights, "flops": cost.flops, "flops_sparse": cost.flops_sparse, "memory": cost.memory,
        "bytes": dense, "stored_bytes": stored,
    }  # fmt: skip
    assert {key: row[key] for key in expected} == expected
    assert sum(layer["flops_sparse"] for layer in row["layers"]) == cost.flops_sparse
    rows = list(csv.DictReader(io.StringIO(call("report", runs / "thin", "--format", "csv"))))
    assert {key: rows[-1][key] for key in expected} == {key: str(value) for key, value in expected.items()}
    assert len(rows) == 2
    assert rows[0]["stored_bytes"] == ""  # the original
    for format in ("text", "markdown"):
        text = call("report", runs / "thin", "--format", format)
        assert all(word in text for word in ("Sparse FLOPs", "Stored", "which holds the non-zero weights only"))
        line = next(line for line in text.splitlines() if "thin" in line)  # the table comes first
        cells = (
            f"{cost.weights:,} (", f"{cost.flops / 1e6:.3f}M (", f"{cost.flops_sparse / 1e6:.3f}M",
            f"{dense / 1e3:.1f} kB", f"{stored / 1e3:.1f} kB",
        )  # fmt: skip
        assert all(cell in line for cell in cells)
    layers = call("report", runs / "thin", "--layers")
    assert re.search(r"^1 +Linear .*\(\d\.\d\d%\)", layers, re.MULTILINE)  # the share that is not zero
    lines = csv.DictReader(io.StringIO(call("report", runs / "thin", "--layers", "--format", "csv")))
    assert sum(int(line["flops_sparse"]) for line in lines) == cost.flops_sparse


def test_beside_others(runs: Path, call: Any) -> None:
    text = call("report", runs / "plain", runs / "thin")
    plain, thin = (next(line for line in text.splitlines() if line.startswith(name)) for name in ("plain", "thin"))
    assert plain.rstrip().endswith("–")  # nothing stored sparsely
    assert thin.rstrip().endswith("kB")
    assert "Sparse FLOPs" not in call("report", runs / "plain")
    one, other = json.loads(call("report", runs / "plain", runs / "thin", "--json"))
    assert one["stored_bytes"] is None
    assert other["stored_bytes"] < 0.3 * one["bytes"]
    call("prune", runs / "plain", "--weights", "--target-size", "90%", *ONCE, "--out", "wide")
    text = call("report", "wide")  # all its neurons are left, and still the original stands beside it
    assert f"{SIZE:,} (100.00%)" in text
    assert f"{int(0.9 * SIZE):,} (90.00%)" in text
    assert call("report", "wide", runs / "thin").count("original mlp") == 1


# --- files ----------------------------------------------------------------------------------------------------


def test_both_formats_hold_the_same_weights(runs: Path, call: Any) -> None:
    words = ["prune", runs / "plain", "--weights", "--target-size", "10%", *ONCE]
    results = {}
    for format in ("dense", "csr"):
        results[format] = json.loads(call(*words, "--format", format, "--out", format, "--json"))
    dense, csr = parameters("dense"), parameters("csr")
    assert dense.keys() == csr.keys()
    assert all(torch.equal(dense[name].view(torch.int32), csr[name].view(torch.int32)) for name in dense)
    assert results["csr"]["stored_bytes"] < 0.3 * results["dense"]["stored_bytes"]
    assert results["csr"]["bytes"] == results["dense"]["bytes"]
    default = json.loads(call(*words, "--out", "default", "--json"))
    assert default["stored_bytes"] == results["csr"]["stored_bytes"]
    assert json.loads(call("evaluate", "dense", "--json")) == json.loads(call("evaluate", "csr", "--json"))


def test_training_and_pruning_go_on_from_a_sparse_run(runs: Path, call: Any) -> None:
    zeros = find_zeros(snncompress.load(runs / "thin").model)
    call("train", runs / "thin", "--epochs", "1", "--out", "more")
    call("train", runs / "thin", "--epochs", "1", "--from-scratch", "--out", "again")
    for name in ("more", "again"):
        model = snncompress.load(name).model
        assert all(torch.equal(zero, model.get_parameter(weight) == 0) for weight, zero in zeros.items())
    assert not torch.equal(parameters("more")["1.weight"], parameters("again")["1.weight"])
    call("prune", "more", "--target-flops", "50%", "--finetune-steps", "1", "--final-epochs", "0", "--out", "fewer")
    fewer = snncompress.load("fewer")
    assert fewer.sparse
    assert count_nonzero(fewer.model) < count_nonzero(snncompress.load("more").model)
    call("prune", "fewer", "--weights", "--target-size", "1%", *ONCE, "--out", "fewest")
    assert count_nonzero(snncompress.load("fewest").model) <= 0.01 * SIZE
    call("restore", "fewer", "--point", "0", "--out", "point")
    assert all(
        torch.equal(zero, snncompress.load("point").model.get_parameter(weight) == 0) for weight, zero in zeros.items()
    )


def test_the_export_is_dense(runs: Path, call: Any) -> None:
    result = json.loads(call("export", runs / "thin", "--out", "thin.onnx", "--json"))
    assert result["relative_difference"] < 1e-4
    assert result["size_bytes"] > state_bytes(snncompress.load(runs / "thin").model)


def test_the_export_says_that_it_is_dense(runs: Path, call: Any) -> None:
    assert "it holds the zero weights, too" in call("export", runs / "thin", "--out", "thin.onnx")
    assert "zero weights" not in call("export", runs / "plain", "--out", "plain.onnx")


def test_a_dry_run_plans_and_writes_nothing(runs: Path, call: Any) -> None:
    words = ["prune", runs / "plain", "--weights", "--target-size", "10%", *ONCE]
    plan = json.loads(call(*words, "--dry-run", "--json"))
    assert plan["planned_cost"]["size"] <= plan["targets"]["size"] < plan["cost"]["size"]
    assert "Weights rank by magnitude" in call(*words, "--dry-run")
    assert not Path("few").exists()
    call(*words, "--out", "few")
    made = json.loads(Path("few/plan.json").read_text())
    assert (made["size"], made["flops"]) == (plan["planned_cost"]["size"], plan["planned_cost"]["flops"])
    assert made["threshold"] == pytest.approx(plan["threshold"])


def test_a_recipe(runs: Path, call: Any) -> None:
    Path("recipe.toml").write_text(
        'weights = true\ntarget-size = "10%"\ncriterion = "magnitude"\nscope = "layer"\nformat = "dense"\n'
        "finetune-steps = 0\nfinal-epochs = 0\n"
    )
    call("prune", runs / "plain", "--config", "recipe.toml", "--out", "a")
    words = ["--target-size", "10%", "--criterion", "magnitude", "--scope", "layer", "--format", "dense", *ONCE]
    call("prune", runs / "plain", "--weights", *words, "--out", "b")
    assert Path("a/model.safetensors").read_bytes() == Path("b/model.safetensors").read_bytes()


def test_criteria_are_listed(call: Any) -> None:
    shown = call("list", "weight-criteria")
    assert all(name in shown for name in entries("weight-criteria"))
    assert {"snr", "spr", "log-alpha", "sigma", "magnitude", "random"} == set(entries("weight-criteria"))


# --- what is refused ------------------------------------------------------------------------------------------

OF_NEURONS = [
    ["--target-latency", "50%"], ["--allocation", "global"], ["--candidates", "3"], ["--trial-steps", "5"],
    ["--per", "size"], ["--step", "2"], ["--round-to", "4"], ["--min-neurons", "2"], ["--finetune-noise"],
]  # fmt: skip
OF_WEIGHTS = [["--threshold", "0.1"], ["--scope", "layer"], ["--format", "csr"]]


@pytest.mark.parametrize("words", OF_NEURONS, ids=lambda words: words[0])
def test_options_of_neurons(runs: Path, refused: Any, words: list[str]) -> None:
    line = refused("prune", str(runs / "plain"), "--weights", "--target-size", "10%", *words, "--out", "small", code=2)
    assert f"{words[0]} is for the pruning of neurons; leave it out" in line


@pytest.mark.parametrize("words", OF_WEIGHTS, ids=lambda words: words[0])
def test_options_of_weights(runs: Path, refused: Any, words: list[str]) -> None:
    line = refused("prune", str(runs / "plain"), "--target-size", "10%", *words, "--out", "small", code=2)
    assert f"{words[0]} is for the pruning of weights; add --weights, or leave it out" in line


@pytest.mark.parametrize(
    ("run", "words", "expected"),
    [
        ("plain", [], "how far? give --target-size"),
        ("plain", ["--threshold", "0.1", "--target-size", "5%"], "and so does a target"),
        ("plain", ["--threshold", "0.1", "--scope", "layer"], "and so does --scope layer"),
        ("plain", ["--criterion", "snr", "--target-size", "5%"], "criterion snr needs a distribution"),
        ("plain", ["--criterion", "taylor", "--target-size", "5%"], "unknown criterion of weights 'taylor'"),
        ("plain", ["--target-size", "1"], "cannot be met"),
        ("plain", ["--max-error", "0"], "raise --max-error"),
        ("hollow", ["--criterion", "magnitude", "--target-size", "5%"], "its mean carries nothing"),
    ],
)
def test_what_makes_no_sense(runs: Path, refused: Any, run: str, words: list[str], expected: str) -> None:
    assert expected in refused("prune", str(runs / run), "--weights", *words, "--out", "small", code=2)
    assert not Path("small").exists()


def test_without_a_place(runs: Path, refused: Any) -> None:
    assert "--out FOLDER" in refused("prune", str(runs / "plain"), "--weights", "--target-size", "5%", code=2)
