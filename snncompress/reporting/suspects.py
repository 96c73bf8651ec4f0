"""Draws the training images whose labels one should look at again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from snncompress.data.dataset import Dataset, has_pixels, to_float
from snncompress.errors import UsageError
from snncompress.reporting.tradeoff import BLUE, GREY, VERMILLION, figure_of, write_figure

if TYPE_CHECKING:
    from snncompress.evaluation.suspects import Suspect, Suspects

MOST = 60  # pictures: more are too small to be looked at
COLUMNS = 10


def plot_suspects(suspects: Suspects, data: Dataset, out: Path, title: str) -> None:
    """Draws the first of them in a grid, with the label that is given and the class that is predicted.

    Args:
        suspects: the oddest first.
        data: where the images are.
        out: the picture to write.
        title: what stands above.

    Raises:
        UsageError: If these are no images, matplotlib is missing, or it cannot write such a file.
        RunError: If the picture cannot be written.
    """
    if not has_pixels(data.image_shape):
        raise UsageError(f"{data.name} has no images to draw; leave --out out")
    shown = suspects.found[:MOST]
    columns = min(COLUMNS, len(shown))
    rows = math.ceil(len(shown) / columns)
    figure, _ = figure_of(out, 1)
    figure.clear()
    figure.set_size_inches(max(1.15 * columns, 5), 1.45 * rows + 0.7)
    images, _ = data.train.batch(torch.tensor([suspect.index for suspect in shown]))
    pictures = to_float(images).cpu().clamp(0, 1).permute(0, 2, 3, 1).squeeze(-1)  # (N, H, W) or (N, H, W, 3)
    for place, suspect in enumerate(shown):
        axes = figure.add_subplot(rows, columns, place + 1)
        axes.imshow(pictures[place].numpy(), cmap="gray_r", vmin=0, vmax=1)
        axes.set(xticks=[], yticks=[])
        text, colour = _words(suspect, data.classes), _colour(suspect)
        axes.set_title(text, fontsize=8, color=colour, parse_math=False)
        axes.spines[:].set_color(colour)
    figure.suptitle(f"{title}: label → prediction, by {suspects.score.words}", fontsize=10, parse_math=False)
    if suspects.flipped is not None:
        figure.supxlabel("orange: the label was made wrong; blue: it is right", fontsize=8)
    write_figure(figure, out)


def _words(suspect: Suspect, classes: Sequence[str]) -> str:
    return f"{_short(classes, suspect.given)} → {_short(classes, suspect.predicted)}"


def _short(classes: Sequence[str], number: int) -> str:
    name = classes[number] if number < len(classes) else str(number)
    return name if len(name) <= 9 else f"{name[:8]}…"


def _colour(suspect: Suspect) -> str:
    if suspect.truth is None:
        return GREY
    return BLUE if suspect.truth == suspect.given else VERMILLION
