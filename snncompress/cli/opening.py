"""From what the user typed to a run and its data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snncompress.data.holdout import Holdout
from snncompress.data.task import Task
from snncompress.errors import DataError, UsageError
from snncompress.zoo.entries import find_zoo, is_zoo

if TYPE_CHECKING:
    from torch import Tensor

    from snncompress.data.batches import Batches
    from snncompress.data.dataset import Dataset, Images
    from snncompress.run import Run


@dataclass(frozen=True)
class Request:
    """Which model and which data; see ``options.py`` for the options of the same names."""

    source: str
    checkpoint: Path | None = None
    model_arg: dict[str, Any] | None = None
    input_shape: tuple[int, int, int] | None = None
    normalize: str | None = None
    trust_source: bool = False
    data: str | None = None
    data_root: Path | None = None
    download: bool = False
    image_size: int | None = None
    device: str = "auto"
    seed: int = 0  # of the validation split, where the run does not say
    holdout: Holdout | None = None  # the run's, where absent; else of the training images
    label_noise: str | None = None  # the run's, where absent; also of limit_train
    limit_train: int | None = None


@dataclass(frozen=True)
class Opened:
    """A run and, where it was asked for or is known, its data.

    Attributes:
        own: whether data and normalization are those of the run, so that what is measured on them is the run's.
    """

    run: Run
    data: Dataset | None
    own: bool = False

    def need_data(self) -> Dataset:
        """The data, or an error that says how to name it."""
        if self.data is None:
            raise UsageError("which data? give --data (see `snncompress list data`)")
        return self.data

    def batches(self, split: str, device: str) -> Batches:
        """Evaluation batches of a split, normalized as the run says."""
        from snncompress.data.batches import Batches
        from snncompress.training.feed import EVALUATION_BATCH, pick_device

        return Batches(self.split(split), EVALUATION_BATCH, self.run.normalization, device=pick_device(device))

    def split(self, name: str) -> Images:
        """The images of a split, or an error that says which there are."""
        return self.need_data().part(name)

    def images(self, count: int) -> Tensor | None:
        """A few images as floats 0..1, or features, on the CPU."""
        import torch

        from snncompress.data.dataset import to_float

        if self.data is None:
            return None
        source = self.data.train if self.data.validation is None else self.data.validation
        images, _ = source.batch(torch.arange(min(count, len(source))))
        return to_float(images).cpu()


def open_run(request: Request, *, with_data: bool = True) -> Opened:
    """Loads the model and, unless ``with_data`` is false, the data that was named or that the run was trained on."""
    from snncompress.run_files import load

    request = replace(request, data=_absolute(request.data))
    own = False
    if is_run(request.source):
        run = load(
            request.source, checkpoint=request.checkpoint, normalize=request.normalize, trust=request.trust_source
        )
        own = is_own(run, request)
        data = _load(request, run.data) if with_data and (request.data or run.data) else None
        if data is not None:
            run = replace(run, data=_settings(request, run.data))
    else:
        data = _load(request, {}) if with_data and request.data else None
        run = load(
            request.source,
            checkpoint=request.checkpoint,
            arguments=request.model_arg,
            classes=() if data is None else data.classes,
            input_shape=request.input_shape if data is None else data.image_shape,
            normalize=request.normalize,
        )
        if data is not None:
            run = replace(run, data=_settings(request, {}), normalization=data.normalization, task=data.task)
    if data is not None:
        _check_fit(run, data)
    return Opened(run, data, own)


def is_run(source: str) -> bool:
    """Whether a source is a run directory, or a run of the zoo; one that is not stored there is refused."""
    if is_zoo(source):
        return bool(find_zoo(source).need_weights())
    return (Path(source) / "run.json").is_file()


def is_own(run: Run, request: Request) -> bool:
    """Whether the request leaves a run's data and normalization as they are."""
    return (
        _absolute(request.data) in (None, run.data.get("name"))
        and request.normalize is None
        and request.image_size in (None, run.data.get("image_size"))
        and request.holdout in (None, run.data.get("holdout", Holdout.TRAIN))
    )


def _absolute(data: str | None) -> str | None:
    """npz:PATH with a path that a run can remember: the next command may start in another folder."""
    source, _, path = (data or "").partition(":")
    return f"{source}:{Path(path).expanduser().resolve()}" if path else data


def _settings(request: Request, known: dict[str, Any]) -> dict[str, Any]:
    """What a run remembers about its data."""
    root = known.get("root") if request.data_root is None else str(request.data_root.resolve())
    return {
        "name": request.data or known["name"],
        "root": root,
        "seed": known.get("seed", request.seed),
        "image_size": known.get("image_size") if request.image_size is None else request.image_size,
        "holdout": _holdout(request, known),
        **{key: value for key, value in _changes(request, known).items() if value is not None},
    }


def _changes(request: Request, known: dict[str, Any]) -> dict[str, Any]:
    """How the training data are spoilt or cut short: as asked for, or as the run had its own data."""
    inherited = known if request.data in (None, known.get("name")) else {}
    noise = request.label_noise or inherited.get("label_noise")
    limit = inherited.get("limit_train") if request.limit_train is None else request.limit_train
    return {"label_noise": None if noise == "none" else noise, "limit_train": limit}


def _holdout(request: Request, known: dict[str, Any]) -> str:
    return str(request.holdout or known.get("holdout", Holdout.TRAIN))


def _load(request: Request, known: dict[str, Any]) -> Dataset:
    from snncompress.data.sources import load_data
    from snncompress.training.feed import pick_device

    return load_data(
        request.data or known["name"],
        root=request.data_root or known.get("root"),
        download=request.download,
        normalize=request.normalize,
        seed=known.get("seed", request.seed),
        holdout=_holdout(request, known),
        device=pick_device(request.device),
        image_size=known.get("image_size") if request.image_size is None else request.image_size,
        **_changes(request, known),
    )


def _check_fit(run: Run, data: Dataset) -> None:
    if data.image_shape != run.input_shape:
        have, want = ("×".join(map(str, s)) for s in (data.image_shape, run.input_shape))
        raise DataError(
            f"{data.name} has {data.noun} of {have}, but {run.name} takes {want}; give --image-size or other data"
        )
    if run.task is not data.task:
        kinds = {Task.CLASSIFICATION: "classes (integer labels)", Task.REGRESSION: "a number (float labels)"}
        raise DataError(
            f"{data.name} is for predicting {kinds[data.task]}, but {run.name} predicts {kinds[run.task]}; "
            "give its own data, or train a new model"
        )
    if run.classes and len(run.classes) != len(data.classes):
        raise DataError(
            f"{data.name} has {len(data.classes)} classes, but {run.name} knows {len(run.classes)}; give its own data"
        )


def open_teacher(folder: str, trust: bool, option: str = "--distill") -> Run:
    """The run that ``--distill``, or another option, names."""
    from snncompress.run_files import load

    if not is_run(folder):
        raise UsageError(f"{option} {folder} is not a run; give the folder of one that is trained")
    return load(folder, trust=trust)
