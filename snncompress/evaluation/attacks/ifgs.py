"""``ifgs``: many short steps along the sign of the loss's gradient, one path for all strengths.

    x_0 = x,   x_{t+1} = clip(x_t + α·sign ∇_x L(x_t, y), 0, 1)

and against the gradient of L(x_t, t) towards a class t that was drawn, as the variance networks were attacked (their
Figure 7: success after each iteration). No pixel has changed by more than t·α after t iterations, so one path holds the
attack for every ε: its point ⌈ε/α⌉, drawn back into the ε-ball where ε/α is no whole number. α is the largest ε over
``--steps``.

Goodfellow, Shlens, Szegedy 2015; Kurakin, Goodfellow, Bengio: Adversarial Examples in the Physical World, 2017;
Neklyudov, Molchanov, Ashukha, Vetrov: Variance Networks, ICLR 2019, §6.3.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from torch import Tensor

from snncompress.evaluation.attacks.fgs import take_step
from snncompress.evaluation.attacks.plan import PIXELS, AttackPlan
from snncompress.evaluation.attacks.victim import Victim

EPS = PIXELS
STEPS = 50


def count_gradients(plan: AttackPlan) -> int:
    """Gradients a batch."""
    return plan.steps or STEPS


def attack(victim: Victim, pixels: Tensor, aims: Tensor, plan: AttackPlan) -> Iterator[Tensor]:
    """The attacked images for each ε, in their order; arguments as in ``fgs.py``."""
    steps = plan.steps or STEPS
    length = max(plan.eps) / steps
    path, now = pixels, 0
    for eps in plan.eps:
        while now < math.ceil(eps / length - 1e-6 if length else 0):
            path = take_step(path, victim.ascent(path, aims), -length if plan.targeted else length)
            now += 1
        yield pixels + (path - pixels).clamp(-eps, eps)
