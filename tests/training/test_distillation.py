"""Distillation: the loss by its formula, teachers that are averaged where their mean carries nothing, exact resume."""

from __future__ import annotations

import copy
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from crashing import CrashError, assert_same, crash_and_resume, crash_at, history
from small_data import IMAGE, batches, small_data, small_run
from torch import Tensor, nn

import snncompress
from snncompress import TrainOptions, train
from snncompress.data.dataset import Dataset, Normalization
from snncompress.errors import UsageError
from snncompress.run import Run
from snncompress.run_files import load, save_run
from snncompress.training.distillation import DRAWS, DistillOptions, Teacher

OPTIONS = TrainOptions(epochs=2, lr=0.01, batch_size=64, save_every=0)
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return small_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def plain(data: Dataset) -> Run:
    return train(small_run(1), data, replace(OPTIONS, epochs=6))


@pytest.fixture(scope="module")
def hollow(data: Dataset, plain: Run) -> Run:
    """All it knows is in the variances of one layer."""
    run = train(plain, data, replace(OPTIONS, epochs=10, lr=0.03), method="variance", layers=["3"])
    assert run.hollow == ["3"]
    assert run.metrics["validation"]["error_averaged"] < 30
    return run


@pytest.mark.parametrize(("temperature", "weight"), [(1.0, 1.0), (4.0, 0.9), (0.5, 0.25)])
def test_the_loss_by_its_formula(temperature: float, weight: float) -> None:
    teacher = Teacher(small_run(1), small_run(), DistillOptions(temperature, weight), CPU)
    teacher.model.double()
    inputs, targets = torch.randn(9, *IMAGE).double(), torch.randint(4, (9,))
    outputs = small_run().model.double()(inputs)
    p, q = (teacher.model(inputs) / temperature).softmax(1), (outputs / temperature).softmax(1)
    divergence = (p * (p / q).log()).sum(1).mean()  # a mean over images, as the cross-entropy is
    loss = F.cross_entropy(outputs, targets)
    wanted = (1 - weight) * loss + weight * temperature**2 * divergence
    torch.testing.assert_close(teacher.mix(loss, outputs, inputs), wanted, rtol=1e-12, atol=1e-12)


def test_who_is_like_the_teacher_has_nothing_to_learn() -> None:
    student = small_run()
    teacher = Teacher(student, student, DistillOptions(weight=1.0), CPU)
    teacher.model.double()
    model, inputs = student.model.double(), torch.randn(9, *IMAGE).double()
    outputs = model(inputs)
    loss = teacher.mix(F.cross_entropy(outputs, torch.randint(4, (9,))), outputs, inputs)
    loss.backward()
    assert float(loss.detach()) == pytest.approx(0, abs=1e-12)
    for parameter in model.parameters():
        assert parameter.grad is not None
        assert float(parameter.grad.abs().max()) < 1e-12


def test_layers_by_their_formula() -> None:
    chosen = DistillOptions(weight=1.0, layers=("1", "3"))
    teacher, student = Teacher(small_run(1), small_run(), chosen, CPU), small_run().model
    inputs, targets = torch.randn(9, *IMAGE), torch.randint(4, (9,))
    with teacher.listen(student):
        outputs = student(inputs)
    without = Teacher(small_run(1), small_run(), DistillOptions(weight=1.0), CPU)
    distances = []
    for layer in (2, 4):  # the first layers, up to the chosen one
        ours, theirs = student[:layer](inputs), teacher.model[:layer](inputs)
        distances.append((ours - theirs).square().sum() / theirs.square().sum())
    loss = F.cross_entropy(outputs, targets)
    wanted = without.mix(loss, outputs, inputs) + (distances[0] + distances[1]) / 2
    torch.testing.assert_close(teacher.mix(loss, outputs, inputs), wanted)
    assert not any(module._forward_hooks for module in [*student.modules(), *teacher.model.modules()])


def test_layers_that_cannot_be_learned(data: Dataset, plain: Run, hollow: Run) -> None:
    with pytest.raises(UsageError, match="unknown layer '9'"):
        Teacher(plain, small_run(), DistillOptions(layers=("9",)), CPU)
    with pytest.raises(UsageError, match="predicts by averaging"):
        Teacher(hollow, small_run(), DistillOptions(layers=("1",)), CPU)
    narrow, options = DistillOptions(layers=("3",)), snncompress.PruneOptions(target_flops="60%", final_epochs=0)
    with pytest.raises(UsageError, match="prune --keep"):
        snncompress.prune(plain, data, options, OPTIONS, teacher=plain, distill=narrow)


def test_the_teacher_is_left_as_it_is(data: Dataset, plain: Run, hollow: Run) -> None:
    for run in (plain, hollow):
        before = copy.deepcopy(run.model.state_dict())
        train(small_run(), data, replace(OPTIONS, epochs=1), teacher=run)
        assert all(torch.equal(tensor, before[name]) for name, tensor in run.model.state_dict().items())
        assert all(parameter.requires_grad for parameter in run.model.parameters())
        assert not any("forward" in module.__dict__ for module in run.model.modules())


def test_a_hollow_teacher_is_averaged_over_samples(hollow: Run) -> None:
    teacher = Teacher(hollow, small_run(), DistillOptions(), CPU)
    inputs = torch.randn(20, *IMAGE)
    torch.manual_seed(5)
    said = teacher.logits(inputs).softmax(1)
    model = copy.deepcopy(hollow.model)
    hollow.attach_noise(model)
    torch.manual_seed(5)
    with torch.no_grad():
        samples = torch.stack([model(inputs).softmax(1) for _ in range(DRAWS)])
    torch.testing.assert_close(said, samples.mean(0))
    assert float(samples.std(0).max()) > 0.01
    with torch.no_grad():
        mean = hollow.model(inputs).softmax(1)
    assert float(mean.std(0).max()) < 1e-6  # which says the same of every image


def test_another_noisy_teacher_speaks_by_its_mean(data: Dataset) -> None:
    run = train(small_run(1), data, replace(OPTIONS, epochs=1), method="se-snn")
    inputs = torch.randn(20, *IMAGE)
    logits = Teacher(run, small_run(), DistillOptions(), CPU).logits(inputs)
    with torch.no_grad():
        assert torch.equal(logits, run.model(inputs))


@pytest.mark.parametrize("kind", ["plain", "hollow"])
def test_a_student_learns_without_labels(request: pytest.FixtureRequest, kind: str) -> None:
    teacher = request.getfixturevalue(kind)
    blind = [(inputs, torch.zeros_like(labels)) for inputs, labels in batches()]
    student = train(
        small_run(), blind, replace(OPTIONS, epochs=12, lr=0.03), teacher=teacher,
        distill=DistillOptions(temperature=1.0, weight=1.0), validation=batches(100, seed=1),
    )  # fmt: skip
    assert student.hollow == []
    assert student.metrics["validation"]["error"] < 30  # 75 for the labels it was given


@pytest.mark.parametrize("kind", ["plain", "hollow"])
@pytest.mark.parametrize("method", ["none", "vd"])
def test_a_crashed_student_ends_like_an_uninterrupted_one(
    request: pytest.FixtureRequest,
    data: Dataset,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    method: str,
) -> None:
    teacher = request.getfixturevalue(kind)

    def make(**more: Any) -> Run:
        return train(small_run(), data, OPTIONS, method=method, teacher=teacher, **more)

    whole = make(out=tmp_path / "whole")
    assert_same(whole, crash_and_resume(make, monkeypatch, tmp_path / "run", 5))
    assert history(tmp_path / "whole") == history(tmp_path / "run")


def test_resume_needs_the_same_teacher(
    data: Dataset, plain: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(**more: Any) -> Run:
        return train(small_run(), data, OPTIONS, **more)

    for first, second in (({"teacher": plain}, {}), ({}, {"teacher": plain})):
        given = iter((first, second))
        with pytest.raises(UsageError, match="--resume with another --distill"):
            crash_and_resume(lambda given=given, **more: make(**next(given), **more), monkeypatch, tmp_path / "run", 3)
        (tmp_path / "run" / "state.safetensors").unlink()
        (tmp_path / "run").rename(tmp_path / f"old{len(first)}")


def test_a_run_that_was_moved_with_its_teacher_goes_on(
    data: Dataset, plain: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(place: Path, teacher: str = "teacher", **more: Any) -> Run:
        return train(small_run(), data, OPTIONS, teacher=load(place / teacher), out=place / "run", **more)

    here, there = tmp_path / "here", tmp_path / "there"
    for name in ("teacher", "other"):
        (here / name).mkdir(parents=True)
        save_run(plain, here / name, ())
    with monkeypatch.context() as patch, pytest.raises(CrashError):  # noqa: PT012
        crash_at(patch, 3)
        make(here)
    shutil.copytree(here, there)
    with pytest.raises(UsageError, match="--resume with another --distill"):  # which of the two is meant?
        make(there, resume=True)
    whole = make(here, resume=True)
    shutil.rmtree(here)
    with pytest.raises(UsageError, match="--resume with another --distill"):
        make(there, "other", resume=True)
    assert_same(whole, make(there, resume=True))


def other_shape() -> Run:
    return snncompress.wrap(nn.Sequential(nn.Flatten(), nn.Linear(81, 4)), (1, 9, 9))


def other_classes() -> Run:
    return snncompress.wrap(nn.Sequential(nn.Flatten(), nn.Linear(64, 5)), IMAGE)


def other_normalization() -> Run:
    return replace(small_run(), normalization=Normalization((0.1,), (0.5,)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (other_shape, r"--distill .*\(1, 9, 9\).*\(1, 8, 8\)"),
        (other_classes, r"--distill .* 5 outputs.* 4;"),
        (other_normalization, r"--distill mlp: its images are normalized otherwise"),
    ],
)
def test_a_teacher_of_something_else_is_refused(data: Dataset, tmp_path: Path, make: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        train(small_run(), data, OPTIONS, teacher=make(), out=tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("wrong", "option"),
    [
        ({"temperature": 0.0}, "--distill-temperature"), ({"temperature": float("nan")}, "--distill-temperature"),
        ({"weight": 0.0}, "--distill-weight"), ({"weight": 1.5}, "--distill-weight"),
    ],
)  # fmt: skip
def test_impossible_options_are_refused(wrong: dict[str, float], option: str) -> None:
    with pytest.raises(UsageError, match=option):
        DistillOptions(**wrong)


def test_the_record_says_who_taught(data: Dataset, plain: Run) -> None:
    run = train(small_run(), data, replace(OPTIONS, epochs=0), teacher=plain, distill=DistillOptions(2.0))
    assert run.config["distill"] == {"run": "mlp", "temperature": 2.0, "weight": 0.9}
    assert train(run, data, replace(OPTIONS, epochs=0)).config.get("distill") is None
    chosen = DistillOptions(2.0, layers=("1",))
    run = train(small_run(), data, replace(OPTIONS, epochs=0), teacher=plain, distill=chosen)
    assert run.config["distill"] == {"run": "mlp", "temperature": 2.0, "weight": 0.9, "layers": ["1"]}


def test_a_teacher_is_asked_once_about_each_view(
    data: Dataset, plain: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    judge = Teacher._judge

    def count(self: Teacher, inputs: Tensor) -> Tensor:
        asked.append(len(inputs))
        return judge(self, inputs)

    monkeypatch.setattr(Teacher, "_judge", count)
    options = replace(OPTIONS, epochs=5, augment="shift", views=2)

    def make(**more: Any) -> Run:
        return train(small_run(), data, options, teacher=plain, **more)

    whole = make(out=tmp_path / "whole")
    assert sum(asked) == 2 * len(data.train)
    assert_same(whole, crash_and_resume(make, monkeypatch, tmp_path / "run", 30))
    asked.clear()
    train(small_run(), data, replace(options, views=None), teacher=plain)
    assert sum(asked) == 5 * len(data.train)


def test_what_a_teacher_remembers_is_what_it_says(plain: Run) -> None:
    teacher = Teacher(plain, small_run(), DistillOptions(), CPU, remember=True)
    forgetful = Teacher(plain, small_run(), DistillOptions(), CPU)
    some, others = torch.randn(2, 20, *IMAGE)
    for inputs in (some, others, some):
        assert torch.equal(teacher.logits(inputs), forgetful.logits(inputs))


def test_teachers_that_must_speak_each_time_do(hollow: Run, plain: Run) -> None:
    inputs = torch.randn(20, *IMAGE)
    averaged = Teacher(hollow, small_run(), DistillOptions(), CPU, remember=True)
    assert not torch.equal(averaged.logits(inputs), averaged.logits(inputs))
    layered = Teacher(plain, small_run(), DistillOptions(layers=("1",)), CPU, remember=True)
    student = small_run().model
    for _ in range(2):
        with layered.listen(student):
            outputs = student(inputs)
        layered.mix(outputs.sum(), outputs, inputs)  # which fails where the layers were not noted


def test_views_are_of_a_data_set() -> None:
    with pytest.raises(UsageError, match="leave --views out"):
        train(small_run(), batches(), replace(OPTIONS, views=2))
    with pytest.raises(UsageError, match="--views 0 is out of range"):
        replace(OPTIONS, views=0)
