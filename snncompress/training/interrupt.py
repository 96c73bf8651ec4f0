"""Ctrl-C between two steps: the first one asks the loop to save and stop, a second one stops at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from snncompress.errors import SnncompressError


class InterruptedRunError(SnncompressError):
    """The user stopped a run; its state is saved."""

    exit_code = 130


def interrupted(where: str, folder: Path | None) -> InterruptedRunError:
    """The error that ends an interrupted run."""
    hint = "repeat the command with --resume to go on" if folder else "nothing was kept: no output folder was given"
    return InterruptedRunError(f"interrupted {where}; {hint}")


@dataclass
class Interrupt:
    """Whether the user has asked to stop."""

    requested: bool = False


@contextmanager
def watch_interrupt() -> Iterator[Interrupt]:
    """Turns the first Ctrl-C into a request, where signals can be caught (the main thread)."""
    interrupt = Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return

    def on_signal(number: int, frame: FrameType | None) -> None:
        if interrupt.requested:
            raise KeyboardInterrupt
        interrupt.requested = True

    before = signal.signal(signal.SIGINT, on_signal)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, before)
