"""Soft targets: a network learns from another one's probabilities, and from what its layers give.

    L = (1 − w)·L_cl + w·T²·KL(softmax(teacher/T) ‖ softmax(student/T)) + mean over layers of ‖s − t‖² / ‖t‖²

s and t are the outputs of a chosen layer in student and teacher; by default none is chosen.

Hinton, Vinyals, Dean: Distilling the Knowledge in a Neural Network, 2015; the layers: Romero, Ballas, Kahou,
Chassang, Gatta, Bengio: FitNets, ICLR 2015.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from snncompress.data.task import Task
from snncompress.errors import UsageError
from snncompress.models.layers import match_layers
from snncompress.models.layout import Arranger
from snncompress.noise.branch import precise
from snncompress.run import Run
from snncompress.training.mixup import fingerprint
from snncompress.training.options import TrainOptions

DRAWS = 10  # samples of a teacher that predicts by averaging: more change its probabilities little


@dataclass(frozen=True)
class DistillOptions:
    """How a teacher is listened to."""

    temperature: float = 4.0
    weight: float = 0.9
    layers: tuple[str, ...] = ()  # names or globs of those whose outputs are learned, too

    def __post_init__(self) -> None:
        if not 0 < self.temperature < math.inf:
            raise UsageError(f"--distill-temperature {self.temperature:g} is out of range; give a number above 0")
        if not 0 < self.weight <= 1:
            raise UsageError(f"--distill-weight {self.weight:g} is out of range; give a share above 0, up to 1")


class Teacher:
    """A trained network whose probabilities are the targets; averaged over samples where its mean carries nothing."""

    def __init__(
        self,
        run: Run,
        student: Run,
        options: DistillOptions,
        device: torch.device,
        *,
        option: str = "--distill",
        remember: bool = False,
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
            if options.layers:
                raise UsageError(
                    f"--distill-layers: {run.name} predicts by averaging, its layers give no one output; leave it out"
                )
        self._layers = _find_layers(options.layers, self.model, student.model)
        # What draws random numbers must draw them again, for a resumed run to end alike.
        self._answers: dict[int, Tensor] | None = {} if remember and self.draws == 1 and not self._layers else None
        self._said: dict[str, Tensor] = {}
        self._heard: dict[str, Tensor] = {}

    def logits(self, inputs: Tensor) -> Tensor:
        """What the teacher says, as logits; of a batch that comes again, what it said the first time."""
        if self._answers is None:
            return self._judge(inputs)
        key = fingerprint(inputs)
        if key not in self._answers:
            self._answers[key] = self._judge(inputs)
        return self._answers[key]

    @torch.no_grad()
    def _judge(self, inputs: Tensor) -> Tensor:
        if self.draws == 1:
            with _noting(self.model, self._layers, self._said):
                logits: Tensor = self.model(self._arrange(self.model, inputs))
            return logits
        log_p = torch.stack([self.model(inputs).log_softmax(-1) for _ in range(self.draws)])
        return log_p.logsumexp(0)

    def listen(self, student: nn.Module) -> AbstractContextManager[None]:
        """Notes what the chosen layers of the student give, for ``mix``."""
        return _noting(student, self._layers, self._heard)

    def mix(self, loss: Tensor, outputs: Tensor, inputs: Tensor) -> Tensor:
        """The loss with the teacher's part."""
        t, w = self.options.temperature, self.options.weight
        theirs, ours = (precise(self.logits(inputs)) / t).log_softmax(-1), (outputs / t).log_softmax(-1)
        soft = F.kl_div(ours, theirs, reduction="batchmean", log_target=True)
        return (1 - w) * loss + w * t**2 * soft + self._by_layers()

    def _by_layers(self) -> Tensor | float:
        """How far the chosen layers are from the teacher's."""
        if not self._layers:
            return 0.0
        distances = []
        for name in self._layers:
            ours, theirs = precise(self._heard.pop(name)), precise(self._said.pop(name))
            if ours.shape != theirs.shape:
                raise UsageError(
                    f"--distill-layers: {name} gives {tuple(ours.shape[1:])}, the teacher's {tuple(theirs.shape[1:])}; "
                    "choose layers whose channels stay (prune --keep)"
                )
            distances.append(F.mse_loss(ours, theirs) / theirs.square().mean())
        return torch.stack(distances).mean()


def hear(
    teacher: Run | None, student: Run, options: DistillOptions, training: TrainOptions, device: torch.device
) -> Teacher | None:
    """The teacher of a training, if it has one; it remembers what it said where views of the images come again."""
    if teacher is None:
        return None
    return Teacher(teacher, student, options, device, remember=training.views is not None)


def to_record(teacher: Run | None, options: DistillOptions) -> dict[str, Any] | None:
    """What a run remembers of its teacher."""
    if teacher is None:
        return None
    record = {**asdict(options), "layers": list(options.layers)}
    if not options.layers:  # a run of before they could be given resumes
        del record["layers"]
    return {"run": teacher.name if teacher.path is None else str(teacher.path.resolve()), **record}


def _find_layers(patterns: Sequence[str], teacher: nn.Module, student: nn.Module) -> list[str]:
    """The modules of both networks that names or globs choose."""
    theirs, ours = (dict(model.named_modules()) for model in (teacher, student))
    return match_layers(patterns, [name for name in theirs if name and name in ours])


@contextmanager
def _noting(model: nn.Module, names: Sequence[str], notes: dict[str, Tensor]) -> Iterator[None]:
    """Notes what some modules give."""

    def note(name: str) -> Callable[..., None]:
        return lambda module, inputs, output: notes.__setitem__(name, output)

    handles = [model.get_submodule(name).register_forward_hook(note(name)) for name in names]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def _outputs(run: Run) -> int:
    outputs: Tensor = run.model(torch.zeros(1, *run.input_shape))
    return outputs.shape[-1]
