"""What was gained and at what cost, in a few words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from snncompress.reporting.life import EPOCHS, lay_out
from snncompress.reporting.speed_story import find_timing
from snncompress.reporting.story import NOTICED, Gain, Story
from snncompress.reporting.table import format_bytes, format_flops

WORDS = {  # of a count: what there is less of, and how that is said
    "flops": ("FLOPs", "fewer FLOPs"),
    "weights": ("weights", "fewer weights"),
    "memory": ("memory", "less memory"),
    "bytes": ("file", "smaller file"),
}
SAME = 0.005  # points of error that nobody would print
BLOCK = 8  # channels that processors compute at once: 8 with AVX2, 16 with AVX-512
WORTH = 0.6  # times the gain in FLOPs: a speed below makes people ask why


@dataclass(frozen=True)
class Card:
    """One number of the headline.

    Attributes:
        number: as people read it.
        what: what it is a number of.
        how: from what to what.
        share: what is left, in percent; None for an error.
        cost: whether it is a price, not a gain.
    """

    number: str
    what: str
    how: str
    share: float | None = None
    cost: bool = False


def format_fold(fold: float) -> str:
    """How many times: 1.8×, 26×, 1,200×."""
    return f"{fold:.1f}×" if fold < 9.95 else f"{fold:,.0f}×"


def count_words(gain: Gain) -> tuple[str, str]:
    """A count before and after."""
    show = {"flops": format_flops, "bytes": format_bytes}.get(gain.name, lambda count: f"{count:,}")
    return show(gain.before), show(gain.after)


def smaller(gain: Gain) -> bool:
    """Whether there is anything to boast of."""
    return gain.fold >= NOTICED


def gain_words(gain: Gain) -> str:
    """26× fewer weights; or, where nothing was gained, what stayed."""
    name, less = WORDS[gain.name]
    return f"{format_fold(gain.fold)} {less}" if smaller(gain) else f"as much {name} as the original"


def error_words(story: Story) -> str | None:
    """What it cost: ``0.13 points more error``; None if nobody knows."""
    if story.error is None or story.original_error is None:
        return None
    task, change = story.row.task, story.error - story.original_error
    if abs(change) < SAME:
        return f"the same {story.split} {task.measure}"
    unit = " points" if task.unit == "%" else ""
    return f"{task.number(abs(change))}{unit} {'more' if change > 0 else 'less'} {story.split} {task.measure}"


def error_change(story: Story) -> str:
    """The price with its sign: ``+0.13 points``; both errors must be known."""
    assert story.error is not None
    assert story.original_error is not None
    change = story.error - story.original_error
    sign = "+" if change >= 0 else "−"
    return f"{sign}{story.row.task.number(abs(change))}{' points' if story.row.task.unit else ''}"


def headline(story: Story) -> str:
    """One sentence: the gains in FLOPs and weights, and the price."""
    gained = [gain_words(gain) for gain in story.gains[:2] if smaller(gain)]
    if not gained:
        task = story.row.task
        error = "" if story.error is None else f": {task.show(story.error)} {story.split} {task.measure}"
        return f"Nothing is removed yet{error}"
    price = error_words(story)
    sentence = " and ".join(gained) + (f", with {price}" if price else "")
    return sentence[0].upper() + sentence[1:]


def _speed_card(record: Mapping[str, Any]) -> list[Card]:
    """How many times faster the largest batch is; nothing where the original was not measured beside it."""
    if record.get("original") is None:
        return []
    batch, alone = (find_timing(record["own"], largest=largest) for largest in (True, False))
    fold = batch["times_faster"]
    how = f"batch {batch['batch']} in onnxruntime"
    if alone["batch"] < batch["batch"]:
        how += f"; {format_fold(alone['times_faster'])} at batch {alone['batch']}"
    what = "faster" if fold >= NOTICED else "as fast"
    return [Card(format_fold(fold), what, how, 100 / fold)]


def cards(story: Story) -> list[Card]:
    """The numbers of the headline, the error last."""
    found = []
    for gain in story.gains:
        before, after = count_words(gain)
        number = format_fold(gain.fold) if smaller(gain) else f"{gain.percent:.0f}%"
        what = WORDS[gain.name][1] if smaller(gain) else f"of the {WORDS[gain.name][0]}"
        found.append(Card(number, what, f"{before} → {after} ({gain.percent:.2f}%)", gain.percent))
    found += [] if story.latency is None else _speed_card(story.latency)
    task = story.row.task
    if story.error is not None:
        original = story.original_error
        was = "" if original is None else f"original {task.show(original)} ({error_change(story)})"
        worse = original is None or story.error - original >= SAME
        found.append(Card(task.show(story.error), f"{story.split} {task.measure}", was, cost=worse))
    return found


def block_words(story: Story) -> str | None:
    """Why fewer FLOPs took hardly less time, where widths that fill no block of channels may be the reason."""
    if story.latency is None or story.latency.get("original") is None:
        return None
    fold, faster = story.gains[0].fold, find_timing(story.latency["own"], largest=True)["times_faster"]
    wide = [layer["neurons"] for layer in story.row.layers if layer["kind"] == "Conv2d" and layer["neurons"] >= BLOCK]
    uneven = sum(neurons % BLOCK > 0 for neurons in wide)
    if faster >= WORTH * fold or 2 * uneven < len(wide) or not uneven:
        return None
    return (
        f"{format_fold(fold)} fewer FLOPs, but {format_fold(faster)} the speed: onnxruntime computes channels in "
        f"blocks, and {uneven} of {len(wide)} convolutions have widths that are no multiple of {BLOCK}. "
        f"prune --round-to {BLOCK} may give a faster model of as many FLOPs."
    )


def longer_words(story: Story) -> str | None:
    """Why a smaller model may err less than its original: it has been trained for longer; None where it does not."""
    if story.error is None or story.original_error is None or story.original_error - story.error < SAME:
        return None
    life = lay_out(story.lineage)
    if story.lineage.lost is not None or len(life.dividers) < 2 or life.unit != EPOCHS:
        return None
    if story.lineage.stages[0].header.get("checkpoint") is not None:  # trained by others, nobody knows how long
        return None
    stages = [stage for stage in story.lineage.stages if stage.history]
    # New weights have learned nothing before.
    begin = max(place for (place, _), s in zip(life.dividers, stages, strict=True) if s is stages[0] or s.from_scratch)
    first, whole = round(life.dividers[1][0]), round(life.moments[-1][-1][0] - begin)
    if not 0 < first < whole:
        return None
    return f"The original was trained for {first} epochs, this model for {whole} in all: part of why it errs less."
