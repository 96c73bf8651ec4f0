"""Runs: what is saved comes back, and what is damaged is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from crashing import assert_equal
from small_data import CLASSES, IMAGE, batches, small_run
from torch import nn

import snncompress
from snncompress import PruneOptions
from snncompress.data.dataset import Normalization
from snncompress.errors import RunError, UsageError
from snncompress.noise.attach import attach
from snncompress.run import NoiseRecord, Run, wrap
from snncompress.run_files import save_run, store_metrics
from snncompress.run_folder import RunFolder


def outputs(run: Run) -> torch.Tensor:
    with torch.no_grad():
        return run.model(torch.linspace(-1, 1, 3 * 64).view(3, *IMAGE))  # type: ignore[no-any-return]


def test_a_saved_run_comes_back_whole(tmp_path: Path) -> None:
    run = small_run()
    noise = attach(run.model, "se-snn", IMAGE, {"omega": 0.5})
    noise.detach()
    record = NoiseRecord(noise.to_json(), noise.state_dict())
    run = replace(run, noise=record, metrics={"test": {"error": 1.5}}, plan={"target": 5}, config={"lr": 0.1})
    run = replace(run, data={"name": "quarters"}, parent="before", checkpoint="weights.pth")
    run = replace(run, posterior={"1.weight.mean": torch.randn(3), "1.weight.variance": torch.rand(3)})
    folder = tmp_path / "run"
    folder.mkdir()
    saved = save_run(run, folder, ["snncompress", "train"])
    loaded = snncompress.load(folder)
    assert torch.equal(outputs(loaded), outputs(run))
    for name in (
        "name", "input_shape", "normalization", "classes", "source", "original", "metrics", "data", "plan", "config",
        "parent", "path", "checkpoint",
    ):  # fmt: skip
        assert getattr(loaded, name) == getattr(saved, name), name
    assert loaded.noise is not None
    assert loaded.noise.json == record.json
    assert loaded.posterior is not None
    assert_equal(loaded.posterior, run.posterior or {})
    again = loaded.attach_noise(loaded.model, {"margin": 2.0})
    assert again is not None
    assert again.options.omega == 0.5
    assert again.options.margin == 2.0
    for name, tensor in record.tensors.items():
        assert torch.equal(again.state_dict()[name], tensor)


def test_a_successor_has_the_model_and_forgets_what_was_measured_on_it(tmp_path: Path) -> None:
    posterior = {"1.weight.mean": torch.zeros(1)}
    run = replace(noisy_run("se-snn"), posterior=posterior, plan={"target": 5}, metrics={"test": {}}, path=tmp_path)
    after = run.successor({"lr": 1.0})
    assert after.model is run.model
    assert after.config == {"lr": 1.0}
    assert after.parent == str(tmp_path.resolve())
    assert (after.noise, after.posterior, after.plan, after.metrics) == (None, None, None, {})


def noisy_run(method: str) -> Run:
    """A run with noise on its second layer, settled as after training."""
    run = small_run()
    noise = attach(run.model, method, IMAGE, layers=["3"])
    noise.settle()
    noise.detach()
    return replace(run, noise=NoiseRecord.of(noise))


def test_a_mean_that_carries_nothing_is_not_pruned_and_not_exported(tmp_path: Path) -> None:
    run = save_run(noisy_run("variance"), tmp_path)
    remedy = f"train {tmp_path} --from-scratch --method none --distill {tmp_path} --out NEW"
    for loaded in (run, snncompress.load(tmp_path)):
        assert loaded.hollow == ["3"]
        assert not bool(loaded.model.get_parameter("3.weight").any())
        with pytest.raises(UsageError, match=f"layer 3 of mlp .*cannot be pruned.*{remedy}") as caught:
            snncompress.prune(loaded, batches(), PruneOptions(target_flops="40%"), out=tmp_path / "small")
        assert "\n" not in str(caught.value)
        with pytest.raises(UsageError, match=f"layer 3 of mlp .*cannot be exported.*{remedy}"):
            snncompress.export_onnx(loaded, tmp_path / "model.onnx")
    assert not (tmp_path / "small").exists()
    assert not (tmp_path / "model.onnx").exists()


@pytest.mark.parametrize("method", ["none", "se-snn", "sparse-vd", "vd", "dropout"])
def test_other_means_are_good(method: str) -> None:
    run = small_run() if method == "none" else noisy_run(method)
    assert run.hollow == []
    run.need_mean("pruned")


def test_run_json_says_how_the_run_came_about(tmp_path: Path) -> None:
    save_run(small_run(), tmp_path, ["snncompress", "train", "mlp"])
    content = json.loads((tmp_path / "run.json").read_text())
    assert content["format"] == 1
    assert content["status"] == "complete"
    assert content["command"] == ["snncompress", "train", "mlp"]
    assert content["source"]["arguments"]["widths"] == "12-8"
    assert content["original"]["flops"] == 64 * 12 + 12 * 8 + 8 * 4
    assert content["versions"].keys() == {"snncompress", "torch", "python"}


def test_a_module_made_in_python_reloads_with_a_fresh_build(tmp_path: Path) -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.ReLU(), nn.Linear(5, 4))

    normalization = Normalization((0.5,), (0.25,))
    run = wrap(build(), IMAGE, name="mine", classes=CLASSES, normalization=normalization)
    save_run(run, tmp_path)
    with pytest.raises(RunError, match="model=a fresh build"):
        snncompress.load(tmp_path)
    loaded = snncompress.load(tmp_path, model=build())
    assert torch.equal(outputs(loaded), outputs(run))
    assert loaded.normalization == normalization
    assert loaded.original == run.original


def test_normalize_overrides_the_runs_own(tmp_path: Path) -> None:
    save_run(small_run(), tmp_path)
    assert snncompress.load(tmp_path).normalization == Normalization((0.5,), (0.5,))
    assert snncompress.load(tmp_path, normalize="0.1/0.2").normalization == Normalization((0.1,), (0.2,))


def test_metrics_are_added(tmp_path: Path) -> None:
    run = save_run(small_run(), tmp_path)
    run = store_metrics(run, {"validation": {"error": 3.0}})
    store_metrics(run, {"test": {"error": 4.0}})
    assert snncompress.load(tmp_path).metrics == {"validation": {"error": 3.0}, "test": {"error": 4.0}}


@pytest.mark.parametrize("name", ["model.safetensors", "probe.safetensors"])
def test_one_flipped_bit_is_refused(tmp_path: Path, name: str) -> None:
    save_run(small_run(), tmp_path)
    file = tmp_path / name
    content = bytearray(file.read_bytes())
    content[-7] ^= 1  # the last bit of a mantissa, which no probe would notice
    file.write_bytes(content)
    with pytest.raises(RunError, match=name):
        snncompress.load(tmp_path)


def test_other_weights_of_the_same_shapes_are_noticed(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    save_run(small_run(0), tmp_path / "a")
    save_run(small_run(1), tmp_path / "b")
    (tmp_path / "b" / "model.safetensors").replace(tmp_path / "a" / "model.safetensors")
    with pytest.raises(RunError, match="does not give the logits"):
        snncompress.load(tmp_path / "a")


def test_what_is_no_whole_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="not a run"):
        snncompress.load(tmp_path)
    save_run(small_run(), tmp_path)
    header = json.loads((tmp_path / "run.json").read_text())
    for change, words in (
        ({"format": 99}, "newer snncompress"),
        ({"format": None}, "not of snncompress"),
        ({"status": "running"}, "--resume"),
    ):
        (tmp_path / "run.json").write_text(json.dumps({**header, **change}))
        with pytest.raises(RunError, match=words):
            snncompress.load(tmp_path)
    del header["shapes"]
    (tmp_path / "run.json").write_text(json.dumps(header))
    with pytest.raises(RunError, match="lacks 'shapes'"):
        snncompress.load(tmp_path)
    (tmp_path / "run.json").write_text(json.dumps(header)[:-9])
    with pytest.raises(RunError, match=r"run\.json"):
        snncompress.load(tmp_path)


def test_checkpoint_and_run_exclude_each_other(tmp_path: Path) -> None:
    save_run(small_run(), tmp_path)
    with pytest.raises(UsageError, match="leave --checkpoint out"):
        snncompress.load(tmp_path, checkpoint="other.pth")


def test_a_folder_is_replaced_only_if_it_is_a_run_and_with_force(tmp_path: Path) -> None:
    run, out = small_run(), tmp_path / "out"
    RunFolder(out).start(run, force=False)  # a new one
    with pytest.raises(UsageError, match="exists"):
        RunFolder(out).start(run, force=False)
    (out / "plan.json").write_text("{}")
    RunFolder(out).start(run, force=True)
    assert not (out / "plan.json").exists()
    with pytest.raises(UsageError, match="the run that is read"):
        RunFolder(out).start(replace(run, path=out), force=True)
    (out / "run.json").rename(out / "diary.txt")
    with pytest.raises(UsageError, match="not a run"):
        RunFolder(out).start(run, force=True)
    assert (out / "diary.txt").exists()
    (out / "diary.txt").rename(out / ".run.json.123.tmp")  # killed while it wrote its first file
    RunFolder(out).start(run, force=False)
    assert [file.name for file in out.iterdir()] == ["run.json"]


def test_a_run_that_fails_before_its_first_state_leaves_nothing(tmp_path: Path) -> None:
    def fail(folder: RunFolder, save: bool) -> None:
        with folder:
            folder.start(small_run(), force=False)
            folder.record({"step": 0})
            if save:
                folder.save({"x": torch.zeros(1)}, {})
            raise RunError("something went wrong")

    for save in (False, True):
        with pytest.raises(RunError, match="something"):
            fail(RunFolder(tmp_path / "out"), save)
        assert (tmp_path / "out").exists() == save


def test_resume_cuts_the_history_to_the_state(tmp_path: Path) -> None:
    run, out = small_run(), tmp_path / "out"
    folder = RunFolder(out)
    folder.start(run, force=False)
    folder.record({"step": 0})
    folder.save({"x": torch.ones(2)}, {"step": 0})
    folder.record({"step": 1})
    with (out / "history.jsonl").open("a") as file:
        file.write('{"step": 2, "los')  # a torn line
    del folder  # as the end of its process does
    again = RunFolder(out)
    saved = again.resume(run)
    assert saved is not None
    assert torch.equal(saved[0]["x"], torch.ones(2))
    assert saved[1] == {"step": 0, "history": 1}
    assert again.history == [{"step": 0}]
    assert (out / "history.jsonl").read_text() == '{"step": 0}\n'


def test_one_writes_into_a_folder_at_a_time(tmp_path: Path) -> None:
    run, out = small_run(), tmp_path / "out"
    with RunFolder(out) as folder:
        folder.start(run, force=False)
        folder.save({"x": torch.ones(2)}, {})
        before = sorted((file.name, file.read_bytes()) for file in out.iterdir())
        with pytest.raises(RunError, match="another process writes into"):
            RunFolder(out).resume(run)
        with pytest.raises(RunError, match="another process writes into"):
            RunFolder(out).start(run, force=True)
        assert sorted((file.name, file.read_bytes()) for file in out.iterdir()) == before
    assert RunFolder(out).resume(run) is not None
    RunFolder(out).start(run, force=True)


def test_resume_refuses_another_beginning(tmp_path: Path) -> None:
    run = replace(small_run(), config={"epochs": 3, "lr": 0.1, "training": {"seed": 0}}, data={"name": "a"})
    RunFolder(tmp_path / "out").start(run, force=False)
    for other, words in (
        (replace(run, config={**run.config, "epochs": 4}), "--epochs: the run has 3, the command 4"),
        (replace(run, config={**run.config, "training": {"seed": 1}}), "--seed: the run has 0, the command 1"),
        (replace(run, data={"name": "b"}), "another data"),
        (replace(run, parent="x"), "another run to start from"),
        (replace(run, checkpoint="x"), "another checkpoint"),
        (replace(run, source=None), "another model"),
        (replace(run, normalization=Normalization((0.0,), (1.0,))), "another normalization"),
    ):
        with pytest.raises(UsageError, match=words):
            RunFolder(tmp_path / "out").resume(other)
    smaller = replace(run, config={**run.config, "lr": 0.01})  # the way on from a loss that became NaN
    assert RunFolder(tmp_path / "out").resume(smaller) is None
    with pytest.raises(RunError, match="leave --resume out"):
        RunFolder(tmp_path / "none").resume(run)
