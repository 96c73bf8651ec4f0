"""How a model is trained: the options that training and fine-tuning share."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from snncompress.errors import UsageError


class OptimizerName(StrEnum):
    """Optimizers."""

    ADAM = "adam"
    SGD = "sgd"


class Precision(StrEnum):
    """What forward and backward passes are computed in; weights are always updated in float32."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


class Schedule(StrEnum):
    """How the learning rate falls from its start to the end of training."""

    COSINE = "cosine"
    LINEAR = "linear"
    CONSTANT = "constant"


@dataclass(frozen=True)
class TrainOptions:
    """What to train with; the same defaults in Python and on the command line."""

    epochs: int = 10
    lr: float = 1e-3
    noise_lr: float | None = None  # of the noise's own parameters; the method's multiple of lr when absent
    batch_size: int = 256
    optimizer: OptimizerName = OptimizerName.ADAM
    schedule: Schedule = Schedule.COSINE
    weight_decay: float = 0.0
    augment: str = "none"
    views: int | None = None  # of every image that augmentation makes, again and again; else always new ones
    mixup: float | None = None  # a of Beta(a, a), by which images are blended; None: they are not
    average: int | None = None  # epochs at the end whose weights are averaged; None: the last weights are the result
    precision: Precision = Precision.FLOAT32
    seed: int = 0
    save_every: float = 30.0  # seconds between two saves of the state

    def __post_init__(self) -> None:
        for name, value, allowed, range_ in (
            ("epochs", self.epochs, self.epochs >= 0, "0 or more"),
            ("lr", self.lr, self.lr > 0 and math.isfinite(self.lr), "a number above 0"),
            ("noise-lr", self.noise_lr, self.noise_lr is None or 0 < self.noise_lr < math.inf, "a number above 0"),
            ("batch-size", self.batch_size, self.batch_size > 0, "1 or more"),
            ("views", self.views, self.views is None or self.views > 0, "1 or more"),
            ("mixup", self.mixup, self.mixup is None or 0 < self.mixup < math.inf, "a number above 0"),
            ("average", self.average, self.average is None or 1 <= self.average <= self.epochs, "1 to --epochs"),
            ("weight-decay", self.weight_decay, self.weight_decay >= 0, "0 or more"),
        ):
            if not allowed:
                raise UsageError(f"--{name} {value} is out of range; give {range_}")

    def rate(self, progress: float) -> float:
        """The learning rate when a share ``progress`` (0 to 1) of the steps is behind."""
        if self.schedule is Schedule.COSINE:
            return self.lr * 0.5 * (1 + math.cos(math.pi * progress))
        return self.lr * (1 - progress) if self.schedule is Schedule.LINEAR else self.lr
