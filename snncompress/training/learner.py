"""One model in training: its noise, its optimizer, its random numbers, all of which a state file can hold."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from snncompress.data.task import Task
from snncompress.errors import TrainingDivergedError
from snncompress.evaluation.likelihood import as_rows, default_loss, faults
from snncompress.models.batch_last import faster
from snncompress.models.layers import fill_zeros, find_zeros
from snncompress.models.layout import Arranger
from snncompress.noise.attach import Noise
from snncompress.noise.branch import Mode, precise
from snncompress.training.adversarial import Attacker
from snncompress.training.distillation import Teacher
from snncompress.training.mixup import blend, fingerprint
from snncompress.training.options import OptimizerName, Precision, TrainOptions

Loss = Callable[[Tensor, Tensor], Tensor]


class Learner:
    """Takes one step at a time; the loop above it decides how many and with which batches.

    The loss is the user's loss of the sampled outputs plus the branches' penalties: no method is known by name.
    Weights of a ``sparse`` model that are zero stay zero.
    """

    def __init__(
        self,
        model: nn.Module,
        noise: Noise | None,
        options: TrainOptions,
        loss: Loss | None = None,
        teacher: Teacher | None = None,
        *,
        sparse: bool = False,
        task: Task = Task.CLASSIFICATION,
        attacker: Attacker | None = None,
    ) -> None:
        self.model = model
        self.noise = noise
        self.options = options
        self.loss = loss or default_loss
        self.teacher = teacher
        self.sparse = sparse
        self.task = task
        self.attacker = attacker
        self._last: Tensor | None = None  # the inputs of the last step
        self._arrange = Arranger()
        self.forget_sums()
        self.rebuild()

    def rebuild(self) -> None:
        """Makes an optimizer for the present parameters, with an empty state."""
        self.hold_zeros()
        named = {f"model.{name}": p for name, p in self.model.named_parameters() if p.requires_grad}
        branches = () if self.noise is None else self.noise.named_parameters()
        noisy = {f"noise.{name}": p for name, p in branches if p.requires_grad}
        self.parameters = {**named, **noisy}
        groups: list[dict[str, Any]] = [
            {"params": list(named.values()), "weight_decay": self.options.weight_decay, "factor": 1.0},
            {"params": list(noisy.values()), "weight_decay": 0.0, "factor": self._noise_factor()},
        ]
        groups = [group for group in groups if group["params"]]
        self.optimizer: torch.optim.Optimizer
        if self.options.optimizer is OptimizerName.SGD:
            self.optimizer = torch.optim.SGD(groups, lr=self.options.lr, momentum=0.9, nesterov=True)
        else:
            if self.noise is not None and noisy:
                groups[-1]["betas"] = (0.9, self.noise.kind.beta2)
            self.optimizer = torch.optim.Adam(groups, lr=self.options.lr)

    def hold_zeros(self) -> None:
        """Weights of a sparse model that are zero now stay zero."""
        self._zeros = find_zeros(self.model) if self.sparse else {}
        self._fast = faster(self.model, self._zeros if self.noise is None or self.noise.kind.zeros_stay else {})

    def _noise_factor(self) -> float:
        """How much faster than the weights the noise's parameters learn."""
        if self.options.noise_lr is not None:
            return self.options.noise_lr / self.options.lr
        return 1.0 if self.noise is None else self.noise.kind.lr_factor

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return next(iter(self.parameters.values())).device

    def step(self, inputs: Tensor, targets: Tensor, lr: float) -> None:
        """One update; the loss and the error are added to the sums."""
        for group in self.optimizer.param_groups:
            group["lr"] = lr * group["factor"]
        if self.attacker is not None:
            inputs, targets = self._with_attacked(self.attacker, inputs, targets)
        blended = None
        if self.options.mixup is not None:
            # A batch that comes again is blended as before, so that a teacher remembers it.
            seed = int(torch.randint(2**62, ())) if self.options.views is None else fingerprint(inputs)
            blended = blend(inputs, targets, self.options.mixup, seed)
            inputs = blended.inputs
        if not self.model.training:
            self.model.train()
        arranged = self._arrange(self.model, inputs)
        with self._fast, self._casting(), nullcontext() if self.teacher is None else self.teacher.listen(self.model):
            outputs = precise(self.model(arranged))
        loss = self.loss(outputs, targets)
        if blended is not None:
            loss = blended.share * loss + (1 - blended.share) * self.loss(outputs, blended.others)
        if self.teacher is not None:
            with self._casting():
                loss = self.teacher.mix(loss, outputs, inputs)
        penalty = torch.zeros_like(loss) if self.noise is None else self.noise.penalty()
        self.optimizer.zero_grad(set_to_none=True)
        (loss + penalty).backward()
        self.optimizer.step()
        fill_zeros(self.model, self._zeros)
        fault = _fault(outputs.detach(), targets)
        self._sums += torch.stack([loss.detach() * len(inputs), penalty.detach() * len(inputs), fault])
        self._count += len(inputs)
        self._last = inputs

    def _casting(self) -> AbstractContextManager[Any]:
        """Networks inside compute in the chosen precision."""
        if self.options.precision is Precision.FLOAT32:
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16)

    def _with_attacked(self, attacker: Attacker, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The batch, and behind it the same images attacked as the model is now."""
        attacked = attacker.attack(self.model, self.loss, inputs, targets)
        if self.noise is not None:
            self.noise.penalty()  # that of the attack is not to be learned from
        return torch.cat([inputs, attacked]), torch.cat([targets, targets])

    def forget_sums(self) -> None:
        """Starts the means of loss, penalty and error again."""
        device = next(self.model.parameters()).device
        self._sums = torch.zeros(3, dtype=precise_type(device), device=device)
        self._count = 0

    def means(self) -> dict[str, float]:
        """Mean loss, penalty and the task's error since they were last forgotten; NaN stops training."""
        loss, penalty, fault = (self._sums / max(self._count, 1)).tolist()
        if not math.isfinite(loss + penalty):
            raise self._diverged("the loss is")
        return {"loss": loss, "penalty": penalty, "error": self.task.error(fault)}

    def shown(self) -> dict[str, float]:
        """The same for people: the error under the name that it has."""
        return {self.task.measure if name == "error" else name: value for name, value in self.means().items()}

    def check_finite(self) -> None:
        """Raises if the loss or any parameter is NaN or infinite, or the next loss will be."""
        self.means()
        for name, parameter in self.parameters.items():
            if not bool(torch.isfinite(parameter).all()):
                raise self._diverged(f"the weights of {name.partition('.')[2]} are")
        # Finite weights may be large enough to overflow: a state is good only if it can be gone on from.
        if self._last is not None and not self._runs(self._last):
            raise self._diverged("the model's outputs are")

    @torch.no_grad()
    def _runs(self, inputs: Tensor) -> bool:
        """Whether the mean network's outputs are finite; draws no random number and changes nothing."""
        self.model.eval()
        with self.noise.mode(Mode.MEAN) if self.noise is not None else nullcontext():
            return bool(torch.isfinite(self.model(inputs)).all())

    def _diverged(self, what: str) -> TrainingDivergedError:
        return TrainingDivergedError(
            f"{what} no longer finite; the last good state is kept: go on from it with --resume and a smaller --lr "
            f"than {self.options.lr:g}, or start again with --force"
        )

    def shrink(self, slices: dict[str, Callable[[Tensor], Tensor]]) -> None:
        """Rebuilds the optimizer for parameters that compaction made smaller, its moments shrunk along.

        Args:
            slices: by parameter name, how its tensors are cut. The model and the noise are small already.
        """
        moments = dict(zip(self.parameters, self._moments(), strict=True))
        self.rebuild()
        for name, parameter in self.parameters.items():
            cut = slices.get(name, lambda tensor: tensor)
            self.optimizer.state[parameter] = {
                key: value if value.dim() == 0 else cut(value).clone() for key, value in moments[name].items()
            }

    def _moments(self) -> list[dict[str, Tensor]]:
        return [dict(self.optimizer.state.get(parameter, {})) for parameter in self.parameters.values()]

    def tensors(self) -> dict[str, Tensor]:
        """All tensors that a resumed run needs: weights, moments, random generators, sums."""
        found = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        if self.noise is not None:
            found |= {f"noise.{name}": tensor for name, tensor in self.noise.state_dict().items()}
        for name, moments in zip(self.parameters, self._moments(), strict=True):
            found |= {f"optimizer.{key}.{name}": value for key, value in moments.items()}
        found["random.cpu"] = torch.get_rng_state()
        if self.device.type == "cuda":
            found["random.cuda"] = torch.cuda.get_rng_state(self.device)
        found["sums"] = torch.cat([self._sums, self._sums.new_tensor([self._count])])
        return found

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Sets everything that ``tensors`` gave; the model and the noise have the right shapes already."""
        self.model.load_state_dict(part(tensors, "model."))
        if self.noise is not None:
            self.noise.load_state_dict(part(tensors, "noise."))
        self.rebuild()
        for name, parameter in self.parameters.items():
            moments = {}
            for key in ("step", "exp_avg", "exp_avg_sq", "momentum_buffer"):
                if (stored := tensors.get(f"optimizer.{key}.{name}")) is not None:
                    moments[key] = stored.clone() if key == "step" else stored.to(parameter.device, copy=True)
            if moments:
                self.optimizer.state[parameter] = moments
        torch.set_rng_state(tensors["random.cpu"])
        if "random.cuda" in tensors:
            torch.cuda.set_rng_state(tensors["random.cuda"], self.device)
        self._sums = tensors["sums"][:3].to(self.device, copy=True)
        self._count = int(tensors["sums"][3])


def _fault(outputs: Tensor, targets: Tensor) -> Tensor:
    """What a batch adds to the error; nothing where only a loss of the user's knows what its targets mean."""
    if Task.of(targets) is Task.REGRESSION:
        known = outputs.numel() == len(targets)
    else:
        known = outputs.dim() == 2 and targets.dim() == 1 and not targets.is_floating_point()
    return faults(as_rows(outputs), targets).sum() if known else outputs.new_zeros(())


def precise_type(device: torch.device) -> torch.dtype:
    """Double precision, but for Apple's devices, which have none."""
    return torch.float32 if device.type == "mps" else torch.float64


def part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names start with a prefix, without it."""
    return {name[len(prefix) :]: tensor for name, tensor in tensors.items() if name.startswith(prefix)}
