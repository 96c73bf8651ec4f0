"""``pgd``: many steps along the sign of the gradient inside the ε-ball, from a random start.

    x_0 = clip(x + u, 0, 1),  u ~ U(−ε, ε)
    x_{t+1} = Π(x_t + α·sign ∇_x L(x_t, y)),   Π: into |x' − x| ≤ ε and 0..1,   α = 2.5·ε/steps

against the gradient of L(x_t, t) towards a class t that was drawn. Every ε is an attack of its own.

Madry, Makelov, Schmidt, Tsipras, Vladu: Towards Deep Learning Models Resistant to Adversarial Attacks, ICLR 2018.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from snncompress.evaluation.attacks.fgs import take_step
from snncompress.evaluation.attacks.plan import PIXELS, AttackPlan
from snncompress.evaluation.attacks.victim import Victim

EPS = PIXELS
STEPS = 40
REACH = 2.5  # a path can cross the ball and come back


def count_gradients(plan: AttackPlan) -> int:
    """Gradients a batch."""
    return (plan.steps or STEPS) * sum(eps > 0 for eps in plan.eps)


def attack(victim: Victim, pixels: Tensor, aims: Tensor, plan: AttackPlan) -> Iterator[Tensor]:
    """The attacked images for each ε, in their order; arguments as in ``fgs.py``."""
    steps = plan.steps or STEPS
    for eps in plan.eps:
        if eps == 0:
            yield pixels
            continue
        start = torch.empty_like(pixels).uniform_(-eps, eps)
        yield climb(victim, pixels, (pixels + start).clamp(0, 1), aims, eps, steps, plan.targeted)


def climb(
    victim: Victim, pixels: Tensor, attacked: Tensor, aims: Tensor, eps: float, steps: int, targeted: bool
) -> Tensor:
    """The path from ``attacked`` inside the ε-ball around ``pixels``."""
    length = REACH * eps / steps
    for _ in range(steps):
        attacked = take_step(attacked, victim.ascent(attacked, aims), -length if targeted else length)
        attacked = pixels + (attacked - pixels).clamp(-eps, eps)
    return attacked.clamp(0, 1)  # rounding may leave 0..1 by a digit
