"""How a model is pruned."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from snncompress.errors import UsageError


class Allocation(StrEnum):
    """How the target is shared between layers."""

    UNIFORM = "uniform"  # all layers shrink alike
    COMPETE = "compete"  # several allocations meet the target; validation data choose
    SENSITIVITY = "sensitivity"  # those shrink faster whose halves cost the least loss
    GLOBAL = "global"  # the least important neuron of the whole network goes first, as in the paper


class Per(StrEnum):
    """What a neuron's importance is divided by where layers compete (``--allocation global``)."""

    NONE = "none"
    FLOPS = "flops"
    SIZE = "size"
    MEMORY = "memory"


class Scope(StrEnum):
    """Which weights compete."""

    GLOBAL = "global"  # those of all layers
    LAYER = "layer"  # those of a layer: each loses the same share


@dataclass(frozen=True, kw_only=True)
class Goals:
    """How far to go and how to recover, whatever is pruned; the same defaults in Python and on the command line."""

    target_flops: str | None = None  # 60k, 0.06M, 5%
    target_size: str | None = None
    target_memory: str | None = None
    criterion: str = "auto"  # what suits the noise that the run was trained with
    keep: tuple[str, ...] = ()  # layers that lose nothing
    finetune_steps: int = 30  # between two rounds
    final_epochs: int = 10  # once, at the end
    final_lr: float | None = None  # of the fine-tuning at the end; that of the rounds when absent
    max_error: float | None = None  # percent, on validation data
    max_drop: float | None = None  # points of validation error

    # The least value of each number that has one.
    LEAST: ClassVar[dict[str, int]] = {"finetune_steps": 0, "final_epochs": 0, "max_error": 0, "max_drop": 0}

    def __post_init__(self) -> None:
        for name, smallest in self.LEAST.items():
            value = getattr(self, name)
            if value is not None and not value >= smallest:
                raise UsageError(f"--{name.replace('_', '-')} {value} is out of range; give {smallest} or more")
        if self.final_lr is not None and not 0 < self.final_lr < float("inf"):
            raise UsageError(f"--final-lr {self.final_lr} is out of range; give a number above 0")

    @property
    def limited(self) -> bool:
        """Whether the error has a limit."""
        return self.max_error is not None or self.max_drop is not None

    @property
    def aimed(self) -> bool:
        """Whether anything says how far to go."""
        return any((self.target_flops, self.target_size, self.target_memory))


@dataclass(frozen=True, kw_only=True)
class PruneOptions(Goals):
    """Which neurons to remove; without any target only dead ones go."""

    target_latency: str | None = None  # 2ms, 50%; of one image in onnxruntime
    allocation: Allocation = Allocation.UNIFORM
    candidates: int = 8
    trial_steps: int = 100  # of fine-tuning in the first heat of competing allocations
    per: Per = Per.NONE
    step: int = 0  # neurons a round; 0 begins with 2% of those that are left and grows where the error allows
    round_to: int = 1  # channels of a layer, for hardware that wants multiples
    min_neurons: int = 1  # of each layer
    finetune_noise: bool = False  # whether the noise stays on while fine-tuning

    LEAST: ClassVar[dict[str, int]] = {
        **Goals.LEAST, "candidates": 1, "trial_steps": 1, "step": 0, "round_to": 1, "min_neurons": 1,
    }  # fmt: skip

    @property
    def contested(self) -> bool:
        """Whether allocations compete; as far as the error allows, there is no size at which they could."""
        return self.allocation is Allocation.COMPETE and (self.aimed or not self.limited)

    @property
    def aimed(self) -> bool:
        """Whether anything says how far to go."""
        return super().aimed or self.target_latency is not None


@dataclass(frozen=True, kw_only=True)
class WeightOptions(Goals):
    """Which weights to set to zero."""

    threshold: float | None = None  # of the criterion: weights below it go (log α: above it)
    scope: Scope = Scope.GLOBAL
