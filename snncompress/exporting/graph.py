"""A model as one flat graph of stock operators, with a free batch size: batch norms folded, dropout gone.

The graph is torch.export's, so it holds whatever the model's Python came down to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node

from snncompress.errors import ExportError
from snncompress.exporting.runtime import first_cause
from snncompress.exporting.subject import silence

aten: Any = torch.ops.aten
DROPOUTS = {
    *(aten.dropout.default, aten.dropout_.default, aten.feature_dropout.default, aten.feature_dropout_.default),
    *(aten.alpha_dropout.default, aten.alpha_dropout_.default),
}
WEIGHTED = {aten.conv1d.default, aten.conv2d.default, aten.conv2d.padding, aten.conv3d.default, aten.linear.default}


def to_program(model: nn.Module, input_shape: Sequence[int]) -> torch.export.ExportedProgram:
    """The model as a program of torch.export with a free batch size.

    Args:
        model: in evaluation mode, on the CPU.
        input_shape: channels, height, width of its images.

    Raises:
        ExportError: If torch cannot export it.
    """
    # Two: a batch of one would be taken for a fixed size. Zeros: a program holds its example, and images are private.
    example = torch.zeros(2, *input_shape)
    try:
        with silence(), torch.no_grad():
            return torch.export.export(model, (example,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    except Exception as error:  # the exporter raises whatever the model's operators make it raise
        raise ExportError(f"torch cannot export this model: {first_cause(error)}") from error


def to_graph(model: nn.Module, input_shape: Sequence[int]) -> GraphModule:
    """The model as a graph, simplified where that is exact.

    Args:
        model: in evaluation mode, on the CPU; it is not touched.
        input_shape: channels, height, width of its images.

    Raises:
        ExportError: If torch cannot export it.
    """
    program = to_program(model, input_shape)
    try:
        with silence():
            module: GraphModule = program.module(check_guards=False)  # type: ignore[assignment]
    except Exception as error:  # layers with names that are no names in Python
        raise ExportError(f"torch cannot export this model: {first_cause(error)}") from error
    _drop_dropout(module)
    with torch.no_grad():
        _fold_batch_norms(module)
    _drop_unused_weights(module)
    module.graph.lint()
    module.recompile()
    return module


def value_of(module: GraphModule, node: Node) -> Tensor:
    """The tensor that a ``get_attr`` node names."""
    value: Any = module
    for part in str(node.target).split("."):
        value = getattr(value, part)
    assert isinstance(value, Tensor)
    return value


def _drop_dropout(module: GraphModule) -> None:
    for node in list(module.graph.nodes):
        if node.target in DROPOUTS and node.args[2] is False:
            node.replace_all_uses_with(node.args[0])
            module.graph.erase_node(node)


def _fold_batch_norms(module: GraphModule) -> None:
    """Into the convolution or linear layer that only they read: w·γ/√(var+ε), and (b − mean)·γ/√(var+ε) + β.

    In double precision, so that the only rounding is that of the result.
    """
    uses = Counter(str(node.target) for node in module.graph.nodes if node.op == "get_attr" for _ in node.users)
    for norm in list(module.graph.nodes):
        if norm.target is not aten.batch_norm.default or not _folds(norm, uses):
            continue
        layer = norm.args[0]
        _, scale, shift, mean, variance, _, _, epsilon, *_ = norm.args
        weight, bias = (layer.args[index] if len(layer.args) > index else None for index in (1, 2))
        values = [None if node is None else value_of(module, node).double() for node in (weight, bias, scale, shift)]
        old_weight, old_bias, gamma, beta = values
        assert old_weight is not None
        factor = (value_of(module, variance).double() + epsilon).rsqrt()
        factor = factor if gamma is None else factor * gamma
        moved = -value_of(module, mean).double() if old_bias is None else old_bias - value_of(module, mean).double()
        new_bias = moved * factor if beta is None else moved * factor + beta
        new_weight = old_weight * factor.view(-1, *[1] * (old_weight.dim() - 1))
        prefix = str(layer.args[1].target).rpartition(".")[0]
        with module.graph.inserting_before(layer):
            folded = _hold(module, f"{prefix}.weight", new_weight), _hold(module, f"{prefix}.bias", new_bias)
        layer.args = (layer.args[0], *folded, *layer.args[3:])
        norm.replace_all_uses_with(layer)
        module.graph.erase_node(norm)


def _folds(norm: Node, uses: Counter[str]) -> bool:
    """Whether a batch norm is constant, and what it reads is read by nobody else."""
    layer, training = norm.args[0], norm.args[5]
    if not isinstance(layer, Node) or layer.target not in WEIGHTED or training or len(layer.users) != 1:
        return False
    if layer.target is aten.linear.default and layer.meta["val"].dim() != 2:
        return False  # its channels are another dimension
    weights = [node for node in layer.args[1:3] if isinstance(node, Node)]
    statistics = [node for node in norm.args[1:5] if isinstance(node, Node)]
    # A layer that is called twice has weights that serve twice.
    return norm.args[3] is not None and all(
        node.op == "get_attr" and (node in statistics or uses[str(node.target)] == 1) for node in weights + statistics
    )


def _hold(module: GraphModule, name: str, value: Tensor) -> Node:
    """Gives the graph a parameter of its own, under a name that may be taken by the one it replaces."""
    owner_name, _, leaf = name.rpartition(".")
    owner: Any = module.get_submodule(owner_name)
    setattr(owner, leaf, nn.Parameter(value.float().contiguous(), requires_grad=False))
    return module.graph.get_attr(name)


def _drop_unused_weights(module: GraphModule) -> None:
    for node in list(module.graph.nodes):
        if node.op == "get_attr" and not node.users:
            module.graph.erase_node(node)
    used = {str(node.target) for node in module.graph.nodes if node.op == "get_attr"}
    for name in [*dict(module.named_parameters()), *dict(module.named_buffers())]:
        owner, _, leaf = name.rpartition(".")
        if name not in used:
            delattr(module.get_submodule(owner), leaf)
