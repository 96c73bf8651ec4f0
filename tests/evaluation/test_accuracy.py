"""Error and NLL against numbers worked out by hand, and what must be refused."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from snncompress.errors import DataError, ModelError
from snncompress.evaluation.accuracy import Evaluation, evaluate
from snncompress.progress import Progress

LOGITS = torch.tensor([[2.0, 0.0], [0.0, 1.0], [3.0, 0.0], [0.0, 0.5]])
LABELS = torch.tensor([0, 1, 1, 0])


def test_by_hand() -> None:
    right, wrong = [2.0, 1.0], [3.0, 0.5]  # margins of the label's logit
    nll = sum(math.log1p(math.exp(-m)) for m in right) + sum(math.log1p(math.exp(m)) for m in wrong)
    result = evaluate(nn.Identity(), [(LOGITS[:3], LABELS[:3]), (LOGITS[3:], LABELS[3:])])
    assert result == Evaluation(error=50.0, nll=pytest.approx(nll / 4, rel=1e-6), samples=4)


def test_batching_changes_nothing() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    x, y = torch.randn(103, 6), torch.randint(4, (103,))
    whole = evaluate(model, [(x, y)])
    split = evaluate(model, zip(x.split(10), y.split(10), strict=True))
    assert (split.error, split.samples) == (whole.error, 103)
    assert split.nll == pytest.approx(whole.nll, rel=1e-6)


def test_modes_and_statistics_are_restored() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Dropout())
    model.train()
    model[1].eval()  # a frozen batch norm stays frozen
    evaluate(model, [(LOGITS, LABELS)])
    assert [module.training for module in model.modules()] == [True, True, False, True]
    with pytest.raises(DataError):
        evaluate(model, [(LOGITS, LABELS + 5)])
    assert [module.training for module in model.modules()] == [True, True, False, True]
    assert int(model[1].num_batches_tracked) == 0


def test_progress() -> None:
    class Heard(Progress):
        def __init__(self) -> None:
            self.heard: list[tuple[object, ...]] = []

        def start(self, task: str, total: int, done: int = 0) -> None:
            self.heard.append((task, total))

        def advance(self, steps: int = 1, **values: float) -> None:
            self.heard.append((steps, values["error"]))

        def finish(self) -> None:
            self.heard.append(("finish",))

    progress = Heard()
    evaluate(nn.Identity(), [(LOGITS[:2], LABELS[:2]), (LOGITS[2:], LABELS[2:])], progress, "test")
    assert progress.heard == [("test", 2), (1, 0.0), (1, 50.0), ("finish",)]


@pytest.mark.parametrize(
    ("logits", "labels", "error", "message"),
    [
        (LOGITS * math.nan, LABELS, ModelError, "NaN or infinite"),
        (LOGITS / 0, LABELS, ModelError, "NaN or infinite"),
        (LOGITS[:, :, None], LABELS, ModelError, r"shape \(4, 2, 1\)"),
        (LOGITS[:2], LABELS, ModelError, r"for 4 images is shape \(2, 2\)"),
        (LOGITS, LABELS + 1, DataError, "model has 2 classes and the data at least 3"),
        (LOGITS, LABELS - 1, DataError, "from -1 to 0"),
    ],
)
def test_refused(logits: Tensor, labels: Tensor, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        evaluate(nn.Identity(), [(logits, labels)])


def test_no_images() -> None:
    with pytest.raises(DataError, match="no images"):
        evaluate(nn.Identity(), [])


def test_output_that_is_no_tensor() -> None:
    class Pair(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return x, x

    with pytest.raises(ModelError, match="a tuple"):
        evaluate(Pair(), [(LOGITS, LABELS)])
