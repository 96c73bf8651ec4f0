"""The part of the page about speed, where ``report --latency`` measured it."""

from __future__ import annotations

from snncompress.reporting.blocks import make_figure, make_note, make_section, make_table
from snncompress.reporting.headline import block_words
from snncompress.reporting.speed_story import call_words, file_lines, operator_lines, speed_lines
from snncompress.reporting.story import Pictures, Story
from snncompress.reporting.svg import tag


def speed_section(story: Story, pictures: Pictures) -> str:
    """Measured times, and what bounds them."""
    record = story.latency
    if record is None:
        return ""
    threads = record["own"]["threads"]
    words = f"Measured on {record['machine']}, {'one thread' if threads == 1 else f'{threads} threads'}"
    if record["original"] is not None:
        words += f", in turn with {record['against']}; times faster are medians over rounds"
    contents = (list(lines(record)) for lines in (speed_lines, operator_lines, file_lines))
    times, *tables = (make_table(header, lines) for header, *lines in contents)
    bound = (
        "Shares of the time by onnxruntime's profiler. In between: what belongs to no layer, such as pooling and its "
        "reordering of channels (ReorderInput, ReorderOutput)."
    )
    return make_section(
        "Speed",
        make_note(f"{words}."),
        tag("div", *map(make_figure, pictures.speed), times, class_="beside") if pictures.speed else times,
        tag("div", *tables, class_="pair"),
        make_note(" ".join([bound, *call_words(record["own"]), block_words(story) or ""]).strip()),
    )
