"""Where the images come from on which every choice is made."""

from __future__ import annotations

from enum import StrEnum


class Holdout(StrEnum):
    """Which images are set aside for validation."""

    TRAIN = "train"  # some of the training images
    TEST = "test"  # half of the test images: for a model that has seen all training images
    NONE = "none"  # none: for a last training on all training images, when every choice was made
