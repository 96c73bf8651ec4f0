"""The report as one page that needs nothing but itself: styles and pictures are in it, and no script is."""

from __future__ import annotations

import json
from html import escape
from importlib.resources import files
from typing import Any

from snncompress import __version__
from snncompress.reporting.blocks import make_figure, make_figures, make_note, make_section, make_table
from snncompress.reporting.calibration import HEADER, table_lines
from snncompress.reporting.compare import find_fronts
from snncompress.reporting.headline import Card, cards, headline, longer_words
from snncompress.reporting.page_speed import speed_section
from snncompress.reporting.story import MOST_SPREADS, Pictures, Story, draw_up
from snncompress.reporting.svg import tag
from snncompress.reporting.table import (
    CONVENTIONS,
    FRONT_CONVENTION,
    FRONT_HEADER,
    FRONT_WORDS,
    SPARSE_CONVENTIONS,
    UNKNOWN,
    format_bytes,
    format_flops,
    uncounted_words,
)

# The page asks for nothing from anywhere: a browser holds it to that.
POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def render_page(story: Story) -> str:
    """The whole page."""
    style = files("snncompress.reporting").joinpath("page.css").read_text(encoding="utf-8")
    name = escape(story.row.name)
    pictures = draw_up(story)
    sections = [
        _head(story),
        _models(story, pictures) if pictures.beside else "",
        _tradeoff(pictures),
        speed_section(story, pictures),
        _layers(story, pictures),
        _published(story),
        "" if pictures.beside else _models(story, pictures),
        _calibration(story, pictures),
        _spreads(story, pictures),
        _life(story, pictures),
        _attacks(story, pictures),
        _reproduce(story),
        _footer(story),
    ]
    head = (
        '<meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{name}: {escape(headline(story))}</title><style>\n{style}</style>"
    )
    body = "\n".join(section for section in sections if section)
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n{body}\n</body></html>\n'


def _head(story: Story) -> str:
    run, plan = story.run, story.run.plan
    facts = [run.name + (f" on {run.data['name']}" if run.data.get("name") else "")]
    if plan is not None:
        what = "weights" if "layers" in plan else "neurons"
        facts.append(f"{what} pruned by {plan.get('criterion') or run.config['criterion']}")
    elif run.noise_method is not None:
        facts.append(f"trained with {run.noise_method} noise")
    facts.append(f"inputs of {'×'.join(map(str, run.input_shape))}")
    parts = [
        tag("p", f"snncompress report: {escape(story.row.name)}", class_="eyebrow"),
        tag("h1", escape(headline(story))),
        tag("p", escape(" · ".join(facts)), class_="sub"),
        tag("div", *(_card(card) for card in cards(story)), class_="cards"),
    ]
    if plan is not None and plan.get("stopped"):
        parts.append(make_note(f"Pruning stopped early: {plan['stopped']}. This is the last model within it."))
    if (longer := longer_words(story)) is not None:
        parts.append(make_note(longer))
    if run.hollow:
        parts.append(make_note(_hollow(story)))
    return tag("header", *parts)


def _hollow(story: Story) -> str:
    words = f"The mean of layer {story.run.hollow[0]} carries nothing: all that it knows is in its variances."
    if story.error == story.row.error:
        return f"{words} The error above is that of the mean, a guess; `snncompress evaluate --samples 20` tells more."
    return f"{words} The error above is that of averaged samples; the mean alone only guesses."


def _card(card: Card) -> str:
    parts = [tag("b", escape(card.number)), tag("span", escape(card.what), class_="what")]
    parts.append(tag("span", escape(card.how) or "&nbsp;", class_="how"))
    if card.share is not None:
        filled = tag("i", "", style=f"width:{min(card.share, 100.0):.2f}%")
        parts.append(tag("div", filled, class_="meter", role="img", aria_label=f"{card.share:.2f}% is left"))
    return tag("div", *parts, class_=f"card {'cost' if card.cost else 'gain'}{' last' if card.share is None else ''}")


def _tradeoff(pictures: Pictures) -> str:
    if not pictures.tradeoff:
        return ""
    words = (
        "Error on validation images after each validated round of pruning, from right to left, and after the last "
        "fine-tuning. Every choice was made on these images; test images were not looked at."
    )
    return make_section("The way down", make_note(words), make_figures(pictures.tradeoff))


def _layers(story: Story, pictures: Pictures) -> str:
    header: tuple[str, ...] = ("Layer", "Kind", "Output", "Neurons", "Weights", "Zeros", "FLOPs", "Memory")
    sparse = any(layer["weights"] < layer["parameters"] for layer in story.row.layers)
    shares = {} if story.latency is None else story.latency["own"]["layers"]
    lines: list[tuple[str, ...]] = [
        (
            layer["name"], layer["kind"], "×".join(map(str, layer["output_shape"])) or UNKNOWN, _neurons(layer),
            f"{layer['weights']:,}", f"{layer['parameters'] - layer['weights']:,}", format_flops(layer["flops"]),
            f"{layer['memory']:,}",
        )
        for layer in story.row.layers
    ]  # fmt: skip
    if not sparse:  # a column of zeros would push the others out of sight
        header, lines = _without(header, 5), [_without(line, 5) for line in lines]
    if shares:
        header = (*header, "Time")
        lines = [(*line, f"{shares[line[0]]:.1%}" if line[0] in shares else UNKNOWN) for line in lines]
    table = make_table(header, lines, words=3)
    if story.row.uncounted:
        words = uncounted_words(story.row)
        table = tag("div", table, make_note(f"{words[0].upper()}{words[1:]}."))
    if not pictures.widths:
        return make_section("Layer by layer", table)
    return make_section("Layer by layer", tag("div", *map(make_figure, pictures.widths), table, class_="beside"))


def _without(cells: tuple[str, ...], index: int) -> tuple[str, ...]:
    return cells[:index] + cells[index + 1 :]


def _neurons(layer: dict[str, Any]) -> str:
    neurons, before = layer["neurons"], layer["original_neurons"]
    return UNKNOWN if neurons is None else f"{neurons:,}" if before is None else f"{neurons:,} of {before:,}"


def _published(story: Story) -> str:
    table, row = story.published, story.row
    if table is None or not story.compressed:
        return ""
    ours = (row.name, _error(story, row.error), row.flops / 1e6, row.weights_percent, row.memory_percent)
    others = [(each.method, f"{each.error:.1f}%", each.flops, each.size, each.memory) for each in table.rows]
    lines = sorted([*others, ours], key=lambda line: line[2])
    cells = [
        (name, error, f"{flops:.3f}M", f"{size:.2f}%", UNKNOWN if memory is None else f"{memory:.2f}%")
        for name, error, flops, size, memory in lines
    ]
    trained = story.run.data.get("name") or "other data"
    caution = "" if story.same_data else f" This run learned from {trained}: its error does not compare with theirs."
    return make_section(
        "Beside published results",
        make_note(f"{table.model} on {table.data}, test error, fewest FLOPs first. {table.source}.{caution}"),
        make_table(("Method", "Error", "FLOPs", "Weights", "Memory"), cells, own=lines.index(ours)),
    )


def _error(story: Story, error: float | None) -> str:
    return UNKNOWN if error is None else story.row.task.show(error)


def _models(story: Story, pictures: Pictures) -> str:
    """The numbers of ``report``, to every digit that people read; with several runs, which of them no other beats."""
    lines: list[tuple[str, ...]] = [
        (
            row.name, UNKNOWN if row.error is None else row.task.show(row.error),
            f"{row.weights:,} ({row.weights_percent:.2f}%)", f"{format_flops(row.flops)} ({row.flops_percent:.2f}%)",
            f"{row.memory:,} ({row.memory_percent:.2f}%)",
            format_bytes(row.bytes if row.stored_bytes is None else row.stored_bytes),
        )
        for row in story.models
    ]  # fmt: skip
    header: tuple[str, ...] = ("Model", f"Test {story.row.task.measure}", "Weights", "FLOPs", "Memory", "File")
    if not pictures.beside:
        return make_section("All numbers", make_table(header, lines, own=len(lines) - 1))
    marks = [" and ".join(FRONT_WORDS[count] for count in front) for front in find_fronts(story.models)]
    lines = [(*line, mark) for line, mark in zip(lines, marks, strict=True)]
    return make_section(
        "The runs beside each other",
        make_note(f"The rest of this page is about the last of them, {story.row.name}. {FRONT_CONVENTION}"),
        make_figures(pictures.beside),
        make_table((*header, FRONT_HEADER), lines, own=len(lines) - 1),
    )


def _calibration(story: Story, pictures: Pictures) -> str:
    record = story.calibration
    if record is None:
        return ""
    words = (
        f"How far confidence is from accuracy on {record['images']:,} {record['split']} images, before and after a "
        "temperature that was fitted on validation images (15 bins; paler ones hold fewer predictions)."
    )
    ways = "All ways to predict; T is the temperature that the logits are divided by."
    table = make_table(HEADER, table_lines(record))
    return make_section("How sure it is", make_note(words), make_figures(pictures.calibration), make_note(ways), table)


def _spreads(story: Story, pictures: Pictures) -> str:
    """Histograms, and what keeps them from being complete."""
    notes = [make_note(note) for note in story.notes]
    title = f"What {'weights' if any(spread.weights for spread in story.spreads) else 'neurons'} were worth"
    if not pictures.spreads:
        return make_section(title, *notes) if notes else ""
    if story.run.plan is None:
        words = "How the noise ranks what the network has, before anything is removed."
    else:
        words = (
            "Scores of the run that pruning began with, taken again with its criterion. They change as a network "
            "shrinks, and each layer gives up its own least important ones, so the two colours overlap."
        )
    if len(story.spreads) > MOST_SPREADS:
        words += f" The first {MOST_SPREADS} of {len(story.spreads)} histograms are shown."
    return make_section(title, make_note(words), make_figures(pictures.spreads), *notes)


def _life(story: Story, pictures: Pictures) -> str:
    if not pictures.life:
        return ""
    stages = " → ".join(stage.name for stage in story.lineage.stages)
    return make_section("Training", make_note(f"One run after the other: {stages}."), make_figures(pictures.life))


def _attacks(story: Story, pictures: Pictures) -> str:
    if not pictures.attacks:
        return ""
    words = (
        "Images were changed to mislead the network (`snncompress attack`); how many, and of which split, in brackets."
    )
    if story.run.noise_method is not None:
        words += " Gradients and predictions are averages over samples of its noise."
    return make_section("Under attack", make_note(words), make_figures(pictures.attacks))


def _reproduce(story: Story) -> str:
    lineage = story.lineage
    commands = [stage.command or f"# {stage.name} was made from Python" for stage in lineage.stages]
    if lineage.lost is not None:
        commands.insert(0, f"# {lineage.lost} came first; it is not there any more")
    parts = [tag("pre", escape("\n".join(commands)), tabindex=0)] if commands else []
    for stage in lineage.stages:
        entries = {**stage.config, **{f"version of {k}": v for k, v in stage.header.get("versions", {}).items()}}
        pairs = "".join(tag("dt", escape(key)) + tag("dd", escape(_value(value))) for key, value in entries.items())
        parts.append(tag("details", tag("summary", escape(f"Configuration of {stage.name}")), tag("dl", pairs)))
    return make_section("Do it again", *parts) if parts else ""


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _footer(story: Story) -> str:
    words = [*CONVENTIONS, *(SPARSE_CONVENTIONS if story.row.stored_bytes is not None else ())]
    return tag("footer", tag("p", escape(" ".join(words))), tag("p", f"Made by snncompress {__version__}."))
