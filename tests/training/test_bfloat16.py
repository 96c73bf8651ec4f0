from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from small_data import small_data, small_run
from torch import Tensor, nn

from snncompress import TrainOptions, train
from snncompress.data.dataset import Dataset
from snncompress.training.distillation import DistillOptions
from snncompress.training.options import Precision

OPTIONS = TrainOptions(epochs=3, lr=0.01, batch_size=64, precision=Precision.BFLOAT16)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return small_data(tmp_path_factory.mktemp("data"))


def watch_layers(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bool, torch.dtype]]:
    """Of each dense layer's calls, whether it was in training, and the type of what it gave."""
    seen: list[tuple[bool, torch.dtype]] = []
    forward = nn.Linear.forward

    def note(self: nn.Linear, inputs: Tensor) -> Tensor:
        outputs = forward(self, inputs)
        seen.append((self.training, outputs.dtype))
        return outputs

    monkeypatch.setattr(nn.Linear, "forward", note)
    return seen


def test_training_computes_in_bfloat16_and_everything_else_in_float32(
    data: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = watch_layers(monkeypatch)
    run = train(small_run(), data, OPTIONS)
    assert {kind for training, kind in seen if training} == {torch.bfloat16}
    assert {kind for training, kind in seen if not training} == {torch.float32}  # validation
    assert {p.dtype for p in run.model.parameters()} == {torch.float32}


@pytest.mark.parametrize("method", ["none", "se-snn", "sparse-vd"])
def test_it_learns_as_in_float32(data: Dataset, method: str) -> None:
    exact = train(small_run(), data, replace(OPTIONS, precision=Precision.FLOAT32), method=method)
    rough = train(small_run(), data, OPTIONS, method=method)
    errors = [run.metrics["validation"]["nll"] for run in (exact, rough)]
    assert errors[0] != errors[1]
    assert errors[1] == pytest.approx(errors[0], rel=0.1, abs=0.05)


def test_a_teacher_computes_in_it_too(data: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    teacher = train(small_run(), data, replace(OPTIONS, precision=Precision.FLOAT32))
    seen = watch_layers(monkeypatch)
    layers = tuple(name for name, layer in teacher.model.named_modules() if isinstance(layer, nn.Linear))[:1]
    train(small_run(), data, replace(OPTIONS, epochs=1), teacher=teacher, distill=DistillOptions(layers=layers))
    assert (False, torch.bfloat16) in seen  # a teacher is in evaluation
