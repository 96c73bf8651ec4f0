"""A multilayer perceptron of any widths.

``mlp``: linear layers of any widths with ReLU between them (widths=300-100)
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import nn

from snncompress.errors import UsageError

INPUT_SHAPE = (1, 28, 28)


def mlp(
    classes: int = 10,
    image_shape: Sequence[int] = INPUT_SHAPE,
    widths: Sequence[int] | int | str = "300-100",
) -> nn.Module:
    """A perceptron on flattened images.

    Args:
        classes: Width of the last layer.
        image_shape: Channels, height and width of an image.
        widths: Widths of the hidden layers: a list, or a text such as "300-100"; empty for none.
    """
    layers: list[nn.Module] = [nn.Flatten()]
    inputs = math.prod(image_shape)
    for width in parse_widths(widths):
        layers += [nn.Linear(inputs, width), nn.ReLU()]
        inputs = width
    return nn.Sequential(*layers, nn.Linear(inputs, classes))


def parse_widths(widths: Sequence[int] | int | str) -> list[int]:
    """The hidden widths as a list: [300, 100] of "300-100"."""
    try:
        parts = str(widths).split("-") if isinstance(widths, int | str) else widths
        numbers = [] if parts == [""] else [int(part) for part in parts]
    except (TypeError, ValueError):
        numbers = [0]
    if any(number < 1 for number in numbers):
        raise UsageError(f"widths={widths!r} of mlp: give positive whole numbers, such as widths=300-100")
    return numbers
