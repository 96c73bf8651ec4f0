"""A run with a history, pruned from one with noise: what pages and pictures are made of."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_data import small_data, small_run

from snncompress.pruning.options import PruneOptions
from snncompress.pruning.pipeline import prune
from snncompress.training.loop import train
from snncompress.training.options import TrainOptions


@pytest.fixture(scope="session")
def family(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the runs ``noisy`` and ``small``, the one the parent of the other."""
    folder = tmp_path_factory.mktemp("family")
    data = small_data(folder)
    options = TrainOptions(epochs=2, lr=0.01, batch_size=64)
    words = ["snncompress", "train", "mlp", "--name", "<b>"]
    noisy = train(small_run(), data, options, method="se-snn", out=folder / "noisy", command=words)
    goals = PruneOptions(target_flops="40%", finetune_steps=2, final_epochs=1, step=4)
    prune(noisy, data, goals, options, out=folder / "small", command=["snncompress", "prune", "a run"])
    return folder
