"""Hangs noise branches on a plain model and takes them off again.

While attached, a branch owns the forward of its layer and of the batch norm that follows it (found in the
channel graph, not by module order). Detached, the model is what it was: same modules, same state-dict keys.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor, nn

from snncompress import registry
from snncompress.errors import UsageError, unknown_name
from snncompress.models.channels import ChannelGraph, trace_channels
from snncompress.noise.branch import Branch, Clock, Layer, Mode, Reach


class Noise:
    """The noise branches of one model: attached until ``detach``.

    Attributes:
        method: the name of the noise method.
        options: its options, a frozen dataclass of the method's file.
        branches: the branches by the name of their layer.
        kind: their class, which says how they want to be trained.
    """

    def __init__(self, method: str, options: Any, branches: dict[str, Branch], norms: dict[str, str]) -> None:
        self.method = method
        self.options = options
        self.branches = branches
        self.kind = next((type(branch) for branch in branches.values()), Branch)
        self.norms = norms  # layer: the batch norm that follows it
        self.hollow: list[str] = []  # layers whose mean carried nothing when it was settled
        self._owned: dict[str, nn.Module] = {}  # layers and norms, while attached

    def attach(self, model: nn.Module) -> Noise:
        """Takes over the forward of the model's layers."""
        modules = dict(model.named_modules())
        self._owned = {name: modules[name] for name in [*self.branches, *self.norms.values()]}
        for name, branch in self.branches.items():
            _own_layer(modules[name], branch, normed=name in self.norms)
            if name in self.norms:
                _own_norm(modules[self.norms[name]], branch)
        return self

    def detach(self) -> None:
        """Gives the layers their own forward back."""
        for module in self._owned.values():
            module.__dict__.pop("forward", None)
        self._owned = {}

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

    def pairs(self) -> list[tuple[str, Branch, Layer]]:
        """Name, branch and layer, while attached."""
        assert self._owned, "the branches are not attached"
        return [(name, branch, self._owned[name]) for name, branch in self.branches.items()]  # type: ignore[misc]

    def tell(self, clock: Clock) -> None:
        """Says where training is."""
        for branch in self.branches.values():
            branch.clock = clock

    def penalty(self) -> Tensor:
        """The sum of all branches' penalties since the last call."""
        return torch.stack([branch.penalty(layer) for _, branch, layer in self.pairs()]).sum()

    @torch.no_grad()
    def kl(self) -> float | None:
        """The KL of all weights' distributions to their prior, in nats; None for a method without one."""
        terms = [branch.kl(layer) for _, branch, layer in self.pairs()]
        return sum(float(term) for term in terms if term is not None) if any(t is not None for t in terms) else None

    @torch.no_grad()
    def find_hollow(self) -> list[str]:
        """The layers whose mean carries nothing."""
        return [name for name, branch, layer in self.pairs() if branch.hollow(layer)]

    def settle(self) -> None:
        """Writes each branch's mean into its layer, so that the plain model is that of mean propagation."""
        self.hollow = self.find_hollow()
        for _, branch, layer in self.pairs():
            branch.settle(layer)

    def unsettle(self) -> None:
        """Prepares layers and branches that were settled for more training."""
        for _, branch, layer in self.pairs():
            branch.unsettle(layer)

    def silence_zeros(self) -> None:
        """Weights that are zero have no noise, either; a layer of nothing but zeros has nothing else."""
        for _, branch, layer in self.pairs():
            if bool(layer.weight.any()):
                branch.silence(layer, layer.weight.detach() == 0)

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
                setattr(branch, leaf, nn.Parameter(stored.clone(), parameter.requires_grad))

    def to(self, device: torch.device) -> Noise:
        """Moves the branches to a device."""
        for branch in self.branches.values():
            branch.to(device)
        return self

    def freeze(self) -> Noise:
        """Leaves nothing to learn: samples are drawn, and neither gradients nor penalties are kept."""
        for branch in self.branches.values():
            branch.eval().requires_grad_(False)
        return self

    def summary(self) -> dict[str, dict[str, float]]:
        """The state of the noise, layer by layer, for the history."""
        return {name: branch.summary(layer) for name, branch, layer in self.pairs()}

    def to_json(self) -> dict[str, Any]:
        """What is needed to hang the same branches on the model again, but for their parameters."""
        options = {item.name: getattr(self.options, item.name) for item in fields(self.options)}
        return {"method": self.method, "options": options, "layers": list(self.branches), "hollow": self.hollow}


def _own_layer(layer: nn.Module, branch: Branch, *, normed: bool) -> None:
    assert isinstance(layer, nn.Conv2d | nn.Linear)

    def forward(x: Tensor) -> Tensor:
        if branch.mode is Mode.SAMPLE:
            return branch.sample(layer, x)
        if branch.mode is Mode.ZERO:
            return branch.sample_zero(layer, x)
        mean = branch.mean(layer, x)
        if branch.mode is Mode.OBSERVE:
            branch.observe(layer, x)
            if not normed:
                branch.observe_mean(mean)
        return mean

    layer.forward = forward  # type: ignore[method-assign, assignment]


def _own_norm(norm: nn.Module, branch: Branch) -> None:
    plain = type(norm).forward

    def forward(x: Tensor) -> Tensor:
        normalized: Tensor = plain(norm, x)
        if branch.mode is Mode.OBSERVE:
            branch.observe_mean(normalized)
        return branch.after_norm(normalized) if branch.mode in (Mode.SAMPLE, Mode.ZERO) else normalized

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
            if issubclass(kind_of_value, StrEnum):
                raise unknown_name(f"{key} of method {method}", str(value), kind_of_value) from None
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
        layers: names or globs of the layers that become stochastic, or ``Reach`` values; the method's own choice when
            absent.
        graph: the model's channel graph, if it is known already.
    """
    chosen_options = make_options(method, options or {})
    branch_type = registry.load("methods", method).NoiseBranch.for_options(chosen_options)
    graph = graph or trace_channels(model, input_shape)
    chosen = choose_layers(model, graph, layers or [branch_type.reach], hidden_only=branch_type.reach is Reach.HIDDEN)
    modules = dict(model.named_modules())
    norms = {name: norm for name in chosen if (norm := graph.layers[name].norm) is not None}
    branches = {}
    for name in chosen:
        _check_plain(name, modules[name])
        branches[name] = branch_type(modules[name], chosen_options, normed=name in norms)
    return Noise(method, chosen_options, branches, norms).attach(model)


def _check_plain(name: str, layer: nn.Module) -> None:
    """Refuses a layer that does more than its type: a branch would leave that out."""
    if layer._parameters.get("weight") is None:
        raise UsageError(f"layer {name} computes its weight (weight norm, say); leave it out with --layers")
    if type(layer).forward not in (nn.Conv2d.forward, nn.Linear.forward):
        kind = type(layer).__name__
        raise UsageError(f"layer {name} has a forward of its own ({kind}); leave it out with --layers")


def choose_layers(model: nn.Module, graph: ChannelGraph, patterns: Sequence[str], *, hidden_only: bool) -> list[str]:
    """The layers that names, globs or ``Reach`` values mean, in the order of the network.

    Args:
        model: the network.
        graph: its channel graph.
        patterns: what the user asked for.
        hidden_only: whether the method leaves the classifier as it is.
    """
    hidden = [name for name in graph.layers if name not in graph.classifiers]
    if not hidden and hidden_only:
        raise UsageError("no layer to make stochastic: the model has no hidden convolution or linear layer")
    known = hidden if hidden_only else list(graph.layers)
    first = next(iter(graph.layers), None)
    linear = [name for name in hidden if isinstance(model.get_submodule(name), nn.Linear)]
    reaches = {
        Reach.ALL: known,
        Reach.HIDDEN: hidden,
        Reach.INNER: [name for name in known if name != first],
        Reach.LAST_HIDDEN: hidden[-1:],
        Reach.CLASSIFIER: [name for name in known if name in graph.classifiers],
        Reach.FIRST_LINEAR: ([name for name in linear if name != first] or linear or hidden[-1:])[:1],
    }
    chosen: set[str] = set()
    for pattern in patterns:
        # A layer that is called like a place is meant by its name: a run remembers its layers by theirs.
        place = isinstance(pattern, Reach) or (pattern in reaches and pattern not in known)
        found = reaches[Reach(pattern)] if place else fnmatch.filter(known, pattern)
        if not found:
            kind = "hidden layer" if hidden_only else "layer"
            raise UsageError(f"no {kind} is called '{pattern}'; {kind}s are: {', '.join(known) or 'none'}")
        chosen.update(found)
    return [name for name in known if name in chosen]
