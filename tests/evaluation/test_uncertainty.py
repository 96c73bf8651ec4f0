"""Scores of single samples: worked out by hand, told apart by group, and ranked for suspects."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from small_data import IMAGE, batches, make_images, small_run, write_npz, write_table
from torch import Tensor, nn

import snncompress
from snncompress import TrainOptions, load_data, train
from snncompress.data.dataset import Dataset
from snncompress.errors import UsageError
from snncompress.evaluation.auroc import auroc
from snncompress.evaluation.ood import detect_outliers
from snncompress.evaluation.suspects import find_suspects
from snncompress.evaluation.uncertainty import Score, score_samples
from snncompress.noise.attach import attach
from snncompress.registry import entries
from snncompress.run import NoiseRecord, Run

DATA = batches(90, size=40)  # the last one is smaller
OPTIONS = TrainOptions(epochs=6, lr=0.01, batch_size=64)


def noisy_run(run: Run, method: str = "se-snn", **options: Any) -> Run:
    """A run with branches whose parameters are drawn, so that σ differs between samples."""
    model = copy.deepcopy(run.model)
    noise = attach(model, method, run.input_shape, options)
    torch.manual_seed(3)
    for _, parameter in noise.named_parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    noise.detach()
    return replace(run, noise=NoiseRecord.of(noise))


def convolutional() -> Run:
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(108, 5), nn.ReLU()]
    return snncompress.wrap(nn.Sequential(*layers, nn.Linear(5, 4)), IMAGE)


def entropy(p: Tensor) -> Tensor:
    return -(p * p.log()).sum(-1)


def test_by_the_mean_by_hand() -> None:
    run = small_run()
    found = score_samples(run, DATA)
    inputs, labels = (torch.cat(parts) for parts in zip(*DATA, strict=True))
    with torch.no_grad():
        p = run.model(inputs).softmax(-1)
    assert found.scores.keys() == {Score.ENTROPY, Score.LOSS}
    torch.testing.assert_close(found.scores[Score.ENTROPY], entropy(p))
    torch.testing.assert_close(found.scores[Score.LOSS], -p[torch.arange(90), labels].log())
    assert torch.equal(found.predicted, p.argmax(-1))
    assert torch.equal(found.labels, labels)


def test_by_samples_by_hand() -> None:
    run = noisy_run(small_run())
    inputs, labels = DATA[0]
    found = score_samples(run, DATA[:1], draws=3, seed=7)
    model = copy.deepcopy(run.model).eval()
    run.attach_noise(model)
    torch.manual_seed(7)
    with torch.no_grad():
        p = torch.stack([model(inputs).softmax(-1) for _ in range(3)])
    torch.testing.assert_close(found.scores[Score.ENTROPY], entropy(p.mean(0)))
    torch.testing.assert_close(
        found.scores[Score.INFORMATION], entropy(p.mean(0)) - entropy(p).mean(0), rtol=1e-4, atol=1e-6
    )
    torch.testing.assert_close(found.scores[Score.LOSS], -p.mean(0)[torch.arange(40), labels].log())
    assert float(found.scores[Score.INFORMATION].min()) > -1e-6  # Jensen


def test_one_sample_carries_no_mutual_information() -> None:
    found = score_samples(noisy_run(small_run()), DATA, draws=1)
    torch.testing.assert_close(found.scores[Score.INFORMATION], torch.zeros(90), atol=1e-6, rtol=0)


@pytest.mark.parametrize("make", [small_run, convolutional])
def test_sigma_by_hand(make: Any) -> None:
    """σ is what a layer's own operation gives with f_σ's weights, and every layer counts alike."""
    run = noisy_run(make())
    assert run.noise is not None
    inputs, _ = DATA[0]
    wanted, x = [], inputs
    with torch.no_grad():
        for name, module in run.model.eval().named_children():
            if f"{name}.weight" in run.noise.tensors:
                head = copy.deepcopy(module)
                head.weight.copy_(run.noise.tensors[f"{name}.weight"])
                head.bias.copy_(run.noise.tensors[f"{name}.bias"])
                wanted.append(nn.functional.softplus(head(x)).log().flatten(1).mean(1))
            x = module(x)
    assert len(wanted) == 2
    torch.testing.assert_close(score_samples(run, DATA[:1]).scores[Score.SIGMA], torch.stack(wanted).mean(0))


@pytest.mark.parametrize("method", entries("methods"))
def test_sigma_is_there_where_the_noise_depends_on_the_sample(method: str) -> None:
    run = noisy_run(small_run(), method)
    assert (Score.SIGMA in score_samples(run, DATA, draws=2).scores) == (method in ("se-snn", "vib"))


def test_the_run_and_the_random_numbers_are_left_alone() -> None:
    run = noisy_run(small_run())
    before, state = copy.deepcopy(run.model.state_dict()), torch.get_rng_state()
    first = score_samples(run, DATA, draws=2)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(tensor, before[name]) for name, tensor in run.model.state_dict().items())
    again = score_samples(run, DATA, draws=2)
    assert all(torch.equal(values, again.scores[name]) for name, values in first.scores.items())


def test_a_plain_run_cannot_be_sampled() -> None:
    with pytest.raises(UsageError, match="not trained with noise"):
        score_samples(small_run(), DATA, draws=2)


@pytest.fixture(scope="module")
def spoilt(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return load_data(write_npz(tmp_path_factory.mktemp("data") / "q.npz", 2000), label_noise="uniform:0.2")


@pytest.fixture(scope="module")
def trained(spoilt: Dataset) -> Run:
    return train(small_run(), spoilt, OPTIONS)


def test_wrong_labels_have_large_losses(spoilt: Dataset, trained: Run) -> None:
    found = find_suspects(trained, spoilt, 100)
    assert found.score is Score.LOSS
    assert found.samples == len(spoilt.train)
    assert [suspect.score for suspect in found.found] == sorted((s.score for s in found.found), reverse=True)
    assert spoilt.truth is not None
    wrong = spoilt.train.labels != spoilt.truth
    for suspect in found.found:
        assert suspect.given == int(spoilt.train.labels[suspect.index])
        assert suspect.truth == int(spoilt.truth[suspect.index])
        assert suspect.name == str(spoilt.train.names[suspect.index])
    assert found.flipped == pytest.approx(100 * sum(bool(wrong[s.index]) for s in found.found) / 100)
    assert found.flipped_overall == pytest.approx(100 * float(wrong.float().mean()))
    assert found.flipped > 60  # 20 by guessing
    assert found.auroc is not None
    assert found.auroc > 0.75


def test_the_loss_ranks_unless_told(spoilt: Dataset, trained: Run) -> None:
    run = noisy_run(trained)
    assert find_suspects(run, spoilt, 5).score is Score.LOSS
    assert find_suspects(run, spoilt, 5, by=Score.SIGMA).score is Score.SIGMA
    assert find_suspects(run, spoilt, 5, by=Score.ENTROPY).score is Score.ENTROPY
    assert find_suspects(run, spoilt, 5, by=Score.INFORMATION, draws=2).score is Score.INFORMATION


def test_without_noise_nobody_knows_the_truth(tmp_path: Path, trained: Run) -> None:
    found = find_suspects(trained, load_data(write_npz(tmp_path / "q.npz")), 3)
    assert (found.flipped, found.flipped_overall, found.auroc) == (None, None, None)
    assert found.found[0].truth is None
    assert found.to_json()["suspects"][0].keys() == {"index", "name", "score", "given", "predicted", "truth"}


def test_impossible_questions(spoilt: Dataset, trained: Run, tmp_path: Path) -> None:
    table = load_data(write_table(tmp_path / "table.npz"))
    for message, data, count, by in (
        ("--suspects 0 is out of range", spoilt, 0, None),
        ("--suspects 9999 is out of range", spoilt, 9999, None),
        ("noise does not depend on the sample", spoilt, 5, Score.SIGMA),
        ("give --samples 20", spoilt, 5, Score.INFORMATION),
        ("predicts a number", table, 5, None),
    ):
        with pytest.raises(UsageError, match=message):
            find_suspects(trained, data, count, by=by)


def test_outliers(trained: Run) -> None:
    """Each score's AUROC is that of its values, and images without any bright quarter are unusual."""
    pixels, _ = make_images(120, seed=5)
    flat = [(torch.full((60, *IMAGE), 0.0), torch.full((60,), 9.5))]  # labels that mean nothing to the run
    ours = [((pixels.float() / 255 - 0.5) / 0.5, torch.zeros(120, dtype=torch.int64))]
    run = noisy_run(trained)
    found = detect_outliers(run, ours, flat, draws=4, seed=2)
    assert (found.inside_samples, found.outside_samples, found.draws) == (120, 60, 4)
    assert [each.score for each in found.detections] == [Score.ENTROPY, Score.INFORMATION, Score.SIGMA]
    inside, outside = (score_samples(run, data, draws=4, labelled=False, seed=2).scores for data in (ours, flat))
    for each in found.detections:
        assert each.inside == pytest.approx(float(inside[each.score].mean()))
        assert each.auroc == auroc(inside[each.score], outside[each.score])
    plain = detect_outliers(trained, ours, flat)
    assert [each.score for each in plain.detections] == [Score.ENTROPY]
    assert plain.detections[0].auroc > 0.8
