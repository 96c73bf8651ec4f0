"""What was gained and at what cost, drawn with characters: the page's headline for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from snncompress.reporting.headline import (
    WORDS,
    block_words,
    error_change,
    format_fold,
    headline,
    longer_words,
    smaller,
)
from snncompress.reporting.speed_story import find_timing
from snncompress.reporting.story import NOTICED, Story
from snncompress.reporting.terminal import bar, sparkline

MOST_LAYERS = 16  # more bars would push the table out of sight


def render_essentials(story: Story) -> str:
    """A few lines with bars: what is left of each count and of each layer, and the error on the way."""
    lines = [*_counts(story), *_time(story), *_layers(story), *_errors(story)]
    width = max(len(name) for name, _ in lines)
    notes = [words for words in (longer_words(story), block_words(story)) if words is not None]
    return "\n".join(
        [
            f"{story.row.name}: {headline(story)}",
            *(f"  {name:<{width}}  {text}" for name, text in lines),
            *(f"  {words}" for words in notes),
        ]
    )


def _counts(story: Story) -> Iterator[tuple[str, str]]:
    for gain in story.gains:
        name, less = WORDS[gain.name]
        words = f"{format_fold(gain.fold)} {less.split()[0]}" if smaller(gain) else "as before"
        yield name, f"{bar(gain.percent / 100)}  {gain.percent:6.2f}%  {words}"


def _time(story: Story) -> Iterator[tuple[str, str]]:
    """What is left of the time of the largest batch, where that was measured beside the original's."""
    if story.latency is not None and story.latency.get("original") is not None:
        timing = find_timing(story.latency["own"], largest=True)
        fold = timing["times_faster"]
        words = f"{format_fold(fold)} faster" if fold >= NOTICED else "no faster"
        yield f"time, batch {timing['batch']}", f"{bar(min(1 / fold, 1.0))}  {100 / fold:6.2f}%  {words}"


def _layers(story: Story) -> Iterator[tuple[str, str]]:
    layers = [layer for layer in story.row.layers if layer["neurons"] and layer["original_neurons"]]
    for layer in layers if len(layers) <= MOST_LAYERS else ():
        left, before = layer["neurons"], layer["original_neurons"]
        yield layer["name"], f"{bar(left / before)}  {100 * left / before:6.2f}%  {left} of {before} neurons"


def _errors(story: Story) -> Iterator[tuple[str, str]]:
    task = story.row.task
    if story.error is not None:
        before = "" if story.original_error is None else f"{task.show(story.original_error)} → "
        change = f" ({error_change(story)})" if before else ""
        yield f"{story.split} {task.measure}", f"{before}{task.show(story.error)}{change}"
    errors = [point["error"] for point in (story.run.plan or {}).get("points", ()) if "error" in point]
    if len(errors) > 2:
        way = f"{task.show(errors[0])} → {task.show(errors[-1])} on validation data"
        yield "while pruning", f"{sparkline(errors)}  {way}"
