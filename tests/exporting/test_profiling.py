"""Operators are called after their modules, and the profiler's account is shared out to layers; nothing is timed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from onnx import TensorProto, helper
from tiny import SHAPE, tiny_run

from snncompress.exporting import profiling
from snncompress.exporting.onnx import to_onnx
from snncompress.exporting.operators import SCOPES, module_of, name_operators
from snncompress.exporting.profiling import profile_model


@pytest.fixture(scope="module")
def proto() -> Any:
    return to_onnx(tiny_run().model.eval(), torch.zeros(1, *SHAPE), None, "logits")


def test_every_operator_with_weights_is_called_after_their_layer(proto: Any) -> None:
    names = [node.name for node in proto.graph.node]
    assert len(set(names)) == len(names)
    found = {module_of(node.name) for node in proto.graph.node if node.op_type in ("Conv", "Gemm", "MatMul")}
    # A batch norm is folded into the convolution before it, which keeps its own name.
    assert found == {"conv", "inner", "hidden", "head"}
    onnx.checker.check_model(proto, full_check=True)


def test_names_without_notes() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Relu", ["y"], ["z"])]
    nodes[1].metadata_props.add(key=SCOPES, value="no list")
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xz"]
    made = helper.make_model(helper.make_graph(nodes, "g", value[:1], value[1:]))
    name_operators(made)
    assert [node.name for node in made.graph.node] == ["/Relu", "/Relu_2"]
    assert module_of("/Relu") == ""


def test_shares_add_up(proto: Any) -> None:
    layers = {"conv": "conv", "inner": "inner", "hidden": "hidden", "head": "head", "": "Net"}
    found = profile_model(proto.SerializeToString(), torch.rand(3, *SHAPE), 1, layers)
    assert sum(found.operators.values()) == pytest.approx(1)
    assert sum(found.layers.values()) + sum(found.between.values()) == pytest.approx(1)
    assert list(found.layers) == list(layers.values())
    shares = list(found.operators.values())
    assert shares == sorted(shares, reverse=True)


def test_fused_operators_count_for_their_layer(proto: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names as onnxruntime makes them: of what it fused, of the tensor that comes out, of what it added."""
    outputs = {module_of(node.name): node.output[0] for node in proto.graph.node if node.op_type == "Conv"}
    activation = next(node for node in proto.graph.node if list(node.input) == [outputs["conv"]])
    assert activation.op_type == "Relu"
    times = {
        ("fused hidden/Gemm", "FusedGemm"): 1.0,
        (f"{activation.output[0]}_nchwc", "Conv"): 2.0,
        (f"{outputs['inner']}_nchwc", "Conv"): 4.0,
        ("head/Gemm/MatMulAddFusion/", "Gemm"): 8.0,
        ("ReorderOutput_token_3", "ReorderOutput"): 1.0,
    }
    monkeypatch.setattr(profiling, "_durations", lambda *_: times)
    layers = {name: name.upper() for name in ("conv", "inner", "hidden", "head")}
    found = profile_model(proto.SerializeToString(), torch.zeros(1), 1, layers)
    assert {name: 16 * share for name, share in found.layers.items()} == {
        "CONV": 2.0, "INNER": 4.0, "HIDDEN": 1.0, "HEAD": 8.0,
    }  # fmt: skip
    assert found.between == {"ReorderOutput": 1 / 16}


def test_the_quickest_run_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    events = [
        {"cat": "Node", "name": "a/Conv_kernel_time", "dur": duration, "args": {"op_name": "Conv"}}
        for duration in (900, 3, 2, 50)
    ] + [{"cat": "Session", "name": "a/Conv_kernel_time"}, {"cat": "Node", "name": "fence", "dur": 7, "args": {}}]

    class Session:
        def end_profiling(self) -> str:
            (tmp_path / "events.json").write_text(json.dumps(events))
            return str(tmp_path / "events.json")

    monkeypatch.setattr(profiling, "open_session", lambda *_, **__: Session())
    monkeypatch.setattr(profiling, "run_session", lambda *_: None)
    assert profiling._durations(b"", torch.zeros(1), 1) == {("a/Conv", "Conv"): 2}
