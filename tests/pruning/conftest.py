"""Trained runs to prune: a perceptron with noise, and a residual network with batch norms, both with dead neurons."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pruned import Residual
from small_data import CLASSES, IMAGE, small_data, small_run

from snncompress import TrainOptions, train, wrap
from snncompress.data.dataset import Dataset
from snncompress.run import Run


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return small_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="session")
def noisy(data: Dataset) -> Run:
    """A trained perceptron of 12 and 8 neurons with SE-SNN noise, one of its neurons dead."""
    run = train(small_run(), data, TrainOptions(epochs=4, lr=0.01, batch_size=64), method="se-snn")
    with torch.no_grad():
        first: Any = run.model.get_submodule("1")
        first.weight[3] = 0
        first.bias[3] = -1.0
    return run


@pytest.fixture(scope="session")
def residual(data: Dataset) -> Run:
    """A trained residual network without noise; of the block's neurons one is dead and one constant."""
    torch.manual_seed(0)
    run = wrap(Residual(), IMAGE, classes=CLASSES, normalization=small_run().normalization)
    run = train(run, data, TrainOptions(epochs=3, lr=0.01, batch_size=64))
    with torch.no_grad():
        norm: Any = run.model.get_submodule("last.1")
        norm.weight[:2] = 0
        norm.bias[0], norm.bias[1] = -1.0, 0.5  # a linear layer reads the constant
    return run


@pytest.fixture(scope="session")
def plain(data: Dataset) -> Run:
    """A trained perceptron of 12 and 8 neurons without noise."""
    return train(small_run(), data, TrainOptions(epochs=4, lr=0.01, batch_size=64))


@pytest.fixture(scope="session")
def drowned(data: Dataset) -> Run:
    """The same under sparse variational dropout: about half of its weights are zero."""
    options = TrainOptions(epochs=10, lr=0.01, batch_size=64)
    return train(small_run(), data, options, method="sparse-vd", method_options={"kl_scale": 0.05})


@pytest.fixture(scope="session")
def variances(data: Dataset) -> Run:
    """The same with a second layer whose weights have no mean."""
    options = TrainOptions(epochs=6, lr=0.01, batch_size=64)
    return train(small_run(), data, options, method="variance", layers=["3"])


@pytest.fixture(scope="session")
def blurred(data: Dataset) -> Run:
    """The same with a second layer whose mean is lost in its multiplicative noise."""
    options = TrainOptions(epochs=6, lr=0.01, batch_size=64)
    return train(small_run(), data, options, method="vd", method_options={"log_alpha": 12.0}, layers=["3"])
