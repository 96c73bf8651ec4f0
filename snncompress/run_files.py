"""The files of a run: written when it is finished, read when it goes on.

A run's folder holds ``run.json`` (what it is and how it came about), ``model.safetensors`` (the plain model),
``noise.safetensors`` (the branches, where there are any), ``posterior.safetensors`` (mean and variance of every
weight, where they were sampled), ``probe.safetensors`` (a small input and its logits),
``history.jsonl`` and, after pruning, ``plan.json``. Nothing in it is pickled.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from snncompress import __version__
from snncompress.data.dataset import Normalization
from snncompress.data.task import Task
from snncompress.errors import RunError, UsageError
from snncompress.files import read_json, read_tensors, write_json, write_tensors
from snncompress.models.checkpoint import load_checkpoint
from snncompress.models.shapes import record_shapes, restore
from snncompress.models.sources import ModelSource, build, changed_file, default_input_shape, resolve
from snncompress.run import NoiseRecord, Run, wrap
from snncompress.sparse_files import read_model, write_model
from snncompress.storage import Storage
from snncompress.zoo.entries import find_zoo, in_zoo, is_zoo

FORMAT = 1
NEEDED = {  # what a run cannot be loaded without
    "status", "name", "config", "source", "input_shape", "classes", "normalization", "data", "original", "metrics",
    "noise", "parent", "shapes",
}  # fmt: skip
PROBE_TOLERANCE = 1e-3  # of the largest logit: other machines round differently, other models differ far more


def load(
    what: str | Path,
    *,
    checkpoint: str | Path | None = None,
    arguments: Mapping[str, Any] | None = None,
    classes: Sequence[str] = (),
    input_shape: tuple[int, int, int] | None = None,
    normalize: str | None = None,
    model: nn.Module | None = None,
    trust: bool = False,
) -> Run:
    """Loads a run directory, or builds a model from its source.

    Args:
        what: a run directory; ``zoo:NAME``, an entry of ``snncompress zoo list``; or a source: ``lenet5``,
            ``torchvision:resnet18``, ``my_net.py:build``.
        checkpoint: weights for a source.
        arguments: the builder's arguments.
        classes: the names of the outputs, where the data tells them.
        input_shape: channels, height, width, where the data tells them.
        normalize: the normalization of the images; the run's own, or none, when absent.
        model: a fresh build of the architecture, for a run whose model was handed over in Python.
        trust: run the source file that a run records even if it has changed since.
    """
    folder = find_zoo(str(what)).need_weights() if is_zoo(what) else Path(what)
    if (folder / "run.json").is_file():
        if checkpoint is not None:
            raise UsageError(f"{folder} is a run and has its own weights; leave --checkpoint out")
        run = _load_folder(folder, model, trust)
    elif folder.is_dir():
        raise RunError(f"{folder} is a folder without run.json: not a run of snncompress")
    else:
        run = _build(str(what), checkpoint, arguments, classes, input_shape)
    if normalize is not None:
        run = replace(run, normalization=Normalization.parse(normalize, run.input_shape[0]))
    return run


def _build(
    name: str,
    checkpoint: str | Path | None,
    arguments: Mapping[str, Any] | None,
    classes: Sequence[str],
    input_shape: tuple[int, int, int] | None,
) -> Run:
    source = resolve(name, arguments, classes=len(classes) or None, image_shape=input_shape)
    shape = input_shape or default_input_shape(source)
    if shape is None:
        raise UsageError(f"the image size that {name} takes is not known; give --input-shape 3x32x32, or --data")
    model = build(source, trust=True)  # the user has just named the file
    if checkpoint is not None:
        load_checkpoint(model, checkpoint)
    run = wrap(model, shape, name=name, classes=classes)
    return replace(run, source=source, checkpoint=None if checkpoint is None else str(Path(checkpoint).resolve()))


def save_run(run: Run, folder: Path, command: Sequence[str] = ()) -> Run:
    """Writes a finished run; ``run.json`` comes last, so that a folder that has a complete one is whole."""
    write_model(folder / "model.safetensors", run.model.state_dict(), sparse=run.storage is Storage.CSR)
    if run.noise is not None:
        write_tensors(folder / "noise.safetensors", run.noise.tensors)
    if run.posterior is not None:
        write_tensors(folder / "posterior.safetensors", run.posterior)
    images = torch.randn(2, *run.input_shape, generator=torch.Generator().manual_seed(0))
    write_tensors(folder / "probe.safetensors", {"images": images, "logits": _logits(run.model, images)})
    if run.plan is not None:
        write_json(folder / "plan.json", run.plan)
    write_json(folder / "run.json", header(run, "complete", command))
    return replace(run, path=folder)


def header(run: Run, status: str, command: Sequence[str]) -> dict[str, Any]:
    """What ``run.json`` says."""
    return {
        "format": FORMAT,
        "status": status,
        "name": run.name,
        "command": list(command),
        "config": run.config,
        "source": None if run.source is None else run.source.to_json(),
        "checkpoint": run.checkpoint,
        "sparse": run.sparse,
        "storage": run.storage,
        "task": str(run.task),
        "input_shape": list(run.input_shape),
        "classes": list(run.classes),
        "normalization": {"mean": list(run.normalization.mean), "std": list(run.normalization.std)},
        "data": run.data,
        "original": run.original,
        "metrics": run.metrics,
        "noise": None if run.noise is None else run.noise.json,
        "parent": run.parent,
        "shapes": record_shapes(run.model),
        "versions": {
            "snncompress": __version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
    }


def store_metrics(run: Run, metrics: dict[str, Any]) -> Run:
    """Adds measurements to a run, in its folder too where it has one; what others have noted there since stays.

    Raises:
        RunError: If its folder cannot be written to, or belongs to the zoo.
    """
    merged = {**run.metrics, **metrics}
    if run.path is not None:
        if in_zoo(run.path):
            raise RunError(
                f"{run.label} belongs to the zoo, which is not written to; make a run of your own with "
                f"`snncompress train zoo:{run.label} --method none --epochs 0 --out RUN`"
            )
        content = read_json(run.path / "run.json")
        merged = {**content["metrics"], **metrics}
        write_json(run.path / "run.json", {**content, "metrics": merged})
    return replace(run, metrics=merged)


def read_header(folder: Path) -> dict[str, Any]:
    """``run.json`` of a finished or unfinished run, checked for its format."""
    content: dict[str, Any] = read_json(folder / "run.json")
    if not isinstance(content, dict) or not isinstance(content.get("format"), int):
        raise RunError(f"{folder / 'run.json'} is damaged or not of snncompress; restore it, or make the run again")
    if content["format"] > FORMAT:
        raise RunError(f"{folder} was written by a newer snncompress (format {content['format']}); upgrade to read it")
    return content


def _load_folder(folder: Path, fresh: nn.Module | None, trust: bool) -> Run:
    content = read_header(folder)
    if missing := NEEDED.difference(content):
        raise RunError(
            f"{folder / 'run.json'} is damaged: it lacks '{min(missing)}'; restore it, or make the run again"
        )
    if content["status"] != "complete":
        raise RunError(f"{folder} is not finished; repeat its command with --resume")
    source = None if content["source"] is None else ModelSource.from_json(content["source"])
    if fresh is None and source is None:
        raise RunError(f"{folder} holds a model that was handed over in Python; load it with model=a fresh build of it")
    model = fresh if fresh is not None else build(source, trust=trust)  # type: ignore[arg-type]
    tensors = read_model(folder / "model.safetensors")
    restore(model, content["shapes"], tensors)
    model.eval()
    _check_probe(folder, model, None if fresh is not None else source)
    noise = None
    if content["noise"] is not None:
        noise = NoiseRecord(content["noise"], read_tensors(folder / "noise.safetensors")[0])
    plan, posterior = folder / "plan.json", folder / "posterior.safetensors"
    return Run(
        name=content["name"],
        model=model,
        input_shape=tuple(content["input_shape"]),
        normalization=Normalization(*(tuple(content["normalization"][key]) for key in ("mean", "std"))),
        classes=tuple(content["classes"]),
        source=source,
        original=content["original"],
        metrics=content["metrics"],
        data=content["data"],
        noise=noise,
        posterior=read_tensors(posterior)[0] if posterior.exists() else None,
        plan=read_json(plan) if plan.exists() else None,
        config=content["config"],
        parent=content["parent"],
        path=folder,
        checkpoint=content.get("checkpoint"),
        sparse=bool(content.get("sparse", False)),
        storage=Storage(content.get("storage", Storage.DENSE)),
        task=_task(folder, content.get("task", Task.CLASSIFICATION)),  # older runs knew no other
    )


def _task(folder: Path, name: str) -> Task:
    try:
        return Task(name)
    except ValueError:
        raise RunError(
            f"{folder / 'run.json'} is damaged: there is no task '{name}'; restore it, or make the run again"
        ) from None


def _check_probe(folder: Path, model: nn.Module, source: ModelSource | None) -> None:
    probe, _ = read_tensors(folder / "probe.safetensors")
    logits = _logits(model, probe["images"])
    difference = (logits - probe["logits"]).abs().max() / probe["logits"].abs().max().clamp_min(1e-6)
    if not bool(difference <= PROBE_TOLERANCE):
        if source is not None and (file := changed_file(source)) is not None:
            raise RunError(f"{folder} needs {file} as it was: with what stands there now, its model gives other logits")
        raise RunError(f"{folder} is damaged: its model does not give the logits that it gave when it was saved")


@torch.no_grad()
def _logits(model: nn.Module, images: Tensor) -> Tensor:
    output: Tensor = model.eval()(images)
    return output
