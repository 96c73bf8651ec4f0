"""A run: a model with everything that is needed to train, prune, measure and export it again."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from snncompress.data.dataset import Normalization
from snncompress.data.task import Task
from snncompress.errors import UsageError
from snncompress.measure.cost import measure_cost, state_bytes
from snncompress.models.sources import ModelSource
from snncompress.noise.attach import Noise, attach
from snncompress.storage import Storage


@dataclass(frozen=True)
class NoiseRecord:
    """Noise branches at rest: what ``Noise.to_json`` and ``Noise.state_dict`` gave."""

    json: dict[str, Any]
    tensors: dict[str, Tensor]

    @classmethod
    def of(cls, noise: Noise | None) -> NoiseRecord | None:
        """Copies branches to the CPU; None stays None."""
        if noise is None:
            return None
        return cls(noise.to_json(), {name: tensor.cpu().clone() for name, tensor in noise.state_dict().items()})


@dataclass(frozen=True)
class Run:
    """A plain model on the CPU in evaluation mode, and what is known about it.

    Attributes:
        name: how a report calls it.
        model: the plain, deterministic network.
        input_shape: channels, height, width of its images.
        normalization: what its images go through first.
        classes: the names of its outputs; empty when unknown.
        source: how its architecture is built; None for a module handed over in Python.
        original: counts of the model before any pruning, to which percentages refer.
        metrics: what was measured, by split: ``{"validation": {"error": ..., "nll": ...}, "test": ...}``.
        data: the options of ``load_data`` that it was trained with.
        noise: its branches, for scoring and further training.
        posterior: mean and variance of every weight, as ``NAME.mean`` and ``NAME.variance``, where they were sampled.
        plan: what pruning removed.
        config: the options of the command that made it.
        parent: the run that it was made from.
        path: its folder, if it has one.
        checkpoint: the file that the weights of the first run in its line came from.
        sparse: whether its zero weights stay zero in any further training.
        storage: how its file holds its weights.
        task: what its outputs are for; an ``error`` in its metrics is in the task's unit.
    """

    name: str
    model: nn.Module
    input_shape: tuple[int, int, int]
    normalization: Normalization
    classes: tuple[str, ...] = ()
    source: ModelSource | None = None
    original: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    noise: NoiseRecord | None = None
    posterior: dict[str, Tensor] | None = None
    plan: dict[str, Any] | None = None
    config: dict[str, Any] = field(default_factory=dict)
    parent: str | None = None
    path: Path | None = None
    checkpoint: str | None = None
    sparse: bool = False
    storage: Storage = Storage.DENSE
    task: Task = Task.CLASSIFICATION

    def successor(self, config: dict[str, Any]) -> Run:
        """The run that a command with these options makes of this one, before it has begun."""
        parent = None if self.path is None else str(self.path.resolve())
        return replace(self, config=config, noise=None, posterior=None, plan=None, metrics={}, parent=parent)

    @property
    def hollow(self) -> list[str]:
        """The layers whose mean carries nothing: all they know is in their variances."""
        return [] if self.noise is None else list(self.noise.json.get("hollow", ()))

    @property
    def noise_method(self) -> str | None:
        """The method of its branches."""
        return None if self.noise is None else str(self.noise.json["method"])

    def need_mean(self, verb: str) -> None:
        """Refuses what works on the mean network if that carries nothing; ``verb`` says what was to be done."""
        if self.hollow:
            raise UsageError(
                f"layer {self.hollow[0]} of {self.name} keeps what it knows in its variances and its mean carries "
                f"nothing, so it cannot be {verb}; distil it into a plain network first: snncompress train "
                f"{self.path or 'RUN'} --from-scratch --method none --distill {self.path or 'RUN'} --out NEW"
            )

    @property
    def label(self) -> str:
        """The name of its folder, else its own: how tables and pictures call it."""
        return self.name if self.path is None else self.path.resolve().name

    @property
    def stored_bytes(self) -> int | None:
        """The size of the model's file, for a sparse one that has a file."""
        return (self.path / "model.safetensors").stat().st_size if self.sparse and self.path is not None else None

    @torch.no_grad()
    def measured_model(self) -> nn.Module:
        """The model whose weights are counted: deviations take the place of means that carry nothing."""
        if not self.hollow:
            return self.model
        model = copy.deepcopy(self.model)
        noise = self.attach_noise(model)
        assert noise is not None
        noise.detach()
        for name in self.hollow:
            layer: Any = model.get_submodule(name)
            layer.weight.copy_(noise.branches[name].moments(layer)[1].sqrt())  # type: ignore[operator]
        return model

    def attach_noise(self, model: nn.Module, options: Mapping[str, Any] | None = None) -> Noise | None:
        """Hangs the recorded branches on ``model``, a copy of the run's own; ``options`` change recorded ones.

        Branches that get another shape by it begin anew.
        """
        if self.noise is None:
            return None
        record = self.noise.json
        chosen = {**record["options"], **(options or {})}
        noise = attach(model, record["method"], self.input_shape, chosen, record["layers"])
        recorded = self.noise.tensors
        if all(tensor.shape == recorded[name].shape for name, tensor in noise.state_dict().items()):
            noise.load_state_dict(recorded)
        return noise


def count_model(model: nn.Module, input_shape: tuple[int, int, int]) -> dict[str, Any]:
    """The counts to which percentages of a pruned model refer, and the neurons of each layer."""
    cost = measure_cost(model, input_shape)
    return {
        "weights": cost.parameters,  # zeros of a fresh model included: training fills them
        "weights_only": cost.weights_only,
        "flops": cost.flops,
        "memory": cost.memory,
        "bytes": state_bytes(model),
        "neurons": {layer.name: layer.neurons for layer in cost.layers if layer.neurons},
    }


def wrap(
    model: nn.Module,
    input_shape: tuple[int, int, int],
    *,
    name: str = "model",
    classes: Sequence[str] = (),
    normalization: Normalization | None = None,
) -> Run:
    """Makes a run of a module that was built in Python."""
    normalization = normalization or Normalization.parse("none", input_shape[0])
    original = count_model(model, input_shape)
    return Run(name, model.cpu().eval(), input_shape, normalization, tuple(classes), original=original)
