"""How onnxruntime and others are asked: quietly, on the CPU, with a stated number of threads."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from snncompress.errors import UsageError


class Runtime(StrEnum):
    """What runs an ONNX file."""

    ONNXRUNTIME = "onnxruntime"
    OPENVINO = "openvino"


FIXED_BATCH = "its code fixes the batch size, as len(x) does; take x.shape[0] there"
QUIET = 4  # only what ends the process


def open_session(model: bytes | Path, threads: int | None = None, profile: Path | None = None) -> Any:
    """A session of onnxruntime for a model.

    Args:
        model: the file, or its content.
        threads: how many an operator may use; None is onnxruntime's choice.
        profile: where it notes the time of every operator, up to the session's ``end_profiling``.
    """
    import onnxruntime

    onnxruntime.set_default_logger_severity(QUIET)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = QUIET
    if threads is not None:
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        # Threads that spin after their work is done would slow down whatever is measured in turn with it.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if profile is not None:
        options.enable_profiling = True
        options.profile_file_prefix = str(profile)
    source = model if isinstance(model, bytes) else str(model)
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def run_session(session: Any, images: Tensor) -> Tensor:
    """The first output for a batch, as float32; a model of half precision gets what it reads."""
    entry = session.get_inputs()[0]
    inputs = images.half() if entry.type == "tensor(float16)" else images
    return torch.from_numpy(session.run(None, {entry.name: inputs.contiguous().numpy()})[0]).float()


def load_in(runtime: Runtime, model: Path, threads: int | None = None) -> Callable[[Tensor], Tensor]:
    """A function that runs a file's model in a runtime.

    Args:
        runtime: Which.
        model: The file.
        threads: How many an operator may use; None is the runtime's choice.

    Raises:
        UsageError: If the runtime is not installed.
    """
    if runtime is Runtime.ONNXRUNTIME:
        session = open_session(model, threads)
        return lambda images: run_session(session, images)
    try:
        import openvino
    except ImportError:
        raise UsageError("--runtime openvino needs a package that is not here: pip install openvino") from None
    # float32 stays float32: on some processors OpenVINO would take bfloat16 for it.
    settings: dict[str, Any] = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    settings |= {} if threads is None else {"INFERENCE_NUM_THREADS": threads}
    compiled = openvino.Core().compile_model(str(model), "CPU", settings)
    return lambda images: torch.from_numpy(compiled(images.contiguous().numpy())[0].copy()).float()


def first_cause(error: BaseException) -> str:
    """The last cause's first line: exporters and runtimes wrap it in pages of advice to their developers."""
    while error.__cause__ is not None:
        error = error.__cause__
    if "marked batch as dynamic" in str(error):
        return FIXED_BATCH
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
