"""The noise methods as a user types them: trained, evaluated by samples, distilled; hollow runs are told apart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import snncompress
from snncompress.cli import run as run_command
from snncompress.registry import entries

METHODS = [*entries("methods")]
SAMPLE = ["--model-arg", "widths=20-10", "--data", "mnist-sample", "--epochs", "1"]
FLAGS = {
    "se-snn": ["--aggregate", "both", "--omega", "0.02"],
    "sparse-vd": ["--kl-scale", "0.5", "--kl-warmup", "0:1"],
    "vd": ["--alpha", "neuron", "--prior", "ard", "--noise-lr", "0.05"],
    "variance": ["--noise", "bernoulli", "--layers", "3"],
    "dropout": ["--noise", "beta", "-o", "rate=0.3"],
    "vib": ["-o", "beta=0.01"],
}


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Any:
    def call(*words: str | Path, err: str | None = None) -> str:
        """Runs a command that must succeed; returns its stdout."""
        capsys.readouterr()
        code = run_command([str(word) for word in words])
        out, said = capsys.readouterr()
        assert code == 0, said
        if err is not None:
            assert err in said
        return out

    return call


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of each method, called like it, made with its own flags; and a plain one."""
    folder = tmp_path_factory.mktemp("runs")
    for method in [*METHODS, "none"]:
        words = ["train", "mlp", *SAMPLE, "--method", method, *FLAGS.get(method, [])]
        assert run_command([*words, "--quiet", "--out", str(folder / method)]) == 0
    return folder


@pytest.mark.parametrize("method", METHODS)
def test_flags_are_options_of_the_method(runs: Path, method: str) -> None:
    run = snncompress.load(runs / method)
    assert run.noise is not None
    assert run.noise.json["method"] == method
    wanted: dict[str, Any] = {
        "se-snn": {"aggregate": "both", "omega": 0.02},
        "sparse-vd": {"kl_scale": 0.5, "kl_warmup": "0:1"},
        "vd": {"alpha": "neuron", "prior": "ard"},
        "variance": {"noise": "bernoulli"},
        "dropout": {"noise": "beta", "rate": 0.3},
        "vib": {"beta": 0.01},
    }
    assert wanted[method].items() <= run.noise.json["options"].items()
    assert run.noise.json["layers"] == {
        "se-snn": ["1", "3"], "sparse-vd": ["1", "3", "5"], "vd": ["1", "3", "5"], "variance": ["3"],
        "dropout": ["3", "5"], "vib": ["1", "3"],
    }[method]  # fmt: skip
    assert run.config["noise_lr"] == (0.05 if method == "vd" else None)


@pytest.mark.parametrize("method", METHODS)
def test_evaluate_by_samples(runs: Path, call: Any, method: str) -> None:
    text = call("evaluate", runs / method, "--samples", "3")
    title, _, _, _, mean, one, averaged, *rest = text.splitlines()
    assert title == "mlp on 1,000 test images of mnist-sample"
    assert [line[:16].strip() for line in (mean, one, averaged)] == ["mean propagation", "one sample", "3 averaged"]
    assert "±" in one
    bounded = method in ("sparse-vd", "vd", "variance")
    assert any("ELBO of the training data" in line for line in rest) == bounded
    result = json.loads(call("evaluate", runs / method, "--samples", "3", "--json"))
    assert result.keys() == {"error", "nll", "samples", "one_sample", "averaged", "elbo", "split"}
    assert result["samples"] == result["averaged"]["samples"] == 1000
    assert result["averaged"]["draws"] == 3
    assert (result["elbo"] is not None) == bounded
    assert f"{result['averaged']['error']:.2f}%" in averaged
    assert f"{result['one_sample']['nll']:.4f}" in one
    plain = json.loads(call("evaluate", runs / method, "--json"))  # mean propagation is the plain model
    assert plain["error"] == result["error"]
    assert plain["nll"] == pytest.approx(result["nll"], rel=1e-5)


def test_seeds_and_splits_of_samples(runs: Path, call: Any) -> None:
    words = ["evaluate", runs / "dropout", "--samples", "2", "--json"]
    first = call(*words)
    assert call(*words) == first
    assert call(*words, "--seed", "1") != first
    validation = json.loads(call(*words, "--split", "validation"))
    assert validation["samples"] == 400
    assert validation["split"] == "validation"
    remembered = json.loads((runs / "dropout" / "run.json").read_text())["metrics"]["validation"]
    assert remembered["averaged"] == validation["averaged"]


def test_training_shows_both_errors_of_methods_that_are_averaged(runs: Path, call: Any, tmp_path: Path) -> None:
    out = call("train", runs / "vd", "--method", "vd", "--epochs", "1", "--out", tmp_path / "a", err="by averaging")
    assert "% by the mean, " in out
    assert "by averaging samples" in out
    assert "by the mean" not in call("train", runs / "none", "--epochs", "0", "--out", tmp_path / "b")


def test_hollow_runs_are_told_apart(runs: Path, call: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    hollow = str(runs / "variance")
    for words in (["evaluate", hollow], ["report", hollow]):
        call(*words, err="the mean of layer 3 carries nothing")
    call("evaluate", hollow, "--samples", "2", err="")
    assert "guess" not in capsys.readouterr().err
    for words in (
        ["prune", hollow, "--target-flops", "50%", "--out", str(tmp_path / "small")],
        ["prune", hollow, "--target-flops", "50%", "--dry-run"],
        ["export", hollow, "--out", str(tmp_path / "a.onnx")],
    ):
        capsys.readouterr()
        assert run_command(words) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.count("\n") == 1
        assert err.startswith("error: layer 3 of mlp keeps what it knows in its variances")
        assert f"snncompress train {hollow} --from-scratch --method none --distill {hollow} --out NEW" in err
    assert list(tmp_path.iterdir()) == []


def test_the_offered_distillation_works(runs: Path, call: Any, tmp_path: Path) -> None:
    hollow, plain = runs / "variance", tmp_path / "plain"
    words = ["--from-scratch", "--method", "none", "--distill", hollow, "--epochs", "1"]
    call("train", hollow, *words, "--distill-temperature", "2", "--distill-weight", "0.5", "--out", plain)
    run = snncompress.load(plain)
    assert run.noise is None
    assert run.config["distill"] == {"run": str(hollow), "temperature": 2.0, "weight": 0.5}
    quick = ["--criterion", "magnitude", "--candidates", "1", "--finetune-steps", "1", "--final-epochs", "0"]
    call("prune", plain, "--target-flops", "50%", *quick, "--out", tmp_path / "small")
    call("export", tmp_path / "small", "--out", tmp_path / "small.onnx")


def test_a_posterior_is_kept_until_the_weights_change(runs: Path, call: Any, tmp_path: Path) -> None:
    words = ["--method", "dropout", "--epochs", "1", "--posterior", "sgld:20", "--posterior-lr", "1e-5"]
    words += ["--posterior-temperature", "0.5", "--prior-std", "0.5"]
    call("train", runs / "none", *words, "--out", tmp_path / "a")
    run = snncompress.load(tmp_path / "a")
    assert run.posterior is not None
    assert run.config["posterior"] == {"samples": 20, "lr": 1e-5, "prior_std": 0.5, "temperature": 0.5}
    assert torch.equal(run.posterior["1.weight.mean"], run.model.get_parameter("1.weight"))
    call("train", tmp_path / "a", "--epochs", "0", "--out", tmp_path / "b")
    assert not (tmp_path / "b" / "posterior.safetensors").exists()


def test_a_recipe_has_the_new_flags(runs: Path, call: Any, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        f'data = "mnist-sample"\nepochs = 0\nmethod = "vd"\nalpha = "weight"\nprior = "student"\nkl-scale = 0.1\n'
        f'kl-warmup = "5:20"\nnoise-lr = 0.01\ndistill = "{runs / "none"}"\nlayers = ["3", "5"]\n'
        '[model-arg]\nwidths = "20-10"\n[option]\nlog_alpha = -8\n'
    )
    call("train", "mlp", "--config", recipe, "--out", tmp_path / "a")
    words = ["--data", "mnist-sample", "--epochs", "0", "--method", "vd", "--alpha", "weight", "--prior", "student"]
    words += ["--kl-scale", "0.1", "--kl-warmup", "5:20", "--noise-lr", "0.01", "--distill", str(runs / "none")]
    words += ["--layers", "3", "--layers", "5", "--model-arg", "widths=20-10", "-o", "log_alpha=-8"]
    call("train", "mlp", *words, "--out", tmp_path / "b")
    ours, theirs = (json.loads((tmp_path / name / "run.json").read_text()) for name in "ab")
    assert ours["config"] == theirs["config"]
    assert ours["noise"] == theirs["noise"]
