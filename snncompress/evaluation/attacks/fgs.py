"""``fgs``: one step of the same length in every pixel, along the sign of the loss's gradient.

    x' = clip(x + ε·sign ∇_x L(x, y), 0, 1)

for the label y; towards a class t that was drawn, x' = clip(x − ε·sign ∇_x L(x, t), 0, 1). The gradient does not depend
on ε: it is computed once for all.

Goodfellow, Shlens, Szegedy: Explaining and Harnessing Adversarial Examples, ICLR 2015.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from snncompress.evaluation.attacks.plan import PIXELS, AttackPlan
from snncompress.evaluation.attacks.victim import Victim

EPS = PIXELS


def count_gradients(plan: AttackPlan) -> int:
    """Gradients a batch."""
    return 1


def attack(victim: Victim, pixels: Tensor, aims: Tensor, plan: AttackPlan) -> Iterator[Tensor]:
    """The attacked images for each ε, in their order.

    Args:
        victim: what is attacked.
        pixels: images in 0..1.
        aims: their labels, or the classes that a targeted attack aims at.
        plan: the strengths, and whether the attack is targeted.
    """
    direction = victim.ascent(pixels, aims)
    for eps in plan.eps:
        yield take_step(pixels, direction, -eps if plan.targeted else eps)


def take_step(pixels: Tensor, direction: Tensor, length: float) -> Tensor:
    """The step itself; a negative length goes down."""
    return (pixels + length * direction.sign()).clamp(0, 1)
