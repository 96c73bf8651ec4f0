"""How fast models are in onnxruntime and in torch, measured in turn in one run; their memory and their files."""

from __future__ import annotations

import copy
import gzip
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from snncompress.errors import SnncompressError, UsageError
from snncompress.exporting.onnx import to_onnx
from snncompress.exporting.profiling import Profile, profile_model
from snncompress.exporting.runtime import open_session
from snncompress.measure.cost import measure_cost
from snncompress.measure.peak import measure_peak_bytes
from snncompress.measure.timing import Timing, time_in_turn, torch_threads
from snncompress.models.sources import build
from snncompress.progress import Progress
from snncompress.run import Run

RUNTIMES = ("onnxruntime", "torch")
LOADS = 15  # how often a file is loaded


@dataclass(frozen=True)
class Latency:
    """The time of one batch.

    Attributes:
        runtime: What ran the model.
        batch: How many images at once.
        timing: Its rounds.
        times_faster: Than the first model of the same measurement, by rounds.
    """

    runtime: str
    batch: int
    timing: Timing
    times_faster: float


@dataclass(frozen=True)
class Speed:
    """What one model takes.

    Attributes:
        name: What the model is called.
        threads: How many an operator may use.
        latencies: For each runtime and batch.
        load: Making a session of its ONNX file.
        file_bytes: Of that file.
        gzip_bytes: Of the same, compressed.
        peak_bytes: Tensors alive at once in a forward pass, by batch (``measure/peak.py``).
        profile: Where the time of the largest batch goes.
    """

    name: str
    threads: int
    latencies: tuple[Latency, ...]
    load: Timing
    file_bytes: int
    gzip_bytes: int
    peak_bytes: dict[int, int]
    profile: Profile


@dataclass(frozen=True)
class Contender:
    """A model whose speed is measured: its name, the model, and the shape of its images."""

    name: str
    model: nn.Module
    input_shape: tuple[int, int, int]


def original_model(run: Run, *, trust: bool = False) -> nn.Module | None:
    """The architecture that a run was pruned from, with new weights; None where it cannot be built any more.

    Args:
        run: A run.
        trust: Execute the source file that it records even if that has changed.
    """
    if run.source is None:
        return None
    try:
        model = build(run.source, trust=trust).eval()
        same = measure_cost(model, run.input_shape).flops == run.original["flops"]
    except SnncompressError:
        return None
    return model if same else None


def measure_speed(
    contenders: Sequence[Contender],
    *,
    batches: Sequence[int] = (1, 256),
    threads: int = 1,
    progress: Progress | None = None,
) -> list[Speed]:
    """Measures models against each other: rounds of all of them, so that ratios hold while other programs run.

    Args:
        contenders: The models; ratios are to the first.
        batches: The batch sizes.
        threads: How many threads an operator may use.
        progress: Who listens.

    Raises:
        UsageError: If a batch size or the number of threads is below 1.
        ExportError: If a model cannot be exported.
    """
    if min(*batches, threads) < 1:
        raise UsageError("--latency-batch and --threads must be at least 1")
    progress = progress or Progress()
    progress.start("measure latency", len(contenders) + len(RUNTIMES) * len(batches) + 1)
    entries = []
    for contender in contenders:
        entries.append(_Entry(contender, threads))
        progress.advance()
    found: dict[tuple[str, int], dict[int, Timing]] = {}
    with torch_threads(threads), torch.no_grad():
        for batch in batches:
            for runtime in RUNTIMES:
                calls = {i: e.call(runtime, batch) for i, e in enumerate(entries)}
                found[runtime, batch] = time_in_turn(calls, one_thread=threads == 1)
                progress.advance()
        loads = time_in_turn({i: e.load for i, e in enumerate(entries)}, rounds=LOADS)
        progress.advance()
    progress.finish()
    return [
        Speed(
            name=entry.contender.name,
            threads=threads,
            latencies=tuple(
                Latency(runtime, batch, timings[index], timings[index].times_faster(timings[0]))
                for (runtime, batch), timings in found.items()
            ),
            load=loads[index],
            file_bytes=len(entry.data),
            gzip_bytes=len(gzip.compress(entry.data)),
            peak_bytes={b: measure_peak_bytes(entry.model, entry.contender.input_shape, b) for b in batches},
            profile=entry.profile(max(batches)),
        )
        for index, entry in enumerate(entries)
    ]


class _Entry:
    """A model in both runtimes."""

    def __init__(self, contender: Contender, threads: int) -> None:
        self.contender, self.threads = contender, threads
        self.model = copy.deepcopy(contender.model).cpu().eval()
        images = torch.zeros(1, *contender.input_shape)
        self.data: bytes = to_onnx(self.model, images, None, "logits").SerializeToString()
        self.session = open_session(self.data, threads)

    def images(self, batch: int) -> torch.Tensor:
        # Not zeros: arithmetic with them may be quicker.
        return torch.rand(batch, *self.contender.input_shape, generator=torch.Generator().manual_seed(0))

    def call(self, runtime: str, batch: int) -> Callable[[], object]:
        images = self.images(batch)
        if runtime == "torch":
            return lambda: self.model(images)
        inputs = {"images": images.numpy()}
        return lambda: self.session.run(None, inputs)

    def load(self) -> object:
        return open_session(self.data, self.threads)

    def profile(self, batch: int) -> Profile:
        model = self.contender.model
        own = type(model).__name__  # what a report calls the model's own forward
        names = [layer.name for layer in measure_cost(model, self.contender.input_shape).layers]
        layers = {"" if name == own else name: name for name in names}
        return profile_model(self.data, self.images(batch), self.threads, layers)
