"""What every format begins and ends with: the model to export, and the comparison of what was written with it."""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from snncompress.data.dataset import Normalization
from snncompress.data.task import Task
from snncompress.errors import ExportError, UsageError
from snncompress.exporting.onnx_file import TOLERANCES, Precision
from snncompress.exporting.runtime import first_cause
from snncompress.run import Run

SMALL_BATCHES = (1, 7)  # compared too: an exporter may have fixed the batch size it saw
RANDOM_IMAGES = 16


@dataclass(frozen=True)
class ExportResult:
    """An exported file and how far its outputs are from torch's.

    Attributes:
        path: The file.
        size_bytes: Its size, that of a weights' file beside it included.
        opset: The version of ONNX's operators it uses; None in other formats.
        largest_difference: Between an output of it and one of the run's model.
        relative_difference: The same, of the largest output.
        samples: How many images were compared.
        real_images: Whether these were given, or random.
        beside: What was written beside it.
        precision: How it holds its weights.
    """

    path: Path
    size_bytes: int
    opset: int | None
    largest_difference: float
    relative_difference: float
    samples: int
    real_images: bool
    beside: tuple[Path, ...] = ()
    precision: Precision = Precision.FLOAT32


@dataclass(frozen=True)
class Subject:
    """A model on its way into a file.

    Attributes:
        model: A copy of the run's, with what the file is asked to contain around it, in evaluation mode on the CPU.
        inputs: What it is compared on.
        output: What its output is called.
        real_images: Whether the inputs were given, or random.
    """

    model: nn.Module
    inputs: Tensor
    output: str
    real_images: bool

    def compare(
        self, other: Callable[[Tensor], Tensor], precision: Precision = Precision.FLOAT32
    ) -> tuple[float, float]:
        """The largest difference of outputs and its share of the largest output.

        Args:
            other: What was exported.
            precision: How it holds its weights.

        Raises:
            ExportError: If it cannot run, or its outputs are too far from the model's.
        """
        difference = largest = 0.0
        tolerance = TOLERANCES[precision]
        sizes = {min(size, len(self.inputs)) for size in (*SMALL_BATCHES, len(self.inputs))}
        try:
            for size in sorted(sizes):
                with torch.no_grad():
                    got, wanted = other(self.inputs[:size]), self.model(self.inputs[:size])
                difference = _larger(difference, (got - wanted).abs().max())
                largest = _larger(largest, wanted.abs().max())
        except Exception as error:  # onnxruntime's errors have no class of their own, and other formats run anything
            raise ExportError(f"the exported model cannot be run: {first_cause(error)}") from error
        if not math.isfinite(largest):
            raise ExportError("the model's own outputs are NaN or infinite; check its weights and its normalization")
        if not difference <= tolerance * largest:  # also if it is NaN
            remedy = "another --opset or --format" if precision is Precision.FLOAT32 else "float32"
            raise ExportError(
                f"the exported model's outputs differ from torch's by {difference:.2e}, more than {tolerance:g} "
                f"of the largest ({largest:.2e}), so no file was left; try {remedy}"
            )
        return difference, difference / largest if largest else difference


def prepare(
    run: Run,
    out: Path,
    *,
    with_softmax: bool = False,
    with_normalization: bool = False,
    images: Tensor | None = None,
    force: bool = False,
) -> Subject:
    """Looks whether a run can be exported to a place, and makes the model to export.

    Args:
        run: What to export.
        out: The file.
        with_softmax: Probabilities in place of logits.
        with_normalization: The input is scaled to 0..1 only.
        images: Images (N, C, H, W) in 0..1, to compare on; None takes random ones.
        force: Replace an existing file.
    """
    run.need_mean("exported")
    if with_softmax and run.task is Task.REGRESSION:
        raise UsageError(f"--with-softmax: {run.name} predicts a number, not classes; leave it out")
    check_place(out, force)
    if images is not None and (not len(images) or tuple(images.shape[1:]) != tuple(run.input_shape)):
        wanted, got = ("×".join(map(str, shape)) for shape in (run.input_shape, images.shape))
        raise UsageError(f"the images to compare on must be N×{wanted}, at least one, not {got}")
    real_images = images is not None
    if images is None:
        images = torch.rand(RANDOM_IMAGES, *run.input_shape, generator=torch.Generator().manual_seed(0))
    images = images.detach().cpu().float()
    inputs = images if with_normalization else run.normalization(images)
    normalization = run.normalization if with_normalization else None
    model = _Exported(copy.deepcopy(run.model).cpu(), normalization, with_softmax).eval()
    output = "predictions" if run.task is Task.REGRESSION else "probabilities" if with_softmax else "logits"
    return Subject(model, inputs, output, real_images)


def check_place(out: Path, force: bool) -> None:
    """Refuses a place where no file can be written, or one that is taken."""
    if out.is_dir():
        raise UsageError(f"{out} is a folder; name a file in it, such as {out / 'model.onnx'}")
    if out.exists() and not force:
        raise UsageError(f"{out} exists already; choose another name, or replace it with --force")
    if not out.parent.is_dir():
        raise UsageError(f"there is no folder {out.parent} to write {out.name} in; make it first")


class _Exported(nn.Module):
    """The model with what the file is asked to contain around it."""

    def __init__(self, model: nn.Module, normalization: Normalization | None, softmax: bool) -> None:
        super().__init__()
        self.model, self.normalization, self.softmax = model, normalization, softmax

    def forward(self, images: Tensor) -> Tensor:
        if self.normalization is not None:
            images = self.normalization(images)
        outputs: Tensor = self.model(images)
        return outputs.softmax(dim=1) if self.softmax else outputs


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """The exporters print, warn and log, on success too."""
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            with contextlib.redirect_stderr(io.StringIO()):
                yield
    finally:
        logging.disable(disabled)


def _larger(value: float, other: Tensor) -> float:
    return float(torch.maximum(torch.tensor(value), other))  # unlike Python's max, it keeps a NaN
