"""Features through the command line: numbers to predict, with RMSE in all that is printed, and sparse words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from small_data import make_table, to_csr, write_npz, write_table
from words import MODEL

from snncompress.cli import run as run_command
from snncompress.run_files import load

QUICK = ["--finetune-steps", "3", "--final-epochs", "1", "--step", "3"]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_table(tmp_path_factory.mktemp("data") / "table.npz")


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory, table: str) -> str:
    out = str(tmp_path_factory.mktemp("runs") / "noisy")
    words = ["--method", "sparse-vd", "--epochs", "4", "--lr", "0.02", "--posterior", "sgld:20", "--out", out]
    assert run_command(["train", *MODEL, "--data", table, *words, "--quiet"]) == 0
    return out


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory, noisy: str) -> str:
    out = str(tmp_path_factory.mktemp("runs") / "small")
    assert run_command(["prune", noisy, "--target-flops", "60%", *QUICK, "--out", out, "--quiet"]) == 0
    return out


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """All that a command prints on both channels."""
    capsys.readouterr()
    assert run_command([*words]) == 0
    return "".join(capsys.readouterr())


def test_training_and_pruning_say_rmse(
    capsys: pytest.CaptureFixture[str], table: str, noisy: str, tmp_path: Path
) -> None:
    plain = ["train", *MODEL, "--data", table, "--method", "none", "--epochs", "2", "--posterior", "sgld:10"]
    text = printed(capsys, *plain, "--out", str(tmp_path / "plain"))
    assert text.count("validation RMSE") == 4  # two epochs, the posterior, the summary
    text += printed(capsys, "prune", noisy, "--target-flops", "70%", *QUICK, "--out", str(tmp_path / "neurons"))
    text += printed(capsys, "prune", noisy, "--weights", "--target-size", "50%", "--out", str(tmp_path / "weights"))
    assert text.count("validation RMSE") > 8
    assert "validation error" not in text
    variance = [*plain[:-4], "--epochs", "1", "--method", "variance", "--out", str(tmp_path / "variance")]
    text = printed(capsys, *variance)
    assert "by averaging" in text
    assert "validation error" not in text


def test_evaluation(call: Any, noisy: str) -> None:
    run, result = load(noisy), json.loads(call("evaluate", noisy, "--json", "--quiet"))
    assert result["rmse"] == result["error"] == load(noisy).metrics["test"]["error"]
    features, targets = make_table()
    with np.load(run.data["name"].partition(":")[2]) as archive:
        np.testing.assert_array_equal(archive["features"], features)
    assert 0 < result["rmse"] < targets.std()
    line = call("evaluate", noisy, "--quiet")
    assert f"mlp: RMSE {result['rmse']:.4g}" in line
    assert "test samples of npz:" in line
    assert "accuracy" not in line


def test_evaluation_by_samples(call: Any, noisy: str) -> None:
    text = call("evaluate", noisy, "--samples", "3", "--quiet")
    assert text.splitlines()[2].split() == ["RMSE", "NLL"]
    assert "%" not in text
    assert "ELBO of the training data" in text
    result = json.loads(call("evaluate", noisy, "--samples", "3", "--json", "--quiet"))
    assert result["rmse"] == result["error"]
    assert {"one_sample", "averaged", "elbo"} <= set(result)


def test_report(call: Any, small: str, noisy: str, tmp_path: Path) -> None:
    error = json.loads(call("evaluate", small, "--json", "--quiet"))["rmse"]
    (row,) = json.loads(call("report", small, "--json", "--quiet"))
    assert row["rmse"] == row["error"] == error
    text = call("report", noisy, small, "--plot", tmp_path / "tradeoff.svg", "--quiet")
    assert text.split()[:2] == ["Model", "RMSE"]
    assert f"{error:.4g}"[:5] in text
    assert "| Model" in call("report", small, "--format", "markdown", "--quiet")
    assert call("report", small, "--format", "csv", "--quiet").startswith("name,error,rmse,weights,")
    assert (tmp_path / "tradeoff.svg").exists()


def test_restore(call: Any, refused: Any, small: str, tmp_path: Path) -> None:
    assert "validation RMSE" in call("restore", small)
    assert "%" not in call("restore", small)
    first = json.loads(call("restore", small, "--json"))[0]
    result = json.loads(call("restore", small, "--point", "0", "--out", tmp_path / "first", "--json"))
    assert result["validation_rmse"] == result["validation_error"] == first["error"]
    line = refused("restore", small, "--keep-best-under", "0.001", "--out", str(tmp_path / "none"), code=2)
    assert "no point has a validation RMSE of at most 0.001; the best has 0." in line


def test_export(call: Any, refused: Any, small: str, tmp_path: Path) -> None:
    out = tmp_path / "small.onnx"
    call("export", small, "--with-normalization", "--out", out)
    assert [output.name for output in onnx.load(out).graph.output] == ["predictions"]
    features, targets = make_table()
    session = onnxruntime.InferenceSession(out, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"images": features.astype(np.float32)[:, :, None, None]})
    assert found.shape == (300, 1)
    assert np.sqrt(np.mean((found[:, 0] - targets) ** 2)) < targets.std()
    line = refused("export", small, "--with-softmax", "--out", str(tmp_path / "soft.onnx"), code=2)
    assert "--with-softmax: mlp predicts a number" in line


def test_sparse_words(call: Any, tmp_path: Path) -> None:
    counts = np.random.RandomState(0).poisson(0.3, (200, 30))
    labels = (counts[:, :5].sum(1) > 1).astype(int)
    np.savez(tmp_path / "words.npz", **to_csr(counts), features=30, labels=labels)
    np.savez(tmp_path / "dense.npz", features=counts, labels=labels)
    results = []
    for name, more in (("words", []), ("dense", ["--normalize", "none"])):
        words = ["--method", "dropout", "--epochs", "3", "--lr", "0.02", "--out", str(tmp_path / name), *more, "--json"]
        results.append(json.loads(call("train", *MODEL, "--data", f"npz:{tmp_path / name}.npz", *words)))
    assert results[0]["validation_error"] == results[1]["validation_error"]
    assert "validation_rmse" not in results[0]
    sparse, dense = (load(tmp_path / name).model.state_dict() for name in ("words", "dense"))
    assert all((sparse[key] == dense[key]).all() for key in sparse)


def test_curves(call: Any, refused: Any, noisy: str, tmp_path: Path) -> None:
    text = call("curve", noisy, "--criteria", "snr,magnitude", "--out", tmp_path / "curves", "--quiet")
    assert "snr: the RMSE doubles " in text
    first = text.splitlines()[2].split()
    assert first == ["0%", *[f"{load(noisy).metrics['validation']['error']:.4g}"] * 2]
    result = json.loads((tmp_path / "curves" / "curve.json").read_text())
    assert (result["split"], result["measure"]) == ("validation", "RMSE")
    line = refused("curve", noisy, "--retrain", "soft-targets", "--out", str(tmp_path / "soft"), code=2)
    assert "--retrain learns from probabilities of classes, but mlp predicts a number" in line


@pytest.mark.usefixtures("elsewhere")
def test_tasks_are_not_mistaken(refused: Any, noisy: str, table: str, tmp_path: Path) -> None:
    images = write_npz(tmp_path / "quarters.npz", 40)
    features, _ = make_table(40)
    np.savez(tmp_path / "classes.npz", features=features, labels=np.arange(40) % 2)
    classes = f"npz:{tmp_path / 'classes.npz'}"
    for command in ("evaluate", "train", "prune"):
        out = [] if command == "evaluate" else ["--out", "out"]
        line = refused(command, noisy, "--data", classes, *out, code=1)
        assert "for predicting classes (integer labels), but mlp predicts a number (float labels)" in line
        assert "images of 1×8×8, but mlp takes 6×1×1" in refused(command, noisy, "--data", images, *out, code=1)
    assert run_command(["train", *MODEL, "--data", classes, "--epochs", "1", "--out", "classes", "--quiet"]) == 0
    line = refused("evaluate", "classes", "--data", table, code=1)
    assert "for predicting a number (float labels), but mlp predicts classes (integer labels)" in line
    for command in (["train", noisy], ["prune", noisy, "--target-flops", "50%"]):
        assert "--distill: soft targets are" in refused(*command, "--distill", noisy, "--out", "out", code=2)


@pytest.mark.usefixtures("elsewhere")
def test_bad_tables(refused: Any, table: str) -> None:
    Path("two.py").write_text(
        "from torch import nn\ndef build():\n    return nn.Sequential(nn.Flatten(), nn.Linear(6, 2))\n"
    )
    line = refused("train", "two.py:build", "--data", table, "--method", "none", "--out", "out", code=1)
    assert "(27, 2), but their targets are single numbers (floats); build it with one output" in line
    train = ["train", *MODEL, "--data", table, "--out", "out"]
    assert "--augment shift moves pixels" in refused(*train, "--augment", "shift", code=2)
    assert "holds features, not images" in refused(*train, "--image-size", "8", code=2)
    np.savez("nan.npz", features=np.full((9, 2), np.nan), targets=np.zeros(9))
    assert "(features) contains NaN" in refused(*train[:-3], "npz:nan.npz", "--out", "out", code=1)
    np.savez("csr.npz", data=[1.0], indices=[3], indptr=[0, 1, 0], labels=[0, 1])
    assert "(indptr) does not rise" in refused(*train[:-3], "npz:csr.npz", "--out", "out", code=1)
