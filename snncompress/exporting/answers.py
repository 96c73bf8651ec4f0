"""The error of several ways to run a model, in one pass over labelled images."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar

import torch
from torch import Tensor

from snncompress.data.batches import Batches
from snncompress.data.dataset import Images, Normalization
from snncompress.data.task import Task
from snncompress.evaluation.accuracy import check_outputs
from snncompress.evaluation.likelihood import faults

Key = TypeVar("Key", bound=Hashable)
CHUNK = 64  # images at once: large ones in greater batches fill the memory of a laptop
AS_THEY_ARE = Normalization((0.0,), (1.0,))


def measure_errors(calls: Mapping[Key, Callable[[Tensor], Tensor]], images: Images) -> dict[Key, float]:
    """The error of each call, in the unit of the labels' task.

    Args:
        calls: From images of 0..1 to outputs (batch, classes); these may be probabilities.
        images: Labelled images.
    """
    fault = dict.fromkeys(calls, 0.0)
    for batch, labels in Batches(images, CHUNK, AS_THEY_ARE, device=torch.device("cpu")):
        for name, call in calls.items():
            outputs = call(batch)
            check_outputs(outputs, labels)
            fault[name] += float(faults(outputs, labels).double().sum())
    task = Task.of(images.labels)
    return {name: task.error(total / len(images)) for name, total in fault.items()}
