"""Hangs noise branches on a plain model and takes them off again.

While attached, a branch owns the forward of its layer and of the batch norm that follows it (found in the
channel graph, not by module order). Detached, the model is what it was: same modules, same state-dict keys.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor, nn

from snncompress import registry
from snncompress.errors import UsageError, unknown_name
from snncompress.models.channels import ChannelGraph, trace_channels
from snncompress.noise.branch import Branch, Mode


class Noise:
    """The noise branches of one model: attached until ``detach``.

    Attributes:
        method: the name of the noise method.
        options: its options, a frozen dataclass of the method's file.
        branches: the branches by the name of their layer.
    """

    def __init__(self, method: str, options: Any, branches: dict[str, Branch], norms: dict[str, str]) -> None:
        self.method = method
        self.options = options
        self.branches = branches
        self.norms = norms  # layer: the batch norm that follows it
        self._model: nn.Module | None = None

    def attach(self, model: nn.Module) -> Noise:
        """Takes over the forward of the model's layers."""
        modules = dict(model.named_modules())
        for name, branch in self.branches.items():
            _own_layer(modules[name], branch)
            if name in self.norms:
                _own_norm(modules[self.norms[name]], branch)
        self._model = model
        return self

    def detach(self) -> None:
        """Gives the layers their own forward back."""
        if self._model is None:
            return
        modules = dict(self._model.named_modules())
        for name in [*self.branches, *self.norms.values()]:
            modules[name].__dict__.pop("forward", None)
        self._model = None

    @contextmanager
    def mode(self, mode: Mode) -> Iterator[None]:
        """Sets what all branches do for a while."""
        before = {name: branch.mode for name, branch in self.branches.items()}
        for branch in self.branches.values():
            branch.mode = mode
        try:
            yield
        finally:
            for name, branch in self.branches.items():
                branch.mode = before[name]

    def penalty(self) -> Tensor:
        """The sum of all branches' penalties since the last call."""
        return torch.stack([branch.penalty() for branch in self.branches.values()]).sum()

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """All parameters of the branches, as ``layer.parameter``."""
        for name, branch in self.branches.items():
            for leaf, parameter in branch.named_parameters():
                yield f"{name}.{leaf}", parameter

    def state_dict(self) -> dict[str, Tensor]:
        """The branches' parameters by name."""
        return {name: parameter.detach() for name, parameter in self.named_parameters()}

    def load_state_dict(self, tensors: dict[str, Tensor]) -> None:
        """Sets the branches' parameters; shapes may differ from the present ones (a compacted model's)."""
        for name, branch in self.branches.items():
            for leaf, parameter in branch.named_parameters():
                stored = tensors[f"{name}.{leaf}"].to(parameter.device)
                setattr(branch, leaf, nn.Parameter(stored.clone()))

    def to(self, device: torch.device) -> Noise:
        """Moves the branches to a device."""
        for branch in self.branches.values():
            branch.to(device)
        return self

    def summary(self) -> dict[str, dict[str, float]]:
        """The state of the noise, layer by layer, for the history."""
        return {name: branch.summary() for name, branch in self.branches.items()}

    def to_json(self) -> dict[str, Any]:
        """What is needed to hang the same branches on the model again, but for their parameters."""
        options = {item.name: getattr(self.options, item.name) for item in fields(self.options)}
        return {"method": self.method, "options": options, "layers": list(self.branches)}


def _own_layer(layer: nn.Module, branch: Branch) -> None:
    plain = type(layer).forward

    def forward(x: Tensor) -> Tensor:
        if branch.mode is Mode.SAMPLE:
            return branch.sample(layer, x)  # type: ignore[arg-type]
        if branch.mode is Mode.OBSERVE:
            branch.observe(layer, x)  # type: ignore[arg-type]
        return plain(layer, x)  # type: ignore[no-any-return]

    layer.forward = forward  # type: ignore[method-assign]


def _own_norm(norm: nn.Module, branch: Branch) -> None:
    plain = type(norm).forward

    def forward(x: Tensor) -> Tensor:
        normalized: Tensor = plain(norm, x)
        return branch.after_norm(normalized) if branch.mode is Mode.SAMPLE else normalized

    norm.forward = forward  # type: ignore[method-assign]


def make_options(method: str, options: dict[str, Any]) -> Any:
    """The options of a method as its frozen dataclass; unknown names are refused."""
    kind = registry.load("methods", method).Options
    known = {item.name: item for item in fields(kind)}
    values = {}
    for key, value in options.items():
        if key not in known:
            raise unknown_name(f"option of method {method}", key, known)
        try:
            kind_of_value: Any = type(known[key].default)
            values[key] = kind_of_value(value)
        except (ValueError, TypeError):
            raise UsageError(f"method {method}: option {key} cannot be '{value}'") from None
    return kind(**values)


def attach(
    model: nn.Module,
    method: str,
    input_shape: tuple[int, int, int],
    options: dict[str, Any] | None = None,
    layers: Sequence[str] | None = None,
    graph: ChannelGraph | None = None,
) -> Noise:
    """Hangs a method's branches on a plain model, in place.

    Args:
        model: the plain model.
        method: a name that ``snncompress list methods`` shows.
        input_shape: channels, height, width of its images.
        options: the method's options.
        layers: names or globs of the layers that become stochastic; all but the final classifier when absent.
        graph: the model's channel graph, if it is known already.
    """
    branch_type = registry.load("methods", method).NoiseBranch
    chosen_options = make_options(method, options or {})
    graph = graph or trace_channels(model, input_shape)
    hidden = [name for name in graph.layers if name not in graph.classifiers]
    for pattern in layers or ():
        if not any(fnmatch.fnmatchcase(name, pattern) for name in hidden):
            raise UsageError(f"no hidden layer is called '{pattern}'; hidden layers are: {', '.join(hidden) or 'none'}")
    chosen = [name for name in hidden if layers is None or any(fnmatch.fnmatchcase(name, p) for p in layers)]
    if not chosen:
        raise UsageError("no layer to make stochastic: the model has no hidden convolution or linear layer")
    modules = dict(model.named_modules())
    norms = {name: norm for name in chosen if (norm := graph.layers[name].norm) is not None}
    branches = {}
    for name in chosen:
        branches[name] = branch_type(modules[name], chosen_options, normed=name in norms)
    return Noise(method, chosen_options, branches, norms).attach(model)
