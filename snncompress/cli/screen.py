"""What a person sees while something runs: a bar with loss, error and time left, and messages above it."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from snncompress.progress import Progress

UNITS = {"error": "%"}


class Screen(Progress):
    """Draws on stderr, bars only on a terminal; used as a context manager.

    Args:
        quiet: nothing at all.
        json: no messages: stderr is for a script that reads only ``{"failure": ...}`` there.
    """

    def __init__(self, quiet: bool = False, json: bool = False) -> None:
        self.json = json
        self.console = Console(stderr=True, quiet=quiet, highlight=False)
        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            TaskProgressColumn(),
            TextColumn("{task.fields[values]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self.console,
            transient=True,
            disable=quiet or not self.console.is_terminal,
        )
        self._task: TaskID | None = None

    def __enter__(self) -> Screen:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if not self._bar.disable:  # older versions of rich end a bar that was never drawn with an empty line
            self._bar.stop()

    def start(self, task: str, total: int, done: int = 0) -> None:
        """A new bar."""
        self.finish()
        self._task = self._bar.add_task(task, total=total, completed=done, values="")

    def advance(self, steps: int = 1, **values: float) -> None:
        """Moves the bar."""
        if self._task is not None:
            shown = "  ".join(
                f"{name} {_number(value)}{UNITS.get(name, '')}" for name, value in values.items() if value
            )
            self._bar.update(self._task, advance=steps, values=shown)

    def finish(self) -> None:
        """Takes the bar away."""
        if self._task is not None:
            self._bar.remove_task(self._task)
            self._task = None

    def message(self, text: str) -> None:
        """A line above the bar."""
        if not self.json:
            self.console.print(text, markup=False, soft_wrap=True)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
