"""Whether an ONNX file does what a run's model does: structure, shapes, outputs, error and speed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from snncompress.checks import Check, Checked
from snncompress.data.dataset import Images, noun, to_float
from snncompress.data.task import Task
from snncompress.errors import DataError, ExportError, SnncompressError
from snncompress.evaluation.calibration import Scaling
from snncompress.exporting.answers import CHUNK, measure_errors
from snncompress.exporting.calibrated import bake
from snncompress.exporting.onnx_file import TOLERANCES, OnnxFile, Precision, read_onnx
from snncompress.exporting.runtime import Runtime, first_cause, load_in
from snncompress.measure.timing import time_in_turn, torch_threads
from snncompress.progress import Progress
from snncompress.run import Run

BATCHES = (1, 7, 256)
# By how many points the share of wrong answers may differ; fewer images than make one of these must agree in all but
# one answer, in float32 in all.
ERROR_SLACK = {Precision.FLOAT32: 0.02, Precision.FLOAT16: 0.1, Precision.INT8: 0.5}
ROUNDING = 1e-9  # of the difference of two percentages
RMSE_SLACK = {Precision.FLOAT32: 1e-3, Precision.FLOAT16: 1e-2, Precision.INT8: 0.1}  # of torch's


@dataclass(frozen=True)
class Verification(Checked):
    """All checks of a file against a run."""

    file: OnnxFile

    def to_json(self) -> dict[str, Any]:
        """For scripts."""
        file = {"path": str(self.file.path), "opset": self.file.opset, "precision": str(self.file.precision)}
        return {**file, **self.verdict()}


def verify_onnx(
    path: str | Path,
    run: Run,
    images: Images,
    *,
    runtime: Runtime = Runtime.ONNXRUNTIME,
    batches: Sequence[int] = BATCHES,
    progress: Progress | None = None,
) -> Verification:
    """Compares a file in its runtime with a run's model in torch, on labelled images; neither is changed.

    Args:
        path: The file; it may normalize its images, hold a softmax, and be of float32, float16 or int8.
        run: What it should do.
        images: Labelled images of the run's kind.
        runtime: What runs the file.
        batches: The batch sizes at which outputs are compared; images are repeated where there are too few.
        progress: Who listens.

    Raises:
        UsageError: If there is no such file, or the mean of the run carries nothing, or the runtime is not installed.
        ExportError: If the file is no model, or one with other inputs or outputs than the run's.
        DataError: If there are no images.
    """
    progress = progress or Progress()
    run.need_mean("verified")
    if not len(images):
        raise DataError("there are no images to compare on; check the data set and its split")
    file = read_onnx(path)
    _check_kinship(file, run)
    if file.calibration is not None:  # it is compared with the run and the temperature that that has now
        run = bake(run, Scaling(file.calibration["scaling"])).run
    checks = [_structure(file)]
    try:
        call = load_in(runtime, file.path)
    except SnncompressError:
        raise
    except Exception as error:  # the runtimes' errors have no class of their own
        checks.append(Check(runtime, False, f"cannot load it: {first_cause(error)}", {}))
        return Verification(tuple(checks), file)
    pair = _Pair(file, runtime, call, run)
    checks.append(_shapes(pair))
    progress.start("verify", len(batches) + 2)
    for size in batches:
        checks.append(_parity(pair, _take(images, size)))
        progress.advance()
    if not any(check.name.startswith("parity") and check.values.get("reason") for check in checks):
        checks.append(_error(pair, images))
        progress.advance()
        checks.append(_latency(pair, _take(images, 1)))
    progress.finish()
    return Verification(tuple(checks), file)


@dataclass(frozen=True)
class _Pair:
    """A file in its runtime and the model that it should equal."""

    file: OnnxFile
    runtime: Runtime
    call: Callable[[Tensor], Tensor]
    run: Run

    def onnx(self, images: Tensor) -> Tensor:
        return self.call(self.file.reads(images, self.run.normalization))

    @torch.no_grad()
    def torch(self, images: Tensor) -> Tensor:
        model = self.run.model.eval()
        outputs = torch.cat([model(self.run.normalization(chunk)) for chunk in images.split(CHUNK)])
        return outputs.softmax(1) if self.file.probabilities else outputs


def _take(images: Images, count: int) -> Tensor:
    """The first images as floats, over and over if need be."""
    return to_float(images.batch(torch.arange(count) % len(images))[0]).cpu()


def _outputs(run: Run) -> int:
    with torch.no_grad():
        return int(run.model.eval()(torch.zeros(1, *run.input_shape)).shape[1])


def _check_kinship(file: OnnxFile, run: Run) -> None:
    """Refuses the file of another model; what it must be compared on is not even known."""
    wanted = tuple(run.input_shape)
    fits = len(file.input_shape) == 4 and all(
        not isinstance(have, int) or have == want for have, want in zip(file.input_shape[1:], wanted, strict=True)
    )
    if not fits:
        raise ExportError(
            f"{file.path} reads {_show(file.input_shape[1:])}, but {run.name} {_show(wanted)}; "
            "it is another model's file"
        )
    outputs = _outputs(run)
    if len(file.output_shape) == 2 and file.output_shape[1] not in (None, outputs):
        have = file.output_shape[1]
        raise ExportError(
            f"{file.path} has {have} outputs an image, but {run.name} {outputs}; it is another model's file"
        )


def _show(shape: Sequence[object]) -> str:
    return "×".join("?" if size is None else str(size) for size in shape)


def _structure(file: OnnxFile) -> Check:
    import onnx

    try:
        onnx.checker.check_model(str(file.path), full_check=True)
    except Exception as error:  # the checker's errors and those of shape inference have no class in common
        return Check("checker", False, first_cause(error), {"reason": first_cause(error)})
    return Check("checker", True, f"opset {file.opset}, {file.precision}", {})


def _shapes(pair: _Pair) -> Check:
    file = pair.file
    values = {"input_shape": list(file.input_shape), "output_shape": list(file.output_shape)}
    detail = f"{_show(file.input_shape)} to {_show(file.output_shape)}"
    if isinstance(file.input_shape[0], int):
        return Check("shapes", False, f"{detail}: the batch size is fixed", values)
    return Check("shapes", True, detail, values)


def _parity(pair: _Pair, images: Tensor) -> Check:
    name, limit = f"parity at batch {len(images)}", TOLERANCES[pair.file.precision]
    values: dict[str, Any] = {"batch": len(images), "tolerance": limit}
    try:
        got = pair.onnx(images)
    except Exception as error:  # the runtimes' errors have no class of their own
        return Check(name, False, first_cause(error), {**values, "reason": first_cause(error)})
    wanted = pair.torch(images)
    if got.shape != wanted.shape:
        reason = f"{_show(got.shape)} outputs in place of {_show(wanted.shape)}"
        return Check(name, False, reason, {**values, "reason": reason})
    difference, largest = float((got - wanted).abs().max()), float(wanted.abs().max())
    if not math.isfinite(difference):
        reason = "outputs are NaN or infinite"
        return Check(name, False, reason, {**values, "reason": reason})
    relative = difference / largest if largest else difference
    detail = f"largest difference {difference:.1e}, {relative:.1e} of the largest output (at most {limit:g})"
    return Check(name, relative <= limit, detail, {**values, "difference": difference, "relative": relative})


def _error(pair: _Pair, images: Images) -> Check:
    """The error of both on all images."""
    task, precision, samples = pair.run.task, pair.file.precision, len(images)
    name = str(pair.runtime)
    errors = measure_errors({name: pair.onnx, "torch": pair.torch}, images)
    got, wanted = errors[name], errors["torch"]
    slack = _slack(task, precision, samples, wanted)
    detail = (
        f"{task.show(got)} in {name}, {task.show(wanted)} in torch on {samples:,} {noun(images.shape)} "
        f"(may differ by {task.number(slack)})"
    )
    values = {name: got, "torch": wanted, "slack": slack, "samples": samples}
    return Check(task.measure, abs(got - wanted) <= slack + ROUNDING, detail, values)


def _slack(task: Task, precision: Precision, samples: int, wanted: float) -> float:
    if task is Task.REGRESSION:
        return RMSE_SLACK[precision] * wanted
    one_answer = 0.0 if precision is Precision.FLOAT32 else 100 / samples
    return max(ERROR_SLACK[precision], one_answer)


def _latency(pair: _Pair, image: Tensor) -> Check:
    inputs = pair.file.reads(image, pair.run.normalization)
    call, name = load_in(pair.runtime, pair.file.path, threads=1), str(pair.runtime)
    normalized, model = pair.run.normalization(image), pair.run.model.eval()
    with torch_threads(1), torch.no_grad():
        calls = {name: lambda: call(inputs), "torch": lambda: model(normalized)}
        # OpenVINO works in a thread of its own.
        alone = pair.runtime is Runtime.ONNXRUNTIME
        times = time_in_turn(calls, budget_seconds=2, one_thread=alone)
    own, other = times[name], times["torch"]
    ratio = own.times_faster(other)
    detail = (
        f"{own.median_ms:.3g} ms an image in {name}, {other.median_ms:.3g} ms in torch: {ratio:.1f} times as "
        "fast (batch 1, one thread, measured in turn)"
    )
    values = {f"{name}_ms": own.median_ms, "torch_ms": other.median_ms, "times_faster": ratio}
    return Check("latency", None, detail, values)
