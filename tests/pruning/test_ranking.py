"""The order in which weights go: the least first, zeros before all, the best of a layer never."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from snncompress.pruning.options import Scope
from snncompress.pruning.ranking import Ranking

SHAPES = {"conv": (4, 3, 3, 3), "wide": (6, 40), "thin": (3, 5), "one": (1, 1)}
RANDOM = settings(derandomize=True, deadline=None, max_examples=15)


def make(scope: Scope = Scope.GLOBAL, zeros: float = 0.0, levels: int = 0, seed: int = 0) -> tuple[Any, Any, Ranking]:
    """Random scores of either sign, some weights zero already; ``levels`` makes ties."""
    generator = torch.Generator().manual_seed(seed)
    scores = {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}
    if levels:
        scores = {name: (score * levels).round() / levels for name, score in scores.items()}
    zero = {name: torch.rand(shape, generator=generator) < zeros for name, shape in SHAPES.items()}
    return scores, zero, Ranking(scores, zero, scope)


def flat(tensors: dict[str, Tensor]) -> Tensor:
    return torch.cat([tensors[name].flatten() for name in SHAPES])


cases = given(
    st.sampled_from(Scope), st.sampled_from([0.0, 0.3, 0.9, 1.1]), st.sampled_from([0, 2]), st.integers(0, 99)
)


@RANDOM
@cases
def test_counts_and_thresholds_fit_together(scope: Scope, zeros: float, levels: int, seed: int) -> None:
    scores, zero, ranking = make(scope, zeros, levels, seed)
    dead = flat(zero)
    assert ranking.total == len(dead)
    assert ranking.zeros == int(dead.sum())
    assert ranking.alive == ranking.total - ranking.zeros
    assert ranking.least == sum(not bool(z.all()) for z in zero.values())  # one a layer that has any
    before = torch.ones_like(dead)
    for stay in [*range(ranking.least, ranking.alive, 3), ranking.alive]:
        gone = ranking.gone(stay)
        assert {name: part.shape for name, part in gone.items()} == {name: s.shape for name, s in scores.items()}
        now = flat(gone)
        assert int((~now).sum()) == stay
        assert bool(now[dead].all())  # zeros stay zero
        assert not bool((now & ~before).any())  # with more to stay, nothing goes that stayed
        before = now
        threshold = ranking.threshold(stay)
        assert ranking.above(threshold) >= stay or math.isinf(threshold)
        if not levels and not math.isinf(threshold):  # no ties
            assert ranking.above(threshold) == stay
            assert ranking.gone(ranking.above(threshold)).keys() == gone.keys()
            assert torch.equal(flat(ranking.gone(ranking.above(threshold))), now)
    assert math.isinf(ranking.threshold(ranking.least))
    assert ranking.above(math.inf) == ranking.least
    assert ranking.above(-1e30) == ranking.alive


@RANDOM
@cases
def test_the_best_of_a_layer_never_goes(scope: Scope, zeros: float, levels: int, seed: int) -> None:
    scores, zero, ranking = make(scope, zeros, levels, seed)
    gone = ranking.gone(ranking.least)
    for name in SHAPES:
        alive = ~zero[name]
        if bool(alive.any()):
            kept = scores[name][~gone[name]]
            assert kept.tolist() == [float(scores[name][alive].max())]
        else:
            assert bool(gone[name].all())


@RANDOM
@given(st.sampled_from([0.0, 0.3]), st.sampled_from([0, 2]), st.integers(0, 99))
def test_globally_the_least_goes_first(zeros: float, levels: int, seed: int) -> None:
    scores, zero, ranking = make(Scope.GLOBAL, zeros, levels, seed)
    value = flat(scores).double().masked_fill(flat(zero), -math.inf).numpy()
    never = ~flat(ranking.gone(ranking.least)).numpy()
    order = np.argsort(np.where(never, np.inf, value), kind="stable")  # equal ones in their order
    for stay in range(ranking.least, ranking.alive + 1, 7):
        expected = np.ones(ranking.total, dtype=bool)
        expected[order[ranking.total - stay :]] = False
        assert np.array_equal(flat(ranking.gone(stay)).numpy(), expected)
        finite = value[~expected & ~never]
        assert ranking.threshold(stay) == (finite.min() if len(finite) else math.inf)


@RANDOM
@given(st.integers(0, 2), st.integers(0, 99))
def test_in_the_scope_of_a_layer_each_loses_the_same_share(levels: int, seed: int) -> None:
    scores, _, ranking = make(Scope.LAYER, 0.0, levels, seed)
    for stay in range(ranking.least, ranking.total + 1, 3):
        gone = ranking.gone(stay)
        kept = {name: int((~part).sum()) for name, part in gone.items()}
        bounds = [
            ((count - 1) / score.numel(), (count + 1) / score.numel())
            for score, count in zip(scores.values(), kept.values(), strict=True)
            if count > 1  # the one that never goes may be more than the share
        ]
        assert max([low for low, _ in bounds], default=0) <= min([high for _, high in bounds], default=1), stay
        for name, score in scores.items():
            if kept[name] < score.numel():  # within the layer, the least
                assert float(score[gone[name]].max()) <= float(score[~gone[name]].min())


def test_scores_of_layers_do_not_matter_in_the_scope_of_a_layer() -> None:
    scores, zero, ranking = make(Scope.LAYER, 0.2)
    louder = {name: score * 10.0**place + place for place, (name, score) in enumerate(scores.items())}
    other = Ranking(louder, zero, Scope.LAYER)
    for stay in range(ranking.least, ranking.alive, 11):
        assert torch.equal(flat(ranking.gone(stay)), flat(other.gone(stay)))
    loud = Ranking(louder, zero, Scope.GLOBAL)
    assert not torch.equal(flat(ranking.gone(100)), flat(loud.gone(100)))


def test_ties_go_in_the_order_of_the_network() -> None:
    scores = {"a": torch.ones(2, 3), "b": torch.ones(2, 2)}
    zero = {name: torch.zeros_like(score, dtype=torch.bool) for name, score in scores.items()}
    ranking = Ranking(scores, zero, Scope.GLOBAL)
    assert ranking.least == 2
    assert ranking.gone(5)["a"].flatten().tolist() == [True, True, True, True, True, False]  # the last is the best
    assert ranking.gone(5)["b"].flatten().tolist() == [False] * 4
    assert ranking.gone(2)["b"].flatten().tolist() == [True, True, True, False]
    assert ranking.above(1.0) == 10
    assert ranking.above(1.1) == 2


def test_zeros_come_before_scores_that_are_lower() -> None:
    scores = {"a": torch.tensor([[5.0, -3.0, -9.0, 1.0]])}
    ranking = Ranking(scores, {"a": torch.tensor([[True, False, False, False]])}, Scope.GLOBAL)
    assert (ranking.total, ranking.zeros, ranking.alive, ranking.least) == (4, 1, 3, 1)
    assert ranking.gone(3)["a"].tolist() == [[True, False, False, False]]
    assert ranking.gone(2)["a"].tolist() == [[True, False, True, False]]
    assert ranking.gone(1)["a"].tolist() == [[True, True, True, False]]  # 5 is the score of a weight that is gone
    assert ranking.threshold(2) == -3.0
    assert ranking.above(-3.0) == 2


def test_half_precision_and_scores_with_a_gradient() -> None:
    scores = {"a": torch.randn(3, 4, dtype=torch.bfloat16).requires_grad_()}
    ranking = Ranking(scores, {"a": torch.zeros(3, 4, dtype=torch.bool)}, Scope.GLOBAL)
    assert not ranking.gone(5)["a"].requires_grad
    assert int((~ranking.gone(5)["a"]).sum()) == 5


@pytest.mark.parametrize("scope", Scope)
def test_a_layer_without_a_weight_left(scope: Scope) -> None:
    scores = {"a": torch.randn(2, 2), "b": torch.randn(2, 2)}
    ranking = Ranking(
        scores, {"a": torch.ones(2, 2, dtype=torch.bool), "b": torch.zeros(2, 2, dtype=torch.bool)}, scope
    )
    assert (ranking.alive, ranking.least) == (4, 1)
    for stay in range(1, 5):
        assert bool(ranking.gone(stay)["a"].all())
