"""Accuracy under attack as a chart, and attacked images side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snncompress.reporting.charts import COLOURS, LineChart, Series
from snncompress.reporting.tradeoff import figure_of, write_figure

if TYPE_CHECKING:
    from torch import Tensor

Record = Mapping[str, Any]  # what ``Attacked.to_json`` gave
NAMES = {"fgs": "FGS", "ifgs": "iterative FGS", "pgd": "PGD", "cw": "CW"}
MOST_STRENGTHS = 6  # rows of images


def attack_charts(metrics: Mapping[str, Any]) -> list[LineChart]:
    """The curves that a run remembers: a chart a unit of strength, a line an attack and split."""
    groups: dict[str, dict[str, Record]] = {}
    for record in metrics.get("attacks", {}).values():
        key = "attacks" + ("-l2" if record["attack"] == "cw" else "") + ("-targeted" if record["targeted"] else "")
        groups.setdefault(key, {})[_words(record)] = record
    return [attack_chart(records, key) for key, records in groups.items()]


def attack_chart(records: Mapping[str, Record], key: str) -> LineChart:
    """Curves beside each other, by name; a band is a standard deviation over repetitions.

    Of targeted attacks their success is shown: accuracy falls with any wrong answer.
    """
    first, series = next(iter(records.values())), []
    what, title = ("success", "Success of attacks") if first["targeted"] else ("accuracy", "Accuracy under attack")
    for colour, (name, record) in enumerate(records.items()):
        means, spreads = record[what], record[f"{what}_std"]
        low = tuple(max(mean - spread, 0.0) for mean, spread in zip(means, spreads, strict=True))
        high = tuple(min(mean + spread, 100.0) for mean, spread in zip(means, spreads, strict=True))
        series.append(
            Series(
                name, tuple(record["eps"]), tuple(means), colour % len(COLOURS), (low, high) if any(spreads) else None
            )
        )
    if len(records) == 1:
        title += f": {_words(first)}"
    label = "Euclidean length of the change" if first["attack"] == "cw" else "Largest change of a pixel (of 0 to 1)"
    return LineChart(key, title, label, f"{what.capitalize()} (%)", tuple(series))


def _words(record: Record) -> str:
    kind = ", targeted" if record["targeted"] else ""
    kind += "" if record["gradient"] == "expected" else f", {record['gradient']} gradient"
    return f"{NAMES.get(record['attack'], record['attack'])}{kind} ({record['images']:,} {record['split']})"


def plot_examples(
    examples: tuple[Tensor, Tensor, Tensor], eps: Sequence[float], classes: Sequence[str], out: Path
) -> None:
    """A few images, a row a strength, each with the network's answer; wrong ones are red.

    Args:
        examples: images (strengths, images, C, H, W), answers (strengths, images), and labels (images).
        eps: the strengths.
        classes: names of the answers.
        out: the picture to write.
    """
    images, answers, labels = examples
    count = min(len(eps), MOST_STRENGTHS)
    rows = sorted({round(index * (len(eps) - 1) / max(count - 1, 1)) for index in range(count)})
    figure, (frame,) = figure_of(out, 1)
    frame.remove()
    figure.set_size_inches(1.05 * images.shape[1] + 0.7, 1.25 * len(rows) + 0.3)
    panes = figure.subplots(len(rows), images.shape[1], squeeze=False)
    for row, index in enumerate(rows):
        for column in range(images.shape[1]):
            axes, image = panes[row][column], images[index, column].permute(1, 2, 0).clamp(0, 1)
            axes.imshow(image.squeeze(-1) if image.shape[-1] == 1 else image, cmap="gray", vmin=0, vmax=1)
            axes.set_xticks([])
            axes.set_yticks([])
            answer = int(answers[index, column])
            name = classes[answer] if answer < len(classes) else str(answer)
            axes.set_title(
                name, fontsize=9, pad=2, color=COLOURS[0 if answer == int(labels[column]) else 1], parse_math=False
            )
        panes[row][0].set_ylabel(f"{eps[index]:g}", rotation=0, ha="right", va="center")
    figure.suptitle("The network's answers at each strength; wrong ones in orange", fontsize=10, x=0.02, ha="left")
    write_figure(figure, out)
