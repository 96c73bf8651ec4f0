"""The command that most tests of bad input start from."""

from __future__ import annotations

MODEL = ["mlp", "--model-arg", "widths=12-8"]


def train(data: str, *more: str) -> list[str]:
    """The words of a training command that works, and some more that may spoil it."""
    return ["train", *MODEL, "--data", data, "--epochs", "1", "--out", "out", *more]
