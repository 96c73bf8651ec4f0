"""Corrections for wrong labels: losses by their formulas, the estimate of T, exact resume, and refusals."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from crashing import assert_same, crash_and_resume, history
from small_data import batches, small_data, small_run, write_npz, write_table
from torch import Tensor

from snncompress import PosteriorOptions, TrainOptions, load_data, train
from snncompress.data.dataset import Dataset
from snncompress.data.labels import partners
from snncompress.errors import UsageError
from snncompress.progress import Progress
from snncompress.registry import entries, load
from snncompress.run import Run
from snncompress.training.correcting import Labels
from snncompress.training.corrections.forward import corrected, estimate
from snncompress.training.feed import make_feed

CORRECTIONS = [*entries("corrections")]
OPTIONS = TrainOptions(epochs=2, lr=0.01, batch_size=64, save_every=0)
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return load_data(write_npz(tmp_path_factory.mktemp("data") / "quarters.npz"), label_noise="patterned:0.3")


@pytest.fixture(scope="module")
def first(data: Dataset) -> Run:
    return train(small_run(1), data, replace(OPTIONS, epochs=6))


class Known(Labels):
    """Labels whose first network is a table."""

    def __init__(self, table: Tensor) -> None:
        super().__init__(None, [], CPU, Progress())  # type: ignore[arg-type]
        self.table = table

    def probabilities(self) -> Tensor:
        return self.table


def draw() -> tuple[Tensor, Tensor, Tensor]:
    """Outputs (9, 4) and targets, and T (4, 4)."""
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(9, 4, generator=generator).double().requires_grad_()
    matrix = torch.rand(4, 4, generator=generator).softmax(1)
    return outputs, torch.randint(4, (9,), generator=generator), matrix


@pytest.mark.parametrize("beta", [0.8, 0.3])
def test_bootstrapping_by_its_formula(beta: float) -> None:
    outputs, targets, _ = draw()
    q = outputs.softmax(1)
    truth = F.one_hot(targets, 4).double()
    z = F.one_hot(q.argmax(1), 4).double()
    for name, own in (("bootstrap-hard", z), ("bootstrap-soft", q)):
        wanted = -((beta * truth + (1 - beta) * own) * q.log()).sum(1).mean()
        found = load("corrections", name).make(beta, Known(q))(outputs, targets)
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
        ours, theirs = (torch.autograd.grad(loss, outputs, retain_graph=True)[0] for loss in (found, wanted))
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", CORRECTIONS)
def test_no_device_is_assumed(name: str) -> None:
    labels = Known(torch.eye(4))
    labels.device = torch.device("meta")
    outputs = torch.zeros(9, 4, device="meta", requires_grad=True)
    module = load("corrections", name)
    loss = module.make(module.DEFAULT, labels)(outputs, torch.zeros(9, dtype=torch.int64, device="meta"))
    assert (loss.device.type, loss.shape) == ("meta", ())


@pytest.mark.parametrize("name", ["bootstrap-hard", "bootstrap-soft"])
def test_who_trusts_labels_alone_minimizes_the_cross_entropy(name: str) -> None:
    outputs, targets, _ = draw()
    torch.testing.assert_close(
        load("corrections", name).make(1.0, Known(outputs))(outputs, targets), F.cross_entropy(outputs, targets)
    )


def test_forward_by_its_formula() -> None:
    outputs, targets, matrix = draw()
    found = corrected(matrix)(outputs, targets)
    noisy = outputs.softmax(1) @ matrix.double()  # p(label) = Σ_i p(i)·T_i,label
    torch.testing.assert_close(found.double(), F.nll_loss(noisy.log(), targets), rtol=1e-5, atol=1e-6)


def test_forward_without_noise_is_the_cross_entropy() -> None:
    outputs, targets, _ = draw()
    torch.testing.assert_close(
        corrected(torch.eye(4))(outputs, targets).double(), F.cross_entropy(outputs, targets), rtol=1e-5, atol=1e-5
    )


def test_the_forward_loss_stays_finite_where_a_label_cannot_be() -> None:
    outputs = torch.tensor([[200.0, 0.0, 0.0, 0.0]], requires_grad=True)
    loss = corrected(torch.eye(4))(outputs, torch.tensor([1]))
    loss.backward()
    assert outputs.grad is not None
    assert bool(torch.isfinite(loss))
    assert bool(torch.isfinite(outputs.grad).all())


def test_the_matrix_of_a_perfect_first_network() -> None:
    """Whose probabilities are p(label | image) = Σ_i p(i | image)·T_i: exact wherever a class is certain."""
    torch.manual_seed(0)
    truth = torch.tensor([[0.7, 0.3, 0.0], [0.1, 0.8, 0.1], [0.0, 0.4, 0.6]])
    certain = torch.eye(3)[torch.arange(900) % 3]
    doubtful = torch.full((100, 3), 1 / 3)
    posteriors = torch.cat([certain, doubtful])[torch.randperm(1000)] @ truth
    for percentile in (97.0, 100.0):
        torch.testing.assert_close(estimate(posteriors, percentile), truth)


def test_the_percentile_leaves_out_the_surest() -> None:
    torch.manual_seed(0)
    probabilities = torch.rand(200, 3).softmax(1)
    probabilities[0] = torch.tensor([1.0, 0.0, 0.0])  # sure by accident
    assert float(estimate(probabilities, 97)[0, 0]) < 1
    assert float(estimate(probabilities, 100)[0, 0]) == 1
    for i in range(3):
        above = (probabilities[:, i] > estimate(probabilities, 97)[i, i]).sum()
        assert 0.03 * 200 - 1 <= int(above) <= 0.03 * 200 + 1


def extra(name: str, first: Run) -> dict[str, Any]:
    return {"correction": name, "correction_from": first if load("corrections", name).NEEDS_FIRST else None}


@pytest.mark.parametrize("name", CORRECTIONS)
@pytest.mark.parametrize("method", ["none", "se-snn"])
def test_a_crashed_run_ends_like_an_uninterrupted_one(
    data: Dataset, first: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, method: str
) -> None:
    def make(**more: Any) -> Run:
        return train(small_run(), data, OPTIONS, method=method, **extra(name, first), **more)

    whole = make(out=tmp_path / "whole")
    assert_same(whole, crash_and_resume(make, monkeypatch, tmp_path / "run", 5))
    assert history(tmp_path / "whole") == history(tmp_path / "run")
    plain = train(small_run(), data, OPTIONS, method=method)
    assert any(
        not torch.equal(tensor, plain.model.state_dict()[key]) for key, tensor in whole.model.state_dict().items()
    )


@pytest.mark.parametrize("name", CORRECTIONS)
def test_the_record(data: Dataset, first: Run, tmp_path: Path, name: str) -> None:
    module: ModuleType = load("corrections", name)
    run = train(small_run(), data, replace(OPTIONS, epochs=0), **extra(name, first), out=tmp_path / "run")
    assert run.config["correction"] == {
        "name": name, "value": module.DEFAULT, "from": "mlp" if module.NEEDS_FIRST else None
    }  # fmt: skip
    if module.NEEDS_FIRST:
        matrix = torch.tensor(json.loads((tmp_path / "run" / "corruption.json").read_text()))
        feed = make_feed(data, None, OPTIONS, first.normalization, CPU)
        with torch.no_grad():
            said = torch.cat([first.model(inputs).softmax(1) for inputs, _ in feed.plain.epoch(0)])
        torch.testing.assert_close(matrix, estimate(said, 97))
        torch.testing.assert_close(matrix.sum(1), torch.ones(4))
    assert train(run, data, replace(OPTIONS, epochs=0)).config["correction"] is None


def test_with_the_true_matrix_most_labels_may_be_wrong(tmp_path: Path) -> None:
    """Theorem 2: what minimizes the corrected loss knows the true classes, though 80% of the labels are wrong."""
    source = write_npz(tmp_path / "quarters.npz", 2000)
    noisy, clean = (load_data(source, label_noise=noise) for noise in ("patterned:0.8", "none"))
    matrix = 0.2 * torch.eye(4) + 0.8 * F.one_hot(partners(4, seed=0), 4)
    assert float(matrix.det().abs()) > 0.01  # the pattern of this seed can be undone
    inputs, labels = clean.validation.batch(torch.arange(len(clean.validation)))
    errors = []
    for loss in (None, corrected(matrix)):
        run = train(small_run(), noisy, replace(OPTIONS, epochs=8), loss=loss)
        with torch.no_grad():
            predicted = run.model((inputs.float() / 255 - 0.5) / 0.5).argmax(1)
        errors.append(float((predicted != labels).float().mean()))
    assert errors[0] > 0.6
    assert errors[1] < 0.35


def test_refusals(data: Dataset, first: Run, tmp_path: Path) -> None:
    noisy = replace(first, data={"name": "x", "label_noise": "uniform:0.1"})
    for message, options in {
        "unknown correction 'forwards'; did you mean 'forward'": {"correction": "forwards"},
        "--correction forward learns from a run on the same labels": {"correction": "forward"},
        "needs no other run": {"correction": "bootstrap-hard", "correction_from": first},
        "is no number; write bootstrap-hard:0.8": {"correction": "bootstrap-hard:x"},
        "bootstrap-soft:1.5 is out of range": {"correction": "bootstrap-soft:1.5"},
        "forward:0 is out of range": {"correction": "forward:0", "correction_from": first},
        "a correction or a loss": {"correction": "bootstrap-hard", "loss": F.cross_entropy},
        "which the loss of --correction bootstrap-soft is not": {
            "correction": "bootstrap-soft", "posterior": PosteriorOptions(samples=10),
        },
        "would teach their noise": {"correction": "forward", "correction_from": first, "teacher": noisy},
        "--correction-from mlp: it takes": {"correction": "forward", "correction_from": other_shape()},
    }.items():  # fmt: skip
        with pytest.raises(UsageError, match=message):
            train(small_run(), data, OPTIONS, out=tmp_path / "run", **options)  # type: ignore[arg-type]
        assert not (tmp_path / "run").exists()


def other_shape() -> Run:
    run = small_run()
    return replace(run, model=torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(81, 4)), input_shape=(1, 9, 9))


def test_a_first_run_on_other_labels_is_refused(data: Dataset, first: Run) -> None:
    ours = replace(small_run(), data={"name": "x", "seed": 0, "label_noise": "patterned:0.3"})
    theirs = replace(first, data={"name": "x", "seed": 0})
    with pytest.raises(UsageError, match="trained with label noise None, this run has patterned"):
        train(ours, data, OPTIONS, correction="forward", correction_from=theirs)


def test_numbers_have_no_wrong_classes(tmp_path: Path) -> None:
    table = load_data(write_table(tmp_path / "table.npz"))
    run = replace(
        small_run(), model=torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(6, 1)), input_shape=(6, 1, 1)
    )
    with pytest.raises(UsageError, match="labels that are classes, but mlp predicts a number"):
        train(run, table, OPTIONS, correction="bootstrap-hard")


def test_a_teacher_and_a_correction_together(data: Dataset, first: Run, tmp_path: Path) -> None:
    clean = train(small_run(2), small_data(tmp_path), OPTIONS)
    for name in CORRECTIONS:
        run = train(small_run(), data, replace(OPTIONS, epochs=1), teacher=clean, **extra(name, first))
        assert run.config["distill"] is not None
        assert run.config["correction"]["name"] == name


def test_own_batches_can_be_corrected() -> None:
    run = train(small_run(), batches(), replace(OPTIONS, epochs=1), correction="bootstrap-hard:0.5")
    assert run.config["correction"]["value"] == 0.5
