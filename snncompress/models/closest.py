"""Which architecture a checkpoint's tensors belong to, found by building candidates without their weights."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from snncompress import registry
from snncompress.models.sources import TORCHVISION, WithoutMemory, build, resolve

Shapes = Mapping[str, tuple[int, ...]]
CLOSE = 0.5  # the share of equal tensors from which a model that does not fit is worth naming
BUFFERS = ("running_mean", "running_var", "relative_position_index", "relative_coords_table")
IMAGENET_CLASSES = 1000


def shapes_of(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """Shapes by name of all tensors of a model's state but batch norms' counters."""
    return {
        name: tuple(tensor.shape)
        for name, tensor in model.state_dict().items()
        if hasattr(tensor, "shape") and not name.endswith("num_batches_tracked")
    }


def share(left: Shapes, right: Shapes) -> float:
    """The part of all tensors that both have, by name and shape."""
    equal = sum(right.get(name) == shape for name, shape in left.items())
    return equal / max(1, len(left.keys() | right.keys()))


def describe_closest(file: Shapes, model: Shapes) -> str:
    """A sentence on the architecture that a file's tensors fit, or nearly fit; empty if there is none.

    Args:
        file: Shapes of the file's tensors.
        model: Shapes of the model that they did not fit.
    """
    best, best_name = 0.0, ""
    for name in registry.entries("models"):
        variants: tuple[Mapping[str, Any], ...] = getattr(registry.load("models", name), "VARIANTS", ({},))
        for variant in variants:
            shapes, typed = _candidate(name, variant, file, model)
            if shapes == file:
                return f"it fits {typed}"
            closeness = share(shapes, file)
            if closeness > best:
                best, best_name = closeness, typed
    for name in _torchvision_candidates(file):
        for variant in _torchvision_variants(name):
            shapes, typed = _candidate(name, variant, file, model)
            if shapes == file:
                return f"it fits {typed}"
    if best >= CLOSE and best > share(model, file):
        return f"the closest is {best_name} ({int(100 * best)}% of the tensors are equal in name and shape)"
    return ""


def _candidate(name: str, variant: Mapping[str, Any], file: Shapes, model: Shapes) -> tuple[Shapes, str]:
    """Shapes of a model with as many classes as the file has, and what to type for it."""
    default = resolve(name)
    source = resolve(name, variant)
    with WithoutMemory():
        shapes = shapes_of(build(source))
    asked = model.keys() == shapes.keys()  # then the number of classes is what was wrong
    if shapes.keys() == file.keys():
        rows = {file[key][0] for key in file if file[key] != shapes[key] and file[key]}
        if len(rows) == 1 and (classes := rows.pop()) > 0:
            source = resolve(name, variant, classes=classes)
            with WithoutMemory():
                shapes = shapes_of(build(source))
    words = [f"'{name}'"]
    for key, value in source.arguments.items():
        is_classes = key in ("classes", "num_classes")
        if value != default.arguments[key] or (is_classes and asked):
            text = value if isinstance(value, str) else json.dumps(value)
            words.append(f"--model-arg {'classes' if is_classes else key}={text}")
    return shapes, " ".join(words)


def _torchvision_candidates(file: Shapes) -> Iterator[str]:
    """Names of those whose published number of parameters fits: building all of them takes many seconds."""
    from snncompress.vision import torchvision

    parameters = {name: shape for name, shape in file.items() if not name.endswith(BUFFERS)}
    total = sum(math.prod(shape) for shape in parameters.values())
    # Any weight, with its bias or without, may be the classifier's, which has 1000 rows as published.
    possible = {
        total + (IMAGENET_CLASSES - shape[0]) * (math.prod(shape[1:]) + bias)
        for shape in parameters.values()
        for bias in (0, 1)
        if len(shape) > 1
    }
    models = torchvision.models
    for name in models.list_models(module=models):
        counts = {weights.meta["num_params"] for weights in models.get_model_weights(name)}
        if counts & possible or _torchvision_variants(name) != ({},):
            yield f"{TORCHVISION}{name}"


def _torchvision_variants(name: str) -> tuple[Mapping[str, Any], ...]:
    has_auxiliary = name.removeprefix(TORCHVISION) in ("googlenet", "inception_v3")
    return ({}, {"aux_logits": True}) if has_auxiliary else ({},)
