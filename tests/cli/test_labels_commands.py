"""Wrong labels as a user meets them: trained with, corrected, suspected, and images of another kind told apart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from crashing import crash_at
from small_data import make_images, write_table
from words import MODEL

import snncompress
from snncompress.cli import run as run_command

NOISE = ["--label-noise", "patterned:0.3"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, data: str) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    words = ["train", *MODEL, "--data", data, *NOISE, "--epochs", "1", "--quiet"]
    for name, more in {
        "plain": ["--method", "none"],
        "noisy": ["--aggregate", "sample"],
    }.items():
        assert run_command([*words, *more, "--out", str(folder / name)]) == 0
    return folder


def loaded(run: Any) -> Any:
    return snncompress.load_data(
        run.data["name"], seed=run.data["seed"], label_noise=run.data.get("label_noise"),
        limit_train=run.data.get("limit_train"),
    )  # fmt: skip


def test_a_run_remembers_its_labels(runs: Path, call: Any, tmp_path: Path) -> None:
    run = snncompress.load(runs / "plain")
    assert run.data["label_noise"] == "patterned:0.3"
    noisy = loaded(run)
    assert not torch.equal(noisy.train.labels, noisy.truth)
    call("train", runs / "plain", "--epochs", "0", "--out", tmp_path / "next")  # the labels are the run's still
    assert snncompress.load(tmp_path / "next").data == run.data
    call("train", runs / "plain", "--epochs", "0", "--label-noise", "none", "--out", tmp_path / "clean")
    assert "label_noise" not in snncompress.load(tmp_path / "clean").data
    text = call("evaluate", runs / "plain", "--split", "validation")
    assert text.rstrip().endswith("with patterned:0.3 labels")
    assert "patterned" not in call("evaluate", runs / "plain")


def test_validation_errors_are_against_noisy_labels(runs: Path, call: Any) -> None:
    run = snncompress.load(runs / "plain")
    images, labels = (data := loaded(run)).validation.batch(torch.arange(len(data.validation)))
    with torch.no_grad():
        predicted = run.model(run.normalization(images.float() / 255)).argmax(1)
    wanted = 100 * float((predicted != labels).double().mean())
    assert json.loads(call("evaluate", runs / "plain", "--split", "validation", "--json"))["error"] == wanted
    assert run.metrics["validation"]["error"] == wanted


def test_it_is_said(data: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["train", *MODEL, "--data", data, *NOISE, "--epochs", "0", "--method", "none", "--out"]
    assert run_command([*words, str(tmp_path / "a")]) == 0
    assert "labels of training and validation images have patterned:0.3 noise" in capsys.readouterr().err


def test_random_labels_of_few_images(data: str, call: Any, tmp_path: Path) -> None:
    words = ["--data", data, "--random-labels", "--limit-train", "60", "--epochs", "0", "--out", tmp_path / "a"]
    call("train", *MODEL, *words)
    run = snncompress.load(tmp_path / "a")
    assert (run.data["label_noise"], run.data["limit_train"]) == ("random", 60)
    result = json.loads(call("evaluate", tmp_path / "a", "--split", "train", "--json"))
    assert result["samples"] == 60


def test_forward_takes_two_commands(runs: Path, data: str, call: Any, tmp_path: Path) -> None:
    words = ["train", *MODEL, "--data", data, *NOISE, "--epochs", "1", "--correction", "forward"]
    call(*words, "--method", "none", "--correction-from", runs / "plain", "--out", tmp_path / "a")
    call(*words, "--aggregate", "sample", "--correction-from", runs / "noisy", "--out", tmp_path / "b")
    for name, first in (("a", "plain"), ("b", "noisy")):
        record = snncompress.load(tmp_path / name).config["correction"]
        assert record == {"name": "forward", "value": 97.0, "from": str((runs / first).resolve())}
        matrix = np.array(json.loads((tmp_path / name / "corruption.json").read_text()))
        assert matrix.shape == (4, 4)


def test_pruning_says_that_it_believes_labels(
    runs: Path, data: str, call: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", *MODEL, "--data", data, *NOISE, "--epochs", "0", "--method", "none"]
    call(*words, "--correction", "bootstrap-hard", "--out", tmp_path / "a")
    prune = ["prune", str(tmp_path / "a"), "--target-flops", "90%", "--final-epochs", "0", "--finetune-steps", "1"]
    for more, said in (([], True), (["--distill", "self"], False)):
        capsys.readouterr()
        assert run_command([*prune, *more, "--out", str(tmp_path / f"small{said}")]) == 0
        err = capsys.readouterr().err
        assert "have patterned:0.3 noise" in err
        assert ("fine-tuning believes its labels" in err) == said


def test_suspects(runs: Path, call: Any, tmp_path: Path) -> None:
    text = call("evaluate", runs / "plain", "--suspects", "7")
    assert "loss of the given label" in text
    assert "7 of 486 training images" in text
    assert text.splitlines()[-1].startswith("patterned:0.3: ")
    result = json.loads(call("evaluate", runs / "plain", "--suspects", "7", "--json"))
    assert [f"{each['score']:.4f}" in text for each in result["suspects"]] == [True] * 7
    assert (result["score"], result["label_noise"], result["samples"]) == ("loss", "patterned:0.3", 486)
    wrong = [each["given"] != each["truth"] for each in result["suspects"]]
    assert result["flipped"] == pytest.approx(100 * sum(wrong) / 7)
    picture = tmp_path / "suspects.png"
    assert "mean log σ" in call(
        "evaluate", runs / "noisy", "--suspects", "12", "--suspects-by", "sigma", "--out", picture
    )
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "entropy of the pred" in call("evaluate", runs / "noisy", "--suspects", "3", "--suspects-by", "entropy")


def test_images_of_another_kind(runs: Path, call: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other.npz"
    images = np.random.RandomState(0).randint(0, 256, (60, 12, 12, 3)).astype(np.uint8)
    np.savez(other, images=images, labels=np.arange(60) % 3)
    text = call("evaluate", runs / "noisy", "--ood", f"npz:{other}", "--samples", "3")
    assert [line[:18] for line in text.splitlines()[4:]] == [
        "entropy of the pre",
        "mutual information",
        "mean log σ        ",
    ]
    result = json.loads(call("evaluate", runs / "noisy", "--ood", f"npz:{other}", "--samples", "3", "--json"))
    assert [each["score"] for each in result["detections"]] == ["entropy", "information", "sigma"]
    assert all(0 <= each["auroc"] <= 1 for each in result["detections"])
    plain = json.loads(call("evaluate", runs / "plain", "--ood", f"npz:{other}", "--json"))
    assert [each["score"] for each in plain["detections"]] == ["entropy"]
    capsys.readouterr()
    assert run_command(["evaluate", str(runs / "plain"), "--ood", f"npz:{other}"]) == 0
    assert "images are made gray and resized from 12×12 to 8×8" in capsys.readouterr().err


@pytest.mark.usefixtures("elsewhere")
def test_bad_input(runs: Path, data: str, refused: Any) -> None:
    train = ["train", *MODEL, "--data", data, "--epochs", "1", "--out", "out"]
    plain = ["evaluate", str(runs / "plain")]
    for message, words in {
        "unknown label noise 'patern'": [*train, "--label-noise", "patern:0.3"],
        "leaves nothing for --label-noise": [*train, "--label-noise", "uniform:0.1", "--random-labels"],
        "--limit-train 0 is out of range": [*train, "--limit-train", "0"],
        "give its folder as --correction-from": [*train, "--correction", "forward"],
        "--correction-from is for --correction forward": [*train, "--correction-from", str(runs / "plain")],
        "--correction-from nowhere is not a run": [*train, "--correction", "forward", "--correction-from", "nowhere"],
        "trained with label noise patterned:0.3, this run has None": [
            *train, "--method", "none", "--correction", "forward", "--correction-from", str(runs / "plain"),
        ],
        "unknown correction 'bootstrap'": [*train, "--correction", "bootstrap"],
        "--suspects 0 is out of range": [*plain, "--suspects", "0"],
        "noise does not depend on the sample": [*plain, "--suspects", "3", "--suspects-by", "sigma"],
        "--out and --suspects-by are for --suspects": [*plain, "--out", "a.png"],
        "ask one at a time": [*plain, "--suspects", "3", "--ood", "mnist-sample"],
        "is the run's own data": [*plain, "--ood", data],
        "there is nothing to sample": [*plain, "--ood", "mnist-sample", "--samples", "3"],
        "its ending is none of": [*plain, "--suspects", "3", "--out", "picture.xyz"],
    }.items():  # fmt: skip
        assert message in refused(*words, code=2)


@pytest.mark.usefixtures("elsewhere")
def test_numbers_to_predict_are_refused(refused: Any) -> None:
    table = write_table(Path("table.npz"))
    train = ["train", "mlp", "--data", table, "--epochs", "1", "--out", "out"]
    for words in (["--label-noise", "uniform:0.1"], ["--random-labels"], ["--correction", "bootstrap-soft"]):
        assert "number" in refused(*train, *words, code=2)


def test_another_seed_is_another_pattern(data: str, call: Any, tmp_path: Path) -> None:
    labels = []
    for seed in ("0", "1", "1"):
        out = tmp_path / f"{len(labels)}"
        call("train", *MODEL, "--data", data, *NOISE, "--epochs", "0", "--seed", seed, "--out", out)
        run = loaded(snncompress.load(out))
        labels.append((run.train.labels, run.truth))
    assert torch.equal(labels[1][0], labels[2][0])
    moved = [{(int(a), int(b)) for a, b in zip(*pair, strict=True) if a != b} for pair in labels]
    assert all(len(each) == 4 for each in moved)  # each class goes to one other
    assert moved[0] != moved[1]


def test_a_run_is_resumed_on_its_labels_only(
    data: str, tmp_path: Path, refused: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["train", *MODEL, "--data", data, "--epochs", "2", "--save-every", "0", "--out", "out"]
    with monkeypatch.context() as patch:
        crash_at(patch, 3)
        assert run_command([*words, *NOISE]) == 1
    assert "label_noise" in refused(*words, "--resume", code=2)
    assert run_command([*words, *NOISE, "--resume", "--quiet"]) == 0


def test_files_are_named(call: Any, tmp_path: Path) -> None:
    from PIL import Image

    images, labels = make_images(40)
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        folder = tmp_path / "photos" / f"quarter{int(label)}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image[0].numpy()).save(folder / f"{number:02}.png")
    call("train", *MODEL, "--data", f"folder:{tmp_path / 'photos'}", "--epochs", "0", "--out", tmp_path / "run")
    result = json.loads(call("evaluate", tmp_path / "run", "--suspects", "5", "--json"))
    for suspect in result["suspects"]:
        assert Path(suspect["name"]).parent.name == f"quarter{suspect['given']}"
        assert Path(suspect["name"]).is_file()
