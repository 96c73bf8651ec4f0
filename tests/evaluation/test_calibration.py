"""Calibration against torchmetrics and against its definitions: bins, temperatures, samples, Eq. 8."""

from __future__ import annotations

import importlib
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from small_data import batches, small_run
from torch import Tensor

import snncompress
from snncompress.data.task import Task
from snncompress.errors import UsageError
from snncompress.evaluation.calibration import Calibration, Prediction, Scaling, calibrate
from snncompress.evaluation.predictions import predict
from snncompress.evaluation.reliability import measure_reliability, measure_score
from snncompress.evaluation.sampling import evaluate_samples
from snncompress.evaluation.temperature import MOST, fit_temperature, scaled
from snncompress.run import Run
from snncompress.training.options import TrainOptions

CASES = {"derandomize": True, "deadline": None, "max_examples": 40}


def torchmetrics_error(probabilities: Tensor, labels: Tensor, bins: int) -> float:
    importlib.import_module("snncompress.vision")  # torchvision has to come first, as snncompress imports it
    measure = importlib.import_module("torchmetrics.functional.classification").multiclass_calibration_error
    return 100 * float(measure(probabilities, labels, probabilities.shape[1], n_bins=bins, norm="l1"))


def make(images: int, classes: int, sharpness: float, seed: int) -> tuple[Tensor, Tensor]:
    """Logits and labels that are drawn from their probabilities, some of them wrong."""
    generator = torch.Generator().manual_seed(seed)
    logits = sharpness * torch.randn(images, classes, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator).squeeze(1)
    return logits, labels


@settings(**CASES)  # type: ignore[arg-type]
@given(st.integers(1, 300), st.integers(2, 12), st.floats(0.1, 8), st.integers(1, 20), st.integers(0, 1000))
def test_the_error_is_that_of_torchmetrics(images: int, classes: int, sharpness: float, bins: int, seed: int) -> None:
    logits, labels = make(images, classes, sharpness, seed)
    probabilities = logits.softmax(1)
    found = measure_reliability(probabilities, labels, bins)
    wanted = torchmetrics_error(probabilities, labels, bins)  # in single precision
    assert found.ece / 100 == pytest.approx(wanted / 100, abs=1e-6)
    assert sum(found.counts) == images
    assert measure_score(logits, labels, bins).ece == pytest.approx(found.ece, abs=1e-9)


def test_full_confidence_is_in_the_last_bin() -> None:
    """Torchmetrics opens a sixteenth for it, which Eq. 10 does not have."""
    probabilities = torch.tensor([[1.0, 0.0], [0.97, 0.03]])
    found = measure_reliability(probabilities, torch.tensor([1, 0]))
    assert found.counts == (*[0] * 14, 2)
    assert found.ece == pytest.approx(100 * abs(0.5 - 0.985), abs=1e-4)


def test_scores_by_hand() -> None:
    logits = torch.tensor([[0.75, 0.25], [0.75, 0.25], [0.4, 0.6]]).log()
    score = measure_score(logits, torch.tensor([0, 1, 1]))
    assert score.error == pytest.approx(100 / 3)
    assert score.nll == pytest.approx(-(math.log(0.75) + math.log(0.25) + math.log(0.6)) / 3)
    assert score.brier == pytest.approx((2 * 0.25**2 + 2 * 0.75**2 + 2 * 0.4**2) / 3)
    assert score.ece == pytest.approx(100 * (2 * abs(0.5 - 0.75) + abs(1 - 0.6)) / 3, abs=1e-5)


@settings(**CASES)  # type: ignore[arg-type]
@given(st.floats(0.05, 20), st.integers(0, 1000), st.booleans())
def test_the_temperature_is_found_again(temperature: float, seed: int, sample_wise: bool) -> None:
    """Logits that are calibrated, made too sharp or too soft, get their temperature back, up to chance."""
    logits, labels = make(3000, 5, 2.0, seed)
    spread = torch.rand(3000, generator=torch.Generator().manual_seed(seed)) + 0.5 if sample_wise else None
    best = fit_temperature(logits, labels)
    off = scaled(logits, 1 / temperature) if spread is None else logits * temperature * spread[:, None].double()
    found = fit_temperature(off, labels, spread)
    assert best == pytest.approx(1, rel=0.15)
    assert found == pytest.approx(best * temperature, rel=1e-3)

    def nll(t: float) -> float:
        return float(F.cross_entropy(scaled(off, t, spread), labels))

    assert nll(found) <= min(nll(found * 1.01), nll(found / 1.01), nll(1.0)) + 1e-12


def test_answers_that_are_all_right_end_at_the_bound() -> None:
    logits = torch.eye(4)
    found = fit_temperature(logits, torch.arange(4))
    assert math.exp(-MOST) <= found < 0.1
    assert fit_temperature(-logits, torch.arange(4)) > 10  # all wrong: as soft as can be


@settings(**CASES)  # type: ignore[arg-type]
@given(st.floats(1e-3, 1e3), st.integers(0, 1000))
def test_no_temperature_changes_an_answer(temperature: float, seed: int) -> None:
    logits, labels = make(50, 6, 3.0, seed)
    spread = torch.rand(50, generator=torch.Generator().manual_seed(seed)) * 10 + 0.01
    for each in (scaled(logits, temperature), scaled(logits, temperature, spread)):
        assert torch.equal(each.argmax(1), logits.argmax(1))
        assert measure_score(each, labels).error == measure_score(logits, labels).error


@pytest.fixture(scope="module")
def runs() -> dict[str, Run]:
    found: dict[str, Run] = {}
    options: dict[str, dict[str, Any]] = {
        "se-snn": {"place": "input", "aggregate": "sample"}, "dropout": {"rate": 0.3}, "variance": {}, "none": {},
    }  # fmt: skip
    for method, chosen in options.items():
        training = TrainOptions(epochs=3, lr=0.01, batch_size=50)
        found[method] = snncompress.train(small_run(), batches(), training, method=method, method_options=chosen)
    return found


def look(run: Run, draws: int = 0, **options: Any) -> Calibration:
    return calibrate(run, batches(200, seed=1), batches(200, seed=2), draws=draws, **options)


def test_the_rows(runs: dict[str, Run]) -> None:
    def ways(run: Run, draws: int) -> list[tuple[str, str]]:
        return [(str(row.prediction), str(row.scaling)) for row in look(run, draws).rows]

    three, two = ["none", "temperature", "sample-wise"], ["none", "temperature"]
    assert ways(runs["none"], 0) == [("mean", each) for each in two]
    assert ways(runs["dropout"], 2) == [(way, each) for way in ("mean", "averaged") for each in two]
    assert ways(runs["se-snn"], 2) == [(way, each) for way in ("mean", "averaged") for each in three]
    assert ways(runs["variance"], 2) == [("averaged", each) for each in two]  # its mean carries nothing


def test_temperatures_are_fitted_on_validation_images_and_leave_answers_alone(runs: dict[str, Run]) -> None:
    found = look(runs["se-snn"], 5)
    for prediction in Prediction:
        rows = [found.row(prediction, scaling) for scaling in Scaling]
        assert len({row.score.error for row in rows if row is not None}) == 1
        plain, tempered, _ = rows
        assert plain is not None
        assert tempered is not None
        assert tempered.validation_nll <= plain.validation_nll  # T = 1 was among those to choose from
    again = look(runs["se-snn"], 5)
    assert again == found  # the seed decides
    assert found.chosen in (Scaling.TEMPERATURE, Scaling.SAMPLE_WISE)
    assert look(runs["se-snn"], use=Scaling.SAMPLE_WISE).chosen is Scaling.SAMPLE_WISE
    assert look(runs["variance"], 2).chosen is None


def test_equation_8_by_hand(runs: dict[str, Run]) -> None:
    run = runs["se-snn"]
    assert run.noise is not None
    weight, bias = run.noise.tensors["5.weight"], run.noise.tensors["5.bias"]
    images, labels = (torch.cat(part) for part in zip(*batches(200, seed=2), strict=True))
    with torch.no_grad():
        h = run.model[:5](images)  # type: ignore[index]
        logits = run.model(images)
    spread = F.softplus(h @ weight.T + bias).sum(1)
    found = look(run)
    row = found.row(Prediction.MEAN, Scaling.SAMPLE_WISE)
    assert row is not None
    assert row.temperature is not None
    assert found.sigma_layer == "5"
    p = (logits / (row.temperature * spread[:, None])).softmax(1)
    assert row.score.nll == pytest.approx(float(-p[torch.arange(200), labels].log().mean()), rel=1e-4)
    assert row.score.ece == pytest.approx(torchmetrics_error(p, labels, 15), abs=0.5)  # an image may change its bin


@pytest.mark.parametrize("method", ["dropout", "se-snn", "variance"])
def test_averages_are_those_of_evaluate(runs: dict[str, Run], method: str) -> None:
    """Also where only the classifier is stochastic, and the network before it is computed once."""
    run = runs[method]
    noise = run.attach_noise(run.model)
    assert noise is not None
    data = batches(200, seed=2)
    found = predict(run.model, noise, data, [1, 4], seed=3)
    assert list(found.averaged) == [1, 4]
    score = measure_score(found.averaged[4], found.labels)
    other = evaluate_samples(run.model, noise, data, 4, seed=3).averaged
    noise.detach()
    assert (score.error, score.nll) == (pytest.approx(other.error), pytest.approx(other.nll, rel=1e-5))


def test_the_curve_ends_at_the_averaged_rows(runs: dict[str, Run]) -> None:
    found = look(runs["se-snn"], 6)
    assert found.curve["draws"] == [1, 2, 3, 5, 6]
    for scaling in Scaling:
        row = found.row(Prediction.AVERAGED, scaling)
        assert row is not None
        assert found.curve[scaling][-1] == row.score.ece
    assert look(runs["none"]).curve == {}


def test_what_cannot_be_calibrated(runs: dict[str, Run]) -> None:
    for run, draws, message in (
        (replace(runs["none"], task=Task.REGRESSION), 0, "predicts a number"),
        (runs["none"], 5, "was not trained with noise"),
        (runs["variance"], 0, "only averaged samples can be calibrated; give --samples 20"),
        (runs["se-snn"], -1, "--samples -1 is out of range"),
    ):
        with pytest.raises(UsageError, match=message):
            look(run, draws)
    with pytest.raises(UsageError, match="needs noise that predicts σ"):
        look(runs["dropout"], use=Scaling.SAMPLE_WISE)
    with pytest.raises(UsageError, match="needs a mean network"):
        look(runs["variance"], 2, use=Scaling.TEMPERATURE)


def test_the_run_is_left_as_it_is(runs: dict[str, Run], tmp_path: Path) -> None:
    run = runs["se-snn"]
    before = {name: value.clone() for name, value in run.model.state_dict().items()}
    look(run, 2)
    assert all(torch.equal(value, before[name]) for name, value in run.model.state_dict().items())
    assert not any("forward" in module.__dict__ for module in run.model.modules())
