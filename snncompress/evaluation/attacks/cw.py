"""``cw``: the shortest change that fools, found by optimization; strengths are Euclidean lengths.

    min over x' in 0..1 of ‖x' − x‖² + c·f(x'),   f = (z_y − max_{j≠y} z_j)⁺

with Adam, projected into 0..1 after each step (one of the paper's three ways; in the other, x' = ½(tanh w + 1), a black
pixel is where tanh is flat, and hundreds of steps do not leave it). Towards a class t that was drawn, f is
(max_{j≠t} z_j − z_t)⁺. c is searched for each image: from 1 over the margin of the image itself, so that the scale of
the logits does not matter, ten times larger until the attack succeeds (z are log-probabilities of averaged samples
then), and by bisection from there on. The shortest success is kept. With samples k of the noise, f is the mean of
(z_ky − max z_kj)⁺, or the same of averaged probabilities (``victim.py``).

Accuracy against c, or against the length that was found, depends on how lucky the samples of noise were in 1,000 tries
at the boundary. So the change δ that was found is stretched or shrunk to each length r of a curve,
x' = clip(x + r·δ/‖δ‖, 0, 1), and judged by fresh samples. The change itself, its length and its success come last.

Carlini, Wagner: Towards Evaluating the Robustness of Neural Networks, IEEE S&P 2017.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from snncompress.evaluation.attacks.plan import LENGTHS, AttackPlan
from snncompress.evaluation.attacks.victim import Gradient, Victim, margin

EPS = LENGTHS
STEPS = 200
RATE = 0.01  # Adam's, as published
FINDS_SHORTEST = True  # yields one more: the shortest change that was found


def count_gradients(plan: AttackPlan) -> int:
    """Gradients a batch."""
    return plan.searches * (plan.steps or STEPS)


def attack(victim: Victim, pixels: Tensor, aims: Tensor, plan: AttackPlan) -> Iterator[Tensor]:
    """The attacked images for each length, in their order, then as found; arguments as in ``fgs.py``."""
    found = search(victim, pixels, aims, plan)
    change = found - pixels
    length = lengths(change).clamp_min(1e-12).view(-1, *[1] * (pixels.dim() - 1))
    for eps in plan.eps:
        yield (pixels + change * (eps / length)).clamp(0, 1)
    yield found


def search(victim: Victim, pixels: Tensor, aims: Tensor, plan: AttackPlan) -> Tensor:
    """The shortest change of each image that fooled; where none did, the one that came closest."""
    with torch.no_grad():
        first = victim.logits(pixels, victim.gradient_samples).float().log_softmax(-1)
        weight = 1 / margin(first, aims).abs().mean(0).clamp_min(1e-3)  # c
    low, high = torch.zeros_like(weight), torch.full_like(weight, torch.inf)
    best, shortest = pixels.clone(), torch.full_like(weight, torch.inf)
    closest = torch.full_like(weight, torch.inf)  # of those that never fooled
    for _ in range(plan.searches):
        attacked = pixels.clone().requires_grad_()
        optimizer = torch.optim.Adam([attacked], lr=RATE)
        fooled = torch.zeros_like(weight, dtype=torch.bool)
        for _ in range(plan.steps or STEPS):
            log_p = victim.logits(attacked, victim.gradient_samples).float().log_softmax(-1)
            squares = (attacked - pixels).flatten(1).square().sum(1)
            cost, lead = _goal(victim, log_p, aims, plan.targeted)
            optimizer.zero_grad()
            (squares + weight * cost).sum().backward()
            victim.tick()
            with torch.no_grad():
                moved = squares > 0  # an image that is wrong by chance, as it is, tells no direction
                success = moved & (lead < 0)
                better = torch.where(success, squares < shortest, moved & shortest.isinf() & (lead < closest))
                best[better] = attacked[better]
                shortest = torch.where(success, torch.minimum(shortest, squares), shortest)
                closest = torch.where(moved, torch.minimum(closest, lead), closest)
                fooled |= success
            optimizer.step()
            attacked.data.clamp_(0, 1)
        high = torch.where(fooled, torch.minimum(high, weight), high)
        low = torch.where(fooled, low, torch.maximum(low, weight))
        weight = torch.where(high.isinf(), 10 * weight, (low + high) / 2)
    return best.detach()


def _goal(victim: Victim, log_p: Tensor, aims: Tensor, targeted: bool) -> tuple[Tensor, Tensor]:
    """f, and how far the prediction is from being fooled, (B,)."""
    sign = -1 if targeted else 1
    lead = sign * margin(log_p.logsumexp(0), aims)
    if victim.gradient_kind is Gradient.AVERAGED:
        return lead.relu(), lead.detach()
    return (sign * margin(log_p, aims)).relu().mean(0), lead.detach()


def lengths(changes: Tensor) -> Tensor:
    """The Euclidean length of each change, (B,)."""
    norms: Tensor = torch.linalg.vector_norm(changes.flatten(1), dim=1)
    return norms
