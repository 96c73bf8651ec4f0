"""Mixup: what is learned from are blends of two images.

    x = λ·xᵢ + (1 − λ)·xⱼ,    L = λ·L(yᵢ) + (1 − λ)·L(yⱼ),    λ ~ Beta(a, a), one a batch

xᵢ is the one that shows more: λ and 1 − λ are alike likely, so the larger is taken. A teacher judges the blend itself:
it says what it makes of images that lie between those it has learned by heart.

Zhang, Cisse, Dauphin, Lopez-Paz: mixup: Beyond Empirical Risk Minimization, ICLR 2018; with a teacher: Beyer, Zhai,
Royer, Markeeva, Anil, Kolesnikov: Knowledge distillation: A good teacher is patient and consistent, CVPR 2022.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Blend:
    """A batch of which every image is blended with another one."""

    inputs: Tensor
    share: float  # of the image itself, at least a half
    others: Tensor  # the targets of what it was blended with


def blend(inputs: Tensor, targets: Tensor, a: float, seed: int) -> Blend:
    """Blends a batch with itself in another order; what is drawn is decided by ``seed``."""
    generator = np.random.default_rng(seed)
    drawn = float(generator.beta(a, a))
    share = max(drawn, 1 - drawn)
    order = torch.from_numpy(generator.permutation(len(inputs))).to(inputs.device)
    return Blend(torch.lerp(inputs[order], inputs, share), share, targets[order])


def fingerprint(inputs: Tensor) -> int:
    """The same number for the same batch."""
    return int.from_bytes(hashlib.blake2b(inputs.cpu().numpy().tobytes(), digest_size=16).digest())
