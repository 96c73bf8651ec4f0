"""How long work tells what it is doing, without knowing who listens: the library calls, the CLI draws."""

from __future__ import annotations


class Progress:
    """A listener that ignores everything; the CLI's draws bars (``snncompress/cli/screen.py``)."""

    def start(self, task: str, total: int, done: int = 0) -> None:
        """Work named ``task`` of ``total`` steps begins, ``done`` of them already behind it."""

    def advance(self, steps: int = 1, **values: float) -> None:
        """Some steps of the current task are done; ``values`` (loss, error, ...) are worth showing."""

    def finish(self) -> None:
        """The current task is over."""

    def message(self, text: str) -> None:
        """A sentence for the person who waits."""
