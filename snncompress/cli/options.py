"""Options that several commands share."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from snncompress.data.holdout import Holdout
from snncompress.errors import UsageError, unknown_name
from snncompress.training.options import OptimizerName, Precision, Schedule

if TYPE_CHECKING:
    from snncompress.training.distillation import DistillOptions


def read_recipe(ctx: typer.Context, path: Path | None) -> Path | None:
    """Makes the values of a TOML file the defaults of this command's options."""
    if path is None:
        return None
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"no such recipe: {path}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise UsageError(f"{path} is not a recipe: {error}") from None
    known = {parameter.name: parameter for parameter in ctx.command.params if parameter.name}
    defaults: dict[str, Any] = {}
    for key, value in values.items():
        name = key.replace("-", "_")
        if name not in known:
            raise unknown_name(f"option in {path}", key, (other.replace("_", "-") for other in known))
        repeatable = getattr(known[name], "multiple", False) or known[name].nargs == -1
        if isinstance(value, bool) and not getattr(known[name], "is_flag", False):
            raise UsageError(f"{path}: {key} takes a value, not {str(value).lower()}")
        defaults[name] = _as_typed(path, key, value, repeatable=repeatable)
    ctx.default_map = {**(ctx.default_map or {}), **defaults}
    return path


def _as_typed(path: Path, key: str, value: Any, *, repeatable: bool) -> Any:
    """A value of a recipe as the command line would have it: a table is key=value, a repeatable option a list."""
    if isinstance(value, dict):
        try:
            return [f"{name}={json.dumps(content)}" for name, content in value.items()]
        except TypeError as error:
            raise UsageError(f"{path}: {key} holds a value that no option takes ({error})") from None
    return [value] if repeatable and not isinstance(value, list) else value


def pairs(texts: list[str] | None, option: str) -> dict[str, Any]:
    """key=value texts as a dictionary; values are JSON where they can be, else text."""
    found: dict[str, Any] = {}
    for text in texts or []:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise UsageError(f"{option} '{text}' is not of the form key=value")
        try:
            found[key.replace("-", "_")] = json.loads(value)
        except ValueError:
            found[key.replace("-", "_")] = value
    return found


def spoilt(label_noise: str | None, random_labels: bool) -> str | None:
    """What is to be done to labels."""
    if random_labels and label_noise is not None:
        raise UsageError("--random-labels leaves nothing for --label-noise to change; give one of them")
    return "random" if random_labels else label_noise


def listening(distill: str | None, temperature: float, weight: float, layers: list[str] | None) -> DistillOptions:
    """How a teacher is listened to."""
    from snncompress.training.distillation import DistillOptions

    if layers and distill is None:
        raise UsageError("--distill-layers says what to learn from a teacher; name one with --distill")
    return DistillOptions(temperature, weight, tuple(layers or ()))


def typed(ctx: typer.Context) -> list[str]:
    """The command as it was typed, for the record."""
    return ["snncompress", *(ctx.obj or [])]


def shape(text: str | None) -> tuple[int, int, int] | None:
    """3x32x32 as numbers."""
    if text is None:
        return None
    try:
        channels, height, width = (int(part) for part in text.lower().replace("×", "x").split("x"))
    except ValueError:
        raise UsageError(f"--input-shape '{text}' is not of the form 3x32x32") from None
    if min(channels, height, width) < 1:
        raise UsageError(f"--input-shape '{text}' needs numbers above 0")
    return channels, height, width


Source = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE",
        show_default=False,
        help="A run directory; zoo:NAME (see snncompress zoo list); or a model: lenet5 (see snncompress list "
        "models), torchvision:resnet18, path/to/my_net.py:build.",
    ),
]
Checkpoint = Annotated[
    Path | None,
    typer.Option(help="Weights for a model: .safetensors, .pt, .pth, .th.", show_default=False),
]
ModelArg = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE", help="An argument of the model's builder; repeatable.",
        show_default=False,
    ),
]  # fmt: skip
InputShape = Annotated[
    str | None,
    typer.Option(metavar="CxHxW", help="Image shape, where no data tells it."),
]
BatchSize = Annotated[int, typer.Option(help="Images a step.")]
Optimizer = Annotated[OptimizerName, typer.Option(help="SGD has Nesterov momentum 0.9.")]
LearningSchedule = Annotated[Schedule, typer.Option(help="How the learning rate falls.")]
DistillTemperature = Annotated[float, typer.Option(help="Softens both networks' probabilities.")]
DistillWeight = Annotated[float, typer.Option(help="Share of the teacher in the loss.")]
DistillLayers = Annotated[
    list[str] | None,
    typer.Option(help="A layer (or glob) whose outputs are learned from the teacher, too; repeatable."),
]
Augment = Annotated[str, typer.Option(help="none, shift, affine, elastic or crop-flip.")]
Views = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Make N augmented views of each image, one an epoch, and then go through them again, so that --distill "
        "asks its teacher but once about each; else always new ones.",
        show_default=False,
    ),
]
Mixup = Annotated[
    float | None,
    typer.Option(
        metavar="A",
        help="Blend each image with another one, by a share of Beta(A, A); with 1 all shares come equally often.",
        show_default=False,
    ),
]
ComputedIn = Annotated[
    Precision,
    typer.Option(help="What training computes in; bfloat16 is faster where the processor has instructions for it."),
]
WeightDecay = Annotated[float, typer.Option(help="ℓ2 penalty of the optimizer, not on the noise.")]
Normalize = Annotated[
    str | None,
    typer.Option(help="mnist, cifar10, imagenet, none or MEAN/STD; else the data set's own."),
]
TrustSource = Annotated[
    bool,
    typer.Option("--trust-source", help="Run a run's source file even if it has changed since."),
]
Data = Annotated[
    str | None,
    typer.Option(
        help="mnist-sample, mnist, cifar10, folder:PATH, npz:PATH, ... (see snncompress list data); "
        "a run knows its own.",
        show_default=False,
    ),
]
DataRoot = Annotated[
    Path | None,
    typer.Option(help="Where data sets are; else $SNNCOMPRESS_DATA, else ./data."),
]
Download = Annotated[bool, typer.Option("--download", help="Fetch the data set if missing.")]
ImageSize = Annotated[int | None, typer.Option(help="Resize images to this height and width.")]
HoldoutOf = Annotated[
    Holdout | None,
    typer.Option(
        help="Validation images are taken from train, or are half of the test images (for a checkpoint that has seen "
        "all training images; the other half remains as the test set); none: all training images are for training "
        "(for the last training, when all is chosen).",
        show_default="train, or what the run was made with",
    ),
]
LabelNoise = Annotated[
    str | None,
    typer.Option(
        metavar="KIND:SHARE",
        help="Make this share of training and validation labels wrong: patterned:0.3, uniform:0.3; none.",
        show_default=False,
    ),
]
RandomLabels = Annotated[
    bool, typer.Option("--random-labels", help="Draw every label at random, whatever the image shows.")
]
LimitTrain = Annotated[
    int | None, typer.Option(metavar="N", help="Train on N images only, chosen by --seed.", show_default=False)
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")]
Force = Annotated[bool, typer.Option("--force", help="Replace an existing --out.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on where the run in --out was interrupted.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no messages.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show a traceback on failure.")]
Config = Annotated[
    Path | None,
    typer.Option(
        callback=read_recipe, is_eager=True, help="A TOML file with the same options; the command line wins.",
        show_default=False,
    ),
]  # fmt: skip
SaveEvery = Annotated[float, typer.Option(help="Seconds between two saves of the state.", min=0.0)]
