"""Bad input gets one line that names the remedy, exit 1 or 2, and nothing half written."""

from __future__ import annotations

import json
import os
import pickle
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn
from words import MODEL, train

from snncompress import run_files as run_module
from snncompress.cli import run as run_command

pytestmark = pytest.mark.usefixtures("elsewhere")
QUICK = ["--candidates", "1", "--finetune-steps", "2", "--final-epochs", "1", "--step", "4"]


def state(widths: tuple[int, ...] = (64, 12, 8, 4)) -> dict[str, torch.Tensor]:
    layers = pairwise(widths)
    tensors = {}
    for number, (inputs, outputs) in zip((1, 3, 5), layers, strict=True):
        layer = nn.Linear(inputs, outputs)
        tensors |= {f"{number}.weight": layer.weight.detach(), f"{number}.bias": layer.bias.detach()}
    return tensors


def test_no_such_file(refused: Any, data: str) -> None:
    assert "none.pt" in refused(*train(data, "--checkpoint", "none.pt"), code=1)
    assert "none.npz" in refused(*train("npz:none.npz"), code=1)
    assert "none" in refused(*train("folder:none"), code=1)
    assert "none.py" in refused("train", "none.py:build", "--data", data, "--out", "out", code=1)
    assert "did you mean 'lenet5'" in refused("report", "lenet6", code=2)
    assert "none.toml" in refused(*train(data, "--config", "none.toml"), code=2)
    assert "--download" in refused("train", "lenet5", "--data", "mnist", "--out", "out", code=1)


def test_damaged_checkpoints(refused: Any, data: str) -> None:
    save_file(state(), "whole.safetensors")
    whole = Path("whole.safetensors").read_bytes()
    Path("cut.safetensors").write_bytes(whole[:-20])
    Path("flipped.safetensors").write_bytes(whole[:3] + bytes([whole[3] ^ 64]) + whole[4:])
    torch.save(state(), "whole.pt")
    Path("cut.pt").write_bytes(Path("whole.pt").read_bytes()[:-500])
    Path("text.pth").write_text("no weights")
    for name in ("cut.safetensors", "flipped.safetensors", "cut.pt", "text.pth"):
        assert name in refused(*train(data, "--checkpoint", name), code=1)


def test_pickled_modules_are_not_opened(refused: Any, data: str) -> None:
    torch.save(nn.Linear(2, 2), "module.pt")
    Path("evil.pt").write_bytes(pickle.dumps(os.getcwd, protocol=4))
    for name in ("module.pt", "evil.pt"):
        assert "model.state_dict()" in refused(*train(data, "--checkpoint", name), code=1)


def test_a_checkpoint_of_another_architecture(refused: Any, data: str) -> None:
    save_file(state((64, 12, 9, 4)), "other.safetensors")
    line = refused(*train(data, "--checkpoint", "other.safetensors"), code=1)
    assert "first: 3.weight" in line
    assert "9×12" in line


def test_nan_weights(refused: Any, data: str) -> None:
    tensors = state()
    tensors["3.weight"][1, 1] = float("nan")
    save_file(tensors, "nan.safetensors")
    assert "3.weight holds NaN" in refused(
        "evaluate", *MODEL, "--data", data, "--checkpoint", "nan.safetensors", code=1
    )


def test_a_loss_that_becomes_nan_keeps_the_last_good_state(
    data: str, noisy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (train(data), ["prune", noisy, "--target-flops", "40%", *QUICK, "--out", "out"]):
        assert run_command([*words, "--lr", "1e30", "--force", "--json"]) == 1
        err = capsys.readouterr().err
        assert "smaller --lr" in json.loads(err)["failure"]
        assert Path("out/state.safetensors").exists()
        assert run_command([*words, "--lr", "0.001", "--resume", "--quiet"]) == 0
        assert not Path("out/state.safetensors").exists()


def test_wrong_images(refused: Any, noisy: str) -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(40) % 4
    np.savez("large.npz", images=rng.random((40, 9, 9)), labels=labels)
    np.savez("colour.npz", images=rng.random((40, 3, 8, 8)), labels=labels)
    np.savez("more.npz", images=rng.random((40, 8, 8)), labels=np.arange(40) % 5)
    assert "1×9×9" in refused("evaluate", noisy, "--data", "npz:large.npz", code=1)
    assert "3×8×8" in refused("prune", noisy, "--data", "npz:colour.npz", "--out", "out", code=1)
    assert "5 classes" in refused("train", noisy, "--data", "npz:more.npz", "--out", "out", code=1)
    assert "3 channels" in refused("evaluate", "torchvision:resnet18", "--data", "npz:large.npz", code=1)


def test_a_class_folder_without_images(refused: Any) -> None:
    for name in ("cats", "dogs", "empty"):
        Path("photos", name).mkdir(parents=True)
    for name in ("cats", "dogs"):
        for number in range(4):
            Image.new("L", (8, 8), 30 * number).save(f"photos/{name}/{number}.png")
    assert "photos/empty" in refused(*train("folder:photos"), code=1)


def test_targets(refused: Any, noisy: str) -> None:
    for kind, target, words in (
        ("flops", "10", "the fewest neurons that may stay still cost 69; raise --target-flops"),
        ("size", "70", "a target of 70 weights cannot be met: the fewest neurons that may stay still cost 75"),
        ("memory", "5", "a target of 5 floats of memory cannot be met: the fewest neurons that may stay still cost 66"),
        ("flops", "much", "60k"), ("size", "5 %%", "--target-size '5 %%' is not a number"), ("memory", "0", "above 0"),
        ("latency", "soon", "--target-latency 'soon' is not a time; write 2ms, 800us or 50%"),
        ("latency", "0ms", "above 0"),
    ):  # fmt: skip
        assert words in refused("prune", noisy, f"--target-{kind}", target, "--out", "out", code=2)
    several = ["--target-flops", "50%", "--target-size", "200%", "--target-memory", "1"]
    assert "a target of 1 floats" in refused("prune", noisy, *several, "--out", "out", code=2)
    limits = ["--target-flops", "100", "--min-neurons", "3"]
    assert "lower --min-neurons" in refused("prune", noisy, *limits, "--dry-run", code=2)


def test_a_criterion_that_cannot_be_used(refused: Any, data: str) -> None:
    words = ["prune", *MODEL, "--data", data, "--target-flops", "40%", "--out", "out"]
    for criterion in ("entropy", "information", "weight-posterior", "weight-robustness", "bn-scale"):
        assert "--criterion taylor" in refused(*words, "--criterion", criterion, code=2)
    assert "did you mean 'taylor'" in refused(*words, "--criterion", "tailor", code=2)
    assert "trained with noise" in refused(*words, "--finetune-noise", code=2)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--keep", "33"], "unknown layer '33'; did you mean '3'? (known: 1, 3, 5)"),
        (["--keep", "conv*"], "unknown layer 'conv*'"), (["--step", "few"], "--step 'few' is neither auto nor"),
        (["--step", "0"], "--step '0'"), (["--step", "-1"], "--step '-1'"), (["--round-to", "0"], "--round-to 0"),
        (["--min-neurons", "0"], "--min-neurons 0"), (["--max-error", "-1"], "--max-error -1"),
        (["--max-drop", "nan"], "--max-drop nan"), (["--final-lr", "0"], "--final-lr 0"),
        (["--trial-steps", "0"], "--trial-steps 0"), (["--candidates", "0"], "--candidates 0"),
        (["--allocation", "fair"], "--allocation"), (["--per", "watt"], "--per"), (["--distill", "nowhere"], "nowhere"),
        (["--distill", "self", "--distill-weight", "0"], "--distill-weight 0"),
        (["--distill", "self", "--distill-layers", "fc9"], "unknown layer 'fc9'"),
        (["--distill-layers", "fc1"], "name one with --distill"),
    ],
)  # fmt: skip
def test_options_of_pruning(refused: Any, noisy: str, more: list[str], words: str) -> None:
    assert words in refused("prune", noisy, "--target-flops", "40%", *more, "--out", "out", code=2)


def test_an_existing_out(refused: Any, data: str, noisy: str) -> None:
    Path("out").mkdir()
    Path("out/diary.txt").write_text("dear")
    Path("file").write_text("dear")
    assert "--force" in refused(*train(data), code=2)
    assert "not a run" in refused(*train(data, "--force"), code=2)
    assert "exists" in refused("train", noisy, "--out", "file", code=2)
    assert "exists" in refused("prune", noisy, "--target-flops", "40%", "--out", "out", code=2)
    assert "--force" in refused("export", noisy, "--out", "file", code=2)
    assert "exists" in refused("demo", "--out", "out", code=2)
    assert "not made by the demo" in refused("demo", "--out", "out", "--force", code=2)
    assert "is the run that is read" in refused("train", noisy, "--out", noisy, "--force", code=2)


def test_resume(refused: Any, data: str, noisy: str) -> None:
    assert "leave --resume out" in refused(*train(data, "--resume"), code=1)
    assert "is finished" in refused("train", noisy, "--resume", "--out", noisy, code=1)
    assert run_command([*train(data, "--lr", "1e30"), "--quiet"]) == 1  # leaves an unfinished run
    assert "another --seed: the run has 0, the command 1" in refused(*train(data, "--resume", "--seed", "1"), code=2)
    assert "another data" in refused(*train("mnist-sample", "--resume"), code=2)
    assert "repeat its command with --resume" in refused("report", "out", code=1)


def test_devices(refused: Any, data: str) -> None:
    if not torch.cuda.is_available():
        assert "--device cpu" in refused(*train(data, "--device", "cuda"), code=2)
    assert "--device cpu" in refused(*train(data, "--device", "toaster"), code=2)


@pytest.mark.parametrize(
    "more",
    [
        ["--epochs", "x"], ["--epochs", "-1"], ["--lr", "0"], ["--lr", "nan"], ["--batch-size", "0"], ["--nonsense"],
        ["--option", "margin"], ["--option", "margins=1"], ["--option", "margin=x"], ["--layers", "nowhere"],
        ["--method", "se-snm"], ["--augment", "flip"], ["--normalize", "1/0"], ["--normalize", "mnisst"],
        ["--image-size", "0"], ["--input-shape", "3x3"], ["--model-arg", "width"], ["--model-arg", "depth=3"],
        ["--save-every", "-1"], ["--optimizer", "lion"], ["--schedule", "steps"], ["--noise-lr", "0"],
        ["--omega", "-1"],
    ],
)  # fmt: skip
def test_impossible_options(refused: Any, data: str, more: list[str]) -> None:
    refused(*train(data, *more), code=2)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--aggregate", "neurons"], "did you mean 'neuron'? (known: both, neuron, sample)"),
        (["--method", "vd", "--prior", "gauss"], "unknown prior of method vd 'gauss' (known: ard, log-uniform, stud"),
        (["--method", "vd", "--alpha", "net"], "unknown alpha of method vd 'net' (known: layer, neuron, weight)"),
        (["--method", "variance", "--noise", "beta"], "(known: bernoulli, gaussian, uniform)"),
        (["--method", "dropout", "--noise", "uniform"], "(known: bernoulli, beta, gaussian)"),
        (["--alpha", "layer"], "unknown option of method se-snn 'alpha'"),
        (["--method", "vd", "--noise", "beta"], "unknown option of method vd 'noise'"),
        (["--method", "vd", "--kl-warmup", "20:5"], "5:20"),
        (["--method", "sparse-vd", "--kl-warmup", "soon"], "'soon' is not of the form 20 or 5:20"),
        (["--method", "sparse-vd", "--kl-scale", "-1"], "kl_scale=-1 is out of range"),
        (["--method", "sparse-vd", "-o", "threshold=9"], "threshold=9 is out of range"),
        (["--method", "dropout", "-o", "rate=1"], "rate=1 is out of range"),
        (["--method", "vd", "--layers", "nowhere"], "no layer is called 'nowhere'; layers are: 1, 3, 5"),
        (["--layers", "5"], "no hidden layer is called '5'; hidden layers are: 1, 3"),
        (["--layers", "conv*"], "no hidden layer is called 'conv*'"),
        (["--posterior", "nonsense"], "--posterior 'nonsense' is not of the form sgld:10000"),
        (["--posterior", "sgld:1"], "at least 2 samples"),
        (["--posterior", "sgld:9", "--posterior-lr", "0"], "--posterior-lr 0 is out of range"),
        (["--posterior", "sgld:9", "--prior-std", "-1"], "--prior-std -1 is out of range"),
    ],
)
def test_methods(refused: Any, data: str, more: list[str], words: str) -> None:
    assert words in refused(*train(data, *more), code=2)


def test_teachers(refused: Any, data: str, noisy: str) -> None:
    assert "nowhere" in refused(*train(data, "--distill", "nowhere"), code=2)
    assert "--distill" in refused(*train(data, "--distill", "lenet5"), code=2)
    assert "normalized otherwise" in refused(*train(data, "--distill", noisy, "--normalize", "0.1/0.2"), code=2)
    assert "--distill-weight 0" in refused(*train(data, "--distill", noisy, "--distill-weight", "0"), code=2)
    line = refused(*train(data, "--distill", noisy, "--distill-temperature", "-1"), code=2)
    assert "--distill-temperature -1" in line


def test_samples(refused: Any, data: str, noisy: str) -> None:
    for count in ("0", "-3", "many"):
        assert "--samples" in refused("evaluate", noisy, "--samples", count, code=2)
    assert run_command([*train(data, "--method", "none"), "--quiet"]) == 0
    assert "leave --samples out" in refused("evaluate", "out", "--samples", "5", code=2)
    assert "leave --samples out" in refused("evaluate", *MODEL, "--data", data, "--samples", "5", code=2)


@pytest.mark.parametrize(
    "words", [["nonsense"], ["train"], ["list", "cars"], ["report"], ["export", "lenet5"], ["prune", "lenet5"]]
)
def test_incomplete_commands(refused: Any, words: list[str]) -> None:
    assert "--help" in (line := refused(*words, code=2)) or "--out" in line


def test_which_data(refused: Any) -> None:
    assert "--data" in refused("evaluate", "lenet5", code=2)
    assert "--data" in refused("train", "lenet5", "--out", "out", code=2)


def test_recipes(refused: Any, data: str) -> None:
    for content, words in (
        ("epoch = 1", "did you mean 'epochs'"),
        ("epochs = ", "not a recipe"),
        ("epochs = true", "epochs takes a value, not true"),
        ('epochs = "many"', "--epochs"),
        ("[option]\nday = 2020-01-01", "option holds a value"),
    ):
        Path("recipe.toml").write_text(content)
        assert words in refused("train", *MODEL, "--data", data, "--config", "recipe.toml", "--out", "out", code=2)


def test_damaged_runs(refused: Any, noisy: str) -> None:
    for file in Path(noisy).iterdir():
        if file.name in ("history.jsonl", "noise.safetensors"):
            continue
        whole = file.read_bytes()
        try:
            file.write_bytes(whole[: len(whole) // 2])
            assert file.name in refused("evaluate", noisy, code=1)
            file.unlink()
            assert Path(noisy).name in refused("evaluate", noisy, code=1)
        finally:
            file.write_bytes(whole)
    Path("folder").mkdir()
    assert "not a run" in refused("report", "folder", code=1)


def test_debug_shows_where_it_comes_from(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["report", "nowhere", "--debug"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_what_nobody_foresaw_is_one_line_too(
    refused: Any, noisy: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("something\nodd")

    monkeypatch.setattr(run_module, "read_header", fail)
    assert run_command(["report", noisy]) == 1
    err = capsys.readouterr().err
    assert err == "error: RuntimeError: something odd (unexpected; --debug shows where it comes from)\n"
