"""How a model is pruned."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from snncompress.errors import UsageError


class Allocation(StrEnum):
    """How the target is shared between layers."""

    COMPETE = "compete"  # several allocations meet the target; validation data choose
    GLOBAL = "global"  # the least important neuron of the whole network goes first, as in the paper


@dataclass(frozen=True)
class PruneOptions:
    """What to remove and how to recover; the same defaults in Python and on the command line."""

    target_flops: str | None = None  # 60k, 0.06M, 5%; stage 1 only when absent
    criterion: str = "entropy"
    allocation: Allocation = Allocation.COMPETE
    candidates: int = 8
    step: int = 0  # neurons a round; 0 is 2% of those that are left, at least one
    finetune_steps: int = 30  # between two rounds
    final_epochs: int = 10  # once, at the end
    max_drop: float | None = None  # points of validation error

    def __post_init__(self) -> None:
        for name in ("step", "finetune_steps", "final_epochs"):
            if getattr(self, name) < 0:
                raise UsageError(f"--{name.replace('_', '-')} must not be negative")
        if self.candidates < 1:
            raise UsageError("--candidates must be at least 1")
        if self.max_drop is not None and self.max_drop < 0:
            raise UsageError("--max-drop must not be negative")

    def neurons_a_round(self, left: int) -> int:
        """How many neurons go before the next fine-tuning."""
        return self.step or max(1, left // 50)
