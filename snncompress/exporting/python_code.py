"""A graph of operators as Python that people can read: layers with their widths, and a forward pass.

What is a layer of torch.nn becomes one; tensor methods and functions of torch.nn.functional are called by their names;
whatever else there is, as ``torch.ops.aten``, which is right for every operator. Names are used again as soon as their
tensors are not needed any more, so the code holds no more memory than the model did.
"""

from __future__ import annotations

import keyword
import math
import operator
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from snncompress.errors import ExportError
from snncompress.exporting.graph import aten, value_of

OPERATORS = {
    **{
        aten.add.Tensor: "+",
        aten.sub.Tensor: "-",
        aten.mul.Tensor: "*",
        aten.div.Tensor: "/",
        aten.matmul.default: "@",
    },
    **{operator.add: "+", operator.sub: "-", operator.mul: "*", operator.floordiv: "//", operator.mod: "%"},
}
METHODS = {
    *(
        "view",
        "reshape",
        "permute",
        "transpose",
        "flatten",
        "unsqueeze",
        "squeeze",
        "contiguous",
        "expand",
        "expand_as",
    ),
    *("chunk", "select", "mean", "sum", "softmax", "sigmoid", "tanh", "exp", "clone", "clamp", "clamp_min", "roll"),
    *("unflatten", "swapaxes", "masked_fill", "new_zeros", "fill_", "zero_", "add_", "mul_", "abs", "sqrt", "pow"),
}
FUNCTIONS = {
    *(
        "relu",
        "relu_",
        "silu",
        "gelu",
        "elu",
        "leaky_relu",
        "hardswish",
        "hardsigmoid",
        "hardtanh",
        "hardtanh_",
        "mish",
    ),
    *(
        "max_pool2d",
        "avg_pool2d",
        "adaptive_avg_pool2d",
        "pad",
        "scaled_dot_product_attention",
        "softplus",
        "log_softmax",
    ),
    *("conv2d", "linear"),
}
INPLACE_FUNCTIONS = {"silu_": "silu", "hardswish_": "hardswish", "hardsigmoid_": "hardsigmoid", "mish_": "mish"}
IGNORED = ("_assert", "sym_constrain_range")  # checks of the batch size
LAST = 2**63 - 1  # the end of a slice that goes to the end


@dataclass
class Code:
    """The parts of a module: lines of ``__init__`` and ``forward``, and the weights by the names that these use."""

    layers: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    weights: dict[str, Tensor] = field(default_factory=dict)


def to_code(module: GraphModule) -> Code:
    """Writes a graph down.

    Raises:
        ExportError: If the graph calls something that is no operator, such as a loop over tensors.
    """
    return _Writer(module).write()


class _Writer:
    """Goes through a graph once."""

    def __init__(self, module: GraphModule) -> None:
        self.module = module
        self.code = Code()
        self.names: dict[Node, str] = {}  # expressions that stand for nodes
        self.free: list[str] = []  # variables whose tensors are not needed any more
        self.variables = 0
        self.attributes: dict[str, str] = {}
        self.last_use = {used: node for node in module.graph.nodes for used in node.all_input_nodes}
        self.uses = Counter(
            str(node.target) for node in module.graph.nodes if node.op == "get_attr" for _ in node.users
        )

    def write(self) -> Code:
        for node in self.module.graph.nodes:
            if node.op == "placeholder":
                self.names[node] = self.variable()
            elif node.op == "get_attr":
                continue  # named where it is used: a layer may take it in
            elif node.op == "output":
                (result,) = node.args[0] if isinstance(node.args[0], list | tuple) else [node.args[0]]
                self.code.lines.append(f"return {self.show(result)}")
            elif node.op == "call_function":
                self.call(node)
            else:
                raise ExportError(
                    f"this model cannot be written as Python: its graph holds a {node.op} ({node.target})"
                )
        return self.code

    def call(self, node: Node) -> None:
        if any(part in str(node.target) for part in IGNORED):
            return
        text = self.layer(node) or self.expression(node)
        for used in node.all_input_nodes:
            if self.last_use[used] is node and used in self.names:
                self.release(self.names[used])
        if not node.users:
            self.code.lines.append(text)
            return
        name = self.variable()
        self.names[node] = name
        if text != name:
            self.code.lines.append(f"{name} = {text}")

    def variable(self) -> str:
        if self.free:
            return self.free.pop()
        self.variables += 1
        return "x" if self.variables == 1 else f"x{self.variables}"

    def release(self, name: str) -> None:
        if name not in self.free and name.isidentifier():
            self.free.append(name)

    def layer(self, node: Node) -> str | None:
        """A call of a layer of torch.nn, where the node is one and its weights serve nothing else."""
        if node.target not in LAYERS:
            return None
        filled = _arguments(node)
        owner = str(getattr(filled["weight"], "target", "")).rpartition(".")[0]
        tensors = {key: value for key, value in filled.items() if key in WEIGHTS and value is not None}
        own = all(
            isinstance(value, Node) and value.op == "get_attr" and value.target == f"{owner}.{key}"
            and self.uses[f"{owner}.{key}"] == 1
            for key, value in tensors.items()
        )  # fmt: skip
        if not own or not owner:
            return None
        values = {key: value_of(self.module, node) for key, node in tensors.items()}
        made = LAYERS[node.target](filled, values, node)
        if made is None:
            return None
        name = self.attribute(owner)
        self.code.layers.append(f"self.{name} = {made}")
        self.code.weights |= {f"{name}.{key}": value for key, value in values.items()}
        return f"self.{name}({self.show(filled['input'])})"

    def attribute(self, target: str) -> str:
        """A name for a module or a tensor of the model, the same each time."""
        if target not in self.attributes:
            name = re.sub(r"\W", "_", target.removeprefix("model."))
            name = f"layer_{name}" if name[0].isdigit() or keyword.iskeyword(name) else name
            while name in self.attributes.values() or hasattr(torch.nn.Module, name):
                name += "_"
            self.attributes[target] = name
        return self.attributes[target]

    def tensor(self, node: Node) -> str:
        """A weight that no layer takes in, or a constant."""
        value = value_of(self.module, node)
        name = self.attribute(str(node.target))
        if name not in self.code.weights:
            empty = f"torch.empty({list(value.shape)}, dtype={value.dtype})"
            if isinstance(value, torch.nn.Parameter):
                self.code.layers.append(f"self.{name} = nn.Parameter({empty})")
            else:
                self.code.layers.append(f'self.register_buffer("{name}", {empty})')
            self.code.weights[name] = value
        return f"self.{name}"

    def expression(self, node: Node) -> str:
        target, args, kwargs = node.target, node.args, node.kwargs
        if target in OPERATORS and len(args) == 2 and not kwargs:
            return f"{self.show(args[0])} {OPERATORS[target]} {self.show(args[1])}"
        if target is operator.getitem:
            return f"{self.show(args[0])}[{self.show(args[1])}]"
        if target is aten.sym_size.int:
            return f"{self.show(args[0])}.size({args[1]})"
        if target is aten.slice.Tensor:
            return self.slice(node)
        if target is aten.index.Tensor:
            return f"{self.show(args[0])}[{', '.join(':' if i is None else self.show(i) for i in args[1])}]"  # type: ignore[union-attr]
        if target is aten.lift_fresh_copy.default:
            return f"{self.show(args[0])}.clone()"
        if not isinstance(target, torch._ops.OpOverload):
            raise ExportError(f"this model cannot be written as Python: its graph calls {target}; use --format pt2")
        shown = [self.show(value) for value in args] + [f"{key}={self.show(value)}" for key, value in kwargs.items()]
        name = target._schema.name.removeprefix("aten::")
        if name in METHODS:
            return f"{shown[0]}.{name}({', '.join(shown[1:])})"
        if name == "cat":
            return f"torch.cat({', '.join(shown)})"
        if name in FUNCTIONS:
            return f"F.{name}({', '.join(shown)})"
        if name in INPLACE_FUNCTIONS:
            return f"F.{INPLACE_FUNCTIONS[name]}({', '.join([*shown, 'inplace=True'])})"
        return f"{target!s}".replace("aten.", "torch.ops.aten.", 1) + f"({', '.join(shown)})"

    def slice(self, node: Node) -> str:
        source, dimension, start, end, step = (_arguments(node)[key] for key in ("self", "dim", "start", "end", "step"))
        first = "" if start in (None, 0) else self.show(start)
        last = "" if end is None or end == LAST else self.show(end)
        every = "" if step == 1 else f":{self.show(step)}"
        if not (first or last or every):
            return self.show(source)
        before = ":, " * dimension if dimension >= 0 else "..., "
        after = "" if dimension >= -1 else ", :" * (-dimension - 1)
        return f"{self.show(source)}[{before}{first}:{last}{every}{after}]"

    def show(self, value: Any) -> str:
        if isinstance(value, Node):
            return self.tensor(value) if value.op == "get_attr" else self.names[value]
        if isinstance(value, list | tuple):
            return f"[{', '.join(map(self.show, value))}]"
        if isinstance(value, float) and not math.isfinite(value):
            return f'float("{value}")'
        if isinstance(value, torch.device):
            return f'torch.device("{value}")'
        if isinstance(value, bool | int | float | str | None):
            return repr(value)
        return str(value)  # dtypes, layouts, memory formats


WEIGHTS = ("weight", "bias", "running_mean", "running_var")


def _arguments(node: Node) -> dict[str, Any]:
    """All arguments of an operator by name, defaults included."""
    schema = node.target._schema.arguments  # type: ignore[union-attr]
    values = {argument.name: argument.default_value for argument in schema}
    values |= dict(zip(values, node.args, strict=False))
    return values | dict(node.kwargs)


def _short(values: Any) -> str:
    """[2, 2] as 2."""
    if isinstance(values, str):
        return repr(values)
    numbers = list(values)
    return str(numbers[0]) if len(set(numbers)) == 1 else f"({', '.join(map(str, numbers))})"


def _conv2d(given: dict[str, Any], tensors: dict[str, Tensor], node: Node) -> str:
    out, within, *kernel = tensors["weight"].shape
    shown = f"{within * given['groups']}, {out}, {_short(kernel)}"
    for key, default in (("stride", "1"), ("padding", "0"), ("dilation", "1")):
        if (text := _short(given[key])) != default:
            shown += f", {key}={text}"
    shown += "" if given["groups"] == 1 else f", groups={given['groups']}"
    return f"nn.Conv2d({shown}{'' if 'bias' in tensors else ', bias=False'})"


def _linear(given: dict[str, Any], tensors: dict[str, Tensor], node: Node) -> str:
    out, within = tensors["weight"].shape
    return f"nn.Linear({within}, {out}{'' if 'bias' in tensors else ', bias=False'})"


def _batch_norm(given: dict[str, Any], tensors: dict[str, Tensor], node: Node) -> str | None:
    dimensions = given["input"].meta["val"].dim()
    if given["training"] or len(tensors) < len(WEIGHTS) or dimensions not in (2, 4):
        return None
    kind = "BatchNorm2d" if dimensions == 4 else "BatchNorm1d"
    return f"nn.{kind}({len(tensors['weight'])}, eps={given['eps']})"


def _layer_norm(given: dict[str, Any], tensors: dict[str, Tensor], node: Node) -> str | None:
    return f"nn.LayerNorm({list(given['normalized_shape'])}, eps={given['eps']})" if len(tensors) == 2 else None


LAYERS: dict[Any, Any] = {
    aten.conv2d.default: _conv2d,
    aten.conv2d.padding: _conv2d,
    aten.linear.default: _linear,
    aten.batch_norm.default: _batch_norm,
    aten.layer_norm.default: _layer_norm,
}
