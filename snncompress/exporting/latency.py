"""How long one image takes in onnxruntime, on one thread of the CPU."""

from __future__ import annotations

import copy
import statistics
import time

import torch
from torch import nn

from snncompress.exporting.onnx import to_onnx
from snncompress.exporting.runtime import open_session

WARM_UP = 3
LEAST_RUNS, LEAST_SECONDS = 20, 0.3


def measure_latency(model: nn.Module, input_shape: tuple[int, int, int]) -> float:
    """Milliseconds that a batch of one image takes in the fastest tenth of many runs.

    What else runs on the machine makes some runs slower, none faster.

    Args:
        model: a plain model; it is left as it is.
        input_shape: channels, height, width of its images.

    Raises:
        ExportError: If the model cannot be exported.
    """
    images = torch.zeros(1, *input_shape)
    data = to_onnx(copy.deepcopy(model).cpu().eval(), images, None, "logits").SerializeToString()
    session = open_session(data, threads=1)
    inputs = {"images": images.numpy()}
    for _ in range(WARM_UP):
        session.run(None, inputs)
    times: list[float] = []
    while len(times) < LEAST_RUNS or sum(times) < LEAST_SECONDS:
        start = time.perf_counter()
        session.run(None, inputs)
        times.append(time.perf_counter() - start)
    return 1000 * statistics.quantiles(times, n=10)[0]
