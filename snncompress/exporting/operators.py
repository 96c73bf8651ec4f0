"""Operators of an ONNX file, called after the module of the model that they came from: ``layer1.0.conv1/Conv``.

torch's exporter numbers them (``node_Conv_378``). Its notes tell the module, but a batch norm that is folded leaves its
own name on the convolution; there the weight tells.
"""

from __future__ import annotations

import ast
from collections import Counter
from typing import Any

SCOPES = "pkg.torch.onnx.name_scopes"  # the exporter's note: all modules from the outermost in, then the operator


def name_operators(proto: Any) -> None:
    """Renames the operators of a freshly exported model, whose notes are still there; each name occurs once."""
    weights = {tensor.name for tensor in proto.graph.initializer if len(tensor.dims) > 1}
    seen: Counter[str] = Counter()
    for node in proto.graph.node:
        name = f"{_module(node, weights)}/{node.op_type}"
        seen[name] += 1
        node.name = name if seen[name] == 1 else f"{name}_{seen[name]}"


def module_of(name: str) -> str:
    """The module in an operator's name; nothing for what the model's own forward calls."""
    return name.rpartition("/")[0]


def _module(node: Any, weights: set[str]) -> str:
    for name in node.input:
        if name in weights and "." in name:
            return str(name.rpartition(".")[0])
    note = next((entry.value for entry in node.metadata_props if entry.key == SCOPES), "[]")
    try:
        scopes = ast.literal_eval(note)
    except (ValueError, SyntaxError):  # another exporter's
        return ""
    return str(scopes[-2]) if isinstance(scopes, list) and len(scopes) > 1 else ""
