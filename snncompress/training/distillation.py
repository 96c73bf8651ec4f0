"""Soft targets: a network learns from another one's probabilities.

    L = (1 − w)·L_cl + w·T²·KL(softmax(teacher/T) ‖ softmax(student/T))

Hinton, Vinyals, Dean: Distilling the Knowledge in a Neural Network, 2015.
"""

from __future__ import annotations

import copy
import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from snncompress.data.task import Task
from snncompress.errors import UsageError
from snncompress.run import Run
from snncompress.training.layout import Arranger

DRAWS = 10  # samples of a teacher that predicts by averaging: more change its probabilities little


@dataclass(frozen=True)
class DistillOptions:
    """How a teacher is listened to."""

    temperature: float = 4.0
    weight: float = 0.9

    def __post_init__(self) -> None:
        if not 0 < self.temperature < math.inf:
            raise UsageError(f"--distill-temperature {self.temperature:g} is out of range; give a number above 0")
        if not 0 < self.weight <= 1:
            raise UsageError(f"--distill-weight {self.weight:g} is out of range; give a share above 0, up to 1")


class Teacher:
    """A trained network whose probabilities are the targets; averaged over samples where its mean carries nothing."""

    def __init__(
        self, run: Run, student: Run, options: DistillOptions, device: torch.device, option: str = "--distill"
    ) -> None:
        for each in (student, run):
            if each.task is Task.REGRESSION:
                raise UsageError(
                    f"{option}: soft targets are probabilities of classes, but {each.name} predicts a number; "
                    f"leave {option} out"
                )
        theirs, ours = _outputs(run), _outputs(student)
        if run.input_shape != student.input_shape or theirs != ours:
            raise UsageError(
                f"{option} {run.name}: it takes {run.input_shape} and gives {theirs} outputs, the student "
                f"takes {student.input_shape} and gives {ours}; they must agree"
            )
        if run.normalization != student.normalization:
            raise UsageError(f"{option} {run.name}: its images are normalized otherwise; they must agree (--normalize)")
        self.options = options
        self.model: nn.Module = copy.deepcopy(run.model).to(device).eval().requires_grad_(False)
        self._arrange = Arranger()
        self.draws = 1
        if run.hollow:
            noise = run.attach_noise(self.model)
            assert noise is not None
            noise.to(device)
            self.draws = DRAWS

    @torch.no_grad()
    def logits(self, inputs: Tensor) -> Tensor:
        """What the teacher says, as logits."""
        if self.draws == 1:
            logits: Tensor = self.model(self._arrange(self.model, inputs))
            return logits
        log_p = torch.stack([self.model(inputs).log_softmax(-1) for _ in range(self.draws)])
        return log_p.logsumexp(0)

    def mix(self, loss: Tensor, outputs: Tensor, inputs: Tensor) -> Tensor:
        """The loss with the teacher's part."""
        t, w = self.options.temperature, self.options.weight
        theirs, ours = (self.logits(inputs) / t).log_softmax(-1), (outputs / t).log_softmax(-1)
        soft = F.kl_div(ours, theirs, reduction="batchmean", log_target=True)
        return (1 - w) * loss + w * t**2 * soft


def to_record(teacher: Run | None, options: DistillOptions) -> dict[str, Any] | None:
    """What a run remembers of its teacher."""
    if teacher is None:
        return None
    return {"run": teacher.name if teacher.path is None else str(teacher.path.resolve()), **asdict(options)}


@torch.no_grad()
def _outputs(run: Run) -> int:
    outputs: Tensor = run.model(torch.zeros(1, *run.input_shape))
    return outputs.shape[-1]
