"""Where a model comes from: a name of the zoo, ``torchvision:NAME``, or ``path/to/my_net.py:build``.

A source is data (JSON-able): a run records it and builds the same architecture again from it.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from snncompress import registry
from snncompress.errors import ModelError, UsageError, unknown_name
from snncompress.models.user_code import UserFile

TORCHVISION = "torchvision:"
# Auxiliary classifiers serve only training on ImageNet, and their outputs are no logits; init_weights
# is named because leaving it out draws a warning.
TORCHVISION_DEFAULTS = {
    "googlenet": {"aux_logits": False, "init_weights": True},
    "inception_v3": {"aux_logits": False, "init_weights": True},
}


@dataclass(frozen=True)
class ModelSource:
    """An architecture and how to build it.

    Attributes:
        name: As typed ("lenet5", "torchvision:resnet18", "my_net.py:build"), but a file's path is absolute.
        arguments: Keyword arguments of the builder, JSON-able, defaults of the zoo included.
        sha256: Hash of the user's own file, None for the others.
    """

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    sha256: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The source as JSON-able data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ModelSource:
        """The source of what ``to_json`` gave."""
        return cls(data["name"], dict(data["arguments"]), data.get("sha256"))


class WithoutMemory(TorchFunctionMode):
    """While active, layers are built on the meta device: shapes without weights.

    Only ``torch.empty`` is redirected, from which layers make their parameters; ``torch.device("meta")``
    would also catch the arithmetic by which some models (RegNet) compute their widths.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.empty:
            kwargs["device"] = "meta"
        return func(*args, **kwargs)


def resolve(
    name: str,
    arguments: Mapping[str, Any] | None = None,
    *,
    classes: int | None = None,
    image_shape: tuple[int, int, int] | None = None,
) -> ModelSource:
    """Finds the model that a name means and fills in its arguments.

    Args:
        name: A zoo name, ``torchvision:NAME`` or ``path/to/my_net.py:build`` (which executes the file).
        arguments: What the user gave for the builder.
        classes: Number of classes of the data, used where the arguments do not say it.
        image_shape: Shape of the data's images, used where the arguments do not say it.
    """
    given = _jsonable(name, dict(arguments or {}))
    if name.startswith(TORCHVISION):
        return _resolve_torchvision(name, given, classes)
    file, _, function = name.rpartition(":")
    if file.endswith(".py"):
        return _resolve_user(UserFile.read(Path(file)), function, given, classes, image_shape)
    if name.endswith(".py"):
        raise UsageError(f"{name}: name the function that builds the model too, such as {name}:build")
    signature = inspect.signature(_zoo_builder(name))
    given = _fill(given, {"classes": classes, "image_shape": image_shape})
    bound = _bind(f"model '{name}'", signature, given)
    bound.apply_defaults()
    filled = _jsonable(name, bound.arguments)
    _check_values(name, filled["classes"], filled["image_shape"])
    return ModelSource(name, filled)


def build(source: ModelSource, *, trust: bool = False) -> nn.Module:
    """Builds the model, with freshly initialized weights.

    Args:
        source: What to build.
        trust: Execute the user's file even if it is not the one that was recorded.
    """
    if source.name.startswith(TORCHVISION):
        return _build_torchvision(source)
    if ".py:" in source.name:
        return _build_user(source, trust)
    try:
        return _zoo_builder(source.name)(**source.arguments)  # type: ignore[no-any-return]
    except (TypeError, ValueError, RuntimeError) as error:
        raise ModelError(f"model '{source.name}' cannot be built from {source.arguments}: {error}") from error


def default_input_shape(source: ModelSource) -> tuple[int, int, int] | None:
    """Channels, height and width of the images that the model is made for; None for the user's own code."""
    if source.name.startswith(TORCHVISION):
        side = source.arguments.get("image_size")  # of the vision transformers, which run at one size only
        if side is None:
            # Some weights were tuned at a larger size: the smallest is that of the architecture.
            weights = _torchvision_models().get_model_weights(source.name.removeprefix(TORCHVISION))
            side = min(entry.transforms.keywords["crop_size"] for entry in weights)
        return (3, side, side)
    if ".py:" in source.name:
        return None
    channels, height, width = source.arguments.get("image_shape") or _zoo_module(source.name).INPUT_SHAPE
    return (channels, height, width)


def _zoo_module(name: str) -> Any:
    known = registry.entries("models")
    if name not in known:
        others = "torchvision:NAME and path/to/file.py:function name models too"
        # Many think of torchvision's names first, and resnet18 is not meant to be resnet110.
        if name in _torchvision_names():
            raise UsageError(f"unknown model '{name}'; did you mean '{TORCHVISION}{name}'? ({others})")
        raise UsageError(f"{unknown_name('model', name, known)}; {others}")
    return registry.load("models", name)


def _zoo_builder(name: str) -> Callable[..., Any]:
    return getattr(_zoo_module(name), name.replace("-", "_"))  # type: ignore[no-any-return]


def _torchvision_models() -> Any:
    from snncompress.vision import torchvision  # takes seconds, and most runs do not need it

    return torchvision.models


def _torchvision_names() -> list[str]:
    models = _torchvision_models()
    return list(models.list_models(module=models))  # without this module: no detection, video, segmentation


def _resolve_torchvision(name: str, given: dict[str, Any], classes: int | None) -> ModelSource:
    builder = name.removeprefix(TORCHVISION)
    if builder not in _torchvision_names():
        raise unknown_name("torchvision model", builder, _torchvision_names())
    if "weights" in given:
        raise UsageError(f"{name} takes no argument 'weights': give the weights' file with --checkpoint")
    if "classes" in given:  # the zoo's word for it
        given.setdefault("num_classes", given.pop("classes"))
    given = _fill(given, {"num_classes": classes})
    arguments = {"num_classes": 1000, **TORCHVISION_DEFAULTS.get(builder, {}), **given}
    _check_values(name, arguments["num_classes"], (3, 1, 1))
    return ModelSource(name, arguments)


def _build_torchvision(source: ModelSource) -> nn.Module:
    models, builder = _torchvision_models(), source.name.removeprefix(TORCHVISION)
    if builder not in _torchvision_names():
        raise unknown_name("torchvision model", builder, _torchvision_names())
    try:
        return models.get_model(builder, weights=None, **source.arguments)  # type: ignore[no-any-return]
    except TypeError as error:
        with WithoutMemory():
            plain = models.get_model(builder, weights=None, **TORCHVISION_DEFAULTS.get(builder, {}))
        parameters = inspect.signature(type(plain).__init__).parameters.values()
        # Those without a plain default are the builder's business (block, layers, norm_layer).
        known = [entry.name for entry in parameters if isinstance(entry.default, int | float)]
        wrong = [key for key in source.arguments if key not in known]
        what = ", ".join(wrong) or source.arguments
        raise UsageError(f"{source.name} cannot be built with {what} (it takes: {', '.join(known)})") from error
    except (ValueError, RuntimeError) as error:
        raise ModelError(f"{source.name} cannot be built from {source.arguments}: {error}") from error


def _resolve_user(
    file: UserFile,
    function: str,
    given: dict[str, Any],
    classes: int | None,
    image_shape: tuple[int, int, int] | None,
) -> ModelSource:
    signature = inspect.signature(file.function(function))
    shape = None if image_shape is None else list(image_shape)
    offered = {"classes": classes, "num_classes": classes, "image_shape": shape}
    named = {key: value for key, value in offered.items() if key in signature.parameters}
    arguments = _fill(given, named)
    _bind(f"{file.path}:{function}", signature, arguments)
    return ModelSource(f"{file.path}:{function}", arguments, file.sha256)


def changed_file(source: ModelSource) -> Path | None:
    """The file of the user's that a model was recorded with, if what it holds is something else by now."""
    file = None if source.sha256 is None else _user_file(source)
    return None if file is None or file.sha256 == source.sha256 else file.path


def _user_file(source: ModelSource) -> UserFile:
    return UserFile.read(Path(source.name.rpartition(":")[0]))


def _build_user(source: ModelSource, trust: bool) -> nn.Module:
    path, _, function = source.name.rpartition(":")
    file = _user_file(source)
    if file.sha256 != source.sha256 and not trust:
        raise ModelError(
            f"{path} is not the file this model was recorded with (its hash differs), so it is not executed: "
            "look at it, then allow it with --trust-source"
        )
    model = file.call(file.function(function), source.arguments)
    if not isinstance(model, nn.Module):
        kind = type(model).__name__
        raise ModelError(f"{source.name} returned {kind}, not a torch.nn.Module: let it return the model")
    return model


def _fill(given: dict[str, Any], offered: Mapping[str, Any]) -> dict[str, Any]:
    return {**{key: value for key, value in offered.items() if value is not None}, **given}


def _bind(what: str, signature: inspect.Signature, arguments: dict[str, Any]) -> inspect.BoundArguments:
    try:
        return signature.bind(**arguments)
    except TypeError as error:
        known = ", ".join(signature.parameters) or "none"
        raise UsageError(f"{what}: {error} (it takes: {known}); set arguments with --model-arg") from None


def _jsonable(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return json.loads(json.dumps(dict(arguments)))  # type: ignore[no-any-return]
    except (TypeError, ValueError):
        raise UsageError(f"arguments of {name} must be plain values that JSON can hold, not {arguments}") from None


def _check_values(name: str, classes: Any, image_shape: Any) -> None:
    if type(classes) is not int or classes < 1:
        raise UsageError(f"classes={classes!r} of {name}: give a whole number of at least 1")
    sides = list(image_shape) if isinstance(image_shape, list | tuple) else []
    if len(sides) != 3 or any(type(side) is not int or side < 1 for side in sides):
        raise UsageError(f"image_shape={image_shape!r} of {name}: give channels, height and width, such as [1, 28, 28]")
