"""Where onnxruntime spends a model's time, by its own account: by kind of operator, and by layer.

Its profile names each operator that ran after fusion. An operator that was fused with others keeps the name of the one
that holds the weights, or that of its output; so an activation that was fused into a convolution counts for that
convolution. What has no layer (pooling, reordering of channels, sums) is told by kind, not shared out.
"""

from __future__ import annotations

import json
import re
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from snncompress.exporting.operators import module_of
from snncompress.exporting.runtime import open_session, run_session

LEAST_RUNS, MOST_RUNS, BUDGET_SECONDS = 4, 40, 2.0
ENDING = "_kernel_time"
UNKNOWN = "/"  # no module is called so
FUSED = re.compile(r"^fused |(/\w+Fusion/?|_nchwc)$")  # what onnxruntime adds to the names of operators that it made
ACTIVATIONS = {"Relu", "Clip", "Sigmoid", "Tanh", "LeakyRelu", "HardSigmoid"}  # that it fuses into what is before them


@dataclass(frozen=True)
class Profile:
    """Shares of a model's time.

    Attributes:
        operators: By kind of operator, the largest first; they add up to 1.
        layers: By layer of the model, in its order.
        between: By kind, what belongs to no layer; with ``layers`` it adds up to 1.
    """

    operators: dict[str, float]
    layers: dict[str, float]
    between: dict[str, float]


def profile_model(data: bytes, images: Tensor, threads: int, layers: Mapping[str, str]) -> Profile:
    """Runs a model several times under onnxruntime's profiler.

    Args:
        data: An ONNX file's content, its operators named by ``name_operators``.
        images: What it reads.
        threads: How many an operator may use.
        layers: What each module that is a layer is called; the model's own forward is the module ''.
    """
    import onnx

    proto = onnx.load_from_string(data)
    owners = _owners(proto)
    operators: dict[str, float] = defaultdict(float)
    found = dict.fromkeys(layers.values(), 0.0)
    between: dict[str, float] = defaultdict(float)
    for (name, kind), duration in _durations(data, images, threads).items():
        operators[kind] += duration
        layer = layers.get(owners.get(FUSED.sub("", name), UNKNOWN))
        if layer is not None:
            found[layer] += duration
        else:
            between[kind] += duration
    total = sum(operators.values()) or 1
    return Profile(
        operators=_largest_first(operators, total),
        layers={name: spent / total for name, spent in found.items()},
        between=_largest_first(between, total),
    )


def _largest_first(times: Mapping[str, float], total: float) -> dict[str, float]:
    return {name: times[name] / total for name in sorted(times, key=times.__getitem__, reverse=True)}


def _durations(data: bytes, images: Tensor, threads: int) -> dict[tuple[str, str], float]:
    """Microseconds of each operator, by name and kind: of its quickest run, since others use the machine too."""
    with tempfile.TemporaryDirectory() as folder:
        session = open_session(data, threads, profile=Path(folder) / "profile")
        began = time.perf_counter()
        for count in range(MOST_RUNS):
            if count >= LEAST_RUNS and time.perf_counter() - began > BUDGET_SECONDS:
                break
            run_session(session, images)
        events: list[dict[str, Any]] = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    times: dict[tuple[str, str], list[float]] = defaultdict(list)
    for event in events:
        name = str(event.get("name", ""))
        if event.get("cat") == "Node" and name.endswith(ENDING):
            times[name.removesuffix(ENDING), event["args"]["op_name"]].append(event["dur"])
    return {key: min(found) for key, found in times.items()}


def _owners(proto: Any) -> dict[str, str]:
    """The module of each operator and of each tensor; an activation's is that of what it may be fused into."""
    owners: dict[str, str] = {}
    for node in proto.graph.node:  # in the order of the data's flow
        fused = node.op_type in ACTIVATIONS and node.input[0] in owners
        owners[node.name] = module_of(node.name)
        for name in node.output:
            owners[name] = owners[node.input[0]] if fused else owners[node.name]
    return owners
