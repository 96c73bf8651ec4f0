"""The AUROC by ranks is the share of pairs that are in order, ties counted half."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from snncompress.errors import DataError
from snncompress.evaluation.auroc import auroc

SCORES = st.lists(st.integers(-3, 3), min_size=1, max_size=25)  # few values: many ties


@settings(derandomize=True, deadline=None, max_examples=60)
@given(negatives=SCORES, positives=SCORES)
def test_it_counts_pairs(negatives: list[int], positives: list[int]) -> None:
    pairs = [(p > n) + 0.5 * (p == n) for p in positives for n in negatives]
    low, high = torch.tensor(negatives).float(), torch.tensor(positives).float()
    assert auroc(low, high) == pytest.approx(sum(pairs) / len(pairs), abs=1e-12)
    assert auroc(high, low) == pytest.approx(1 - auroc(low, high), abs=1e-12)
    assert auroc(low.exp(), high.exp()) == auroc(low, high)  # only the order matters


def test_many_scores_stay_exact() -> None:
    torch.manual_seed(0)
    low, high = torch.randn(30_000), torch.randn(20_000) + 1
    wanted = 0.5 * (1 + torch.erf(torch.tensor(0.5)))  # P(N(1, 2) > 0)
    assert auroc(low, high) == pytest.approx(float(wanted), abs=0.01)
    assert auroc(low, low) == 0.5


def test_no_groups_and_no_numbers_are_refused() -> None:
    some = torch.zeros(3)
    for low, high in ((some, some[:0]), (some[:0], some)):
        with pytest.raises(DataError, match="one of them is empty"):
            auroc(low, high)
    with pytest.raises(DataError, match="NaN"):
        auroc(some, torch.tensor([float("nan")]))
