"""The toy problem of Neklyudov et al., §3.2: what two zero-mean neurons can carry."""

from __future__ import annotations

import torch

from benchmarks.toy_variance import activations, make_data, measure, train


def test_four_classes_pass_a_bottleneck_of_two_variances() -> None:
    run = train(seed=1, epochs=60)
    result = measure(run, seed=1)
    assert result.sampled.averaged.error < 1
    assert result.sampled.one.error < 5
    assert result.mean.error > 60  # the mean is the same for all
    values, labels = activations(run, make_data(2000, seed=1001))
    spread = torch.stack([values[labels == index].std(0) for index in range(4)])  # (classes, neurons)
    assert float((values.mean(0) / values.std(0)).abs().max()) < 0.1
    assert float((spread.amax(0) / spread.amin(0)).max()) > 10
