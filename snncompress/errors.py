"""The library's named errors; the CLI alone turns them into one line on stderr and an exit code."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class SnncompressError(Exception):
    """Anything that went wrong and has a remedy; the message is one line that names it."""

    exit_code = 1


class UsageError(SnncompressError):
    """What was asked for makes no sense: an unknown name, an impossible value."""

    exit_code = 2


class CheckpointError(SnncompressError):
    """A checkpoint is missing, damaged, unsafe to open, or of another architecture."""


class DataError(SnncompressError):
    """A data set is missing, damaged, or does not fit the model."""


class ModelError(SnncompressError):
    """A model cannot be built, or cannot run on the images it is given."""


class RunError(SnncompressError):
    """A run directory is missing, damaged, occupied, or cannot be written."""


class TargetError(UsageError):
    """A compression target that cannot be met."""


class TrainingDivergedError(SnncompressError):
    """The loss or the weights became NaN or infinite."""


class ExportError(SnncompressError):
    """The exported file does not do what the model does."""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> UsageError:
    """The error for a name that nobody knows: lists the known ones and the closest match."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1)
    hint = f"; did you mean '{close[0]}'?" if close else ""
    return UsageError(f"unknown {kind} '{name}'{hint} (known: {', '.join(names)})")
