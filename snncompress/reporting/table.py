"""Prints measured models as a table: text, Markdown, CSV or JSON. Nothing is computed here."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # printing needs no torch
    from snncompress.reporting.rows import Row

CONVENTIONS = (
    "Weights: non-zero ones, biases and batch-norm scales included, running statistics not.",
    "FLOPs: multiplications only, of convolutions and matrix products, for one image.",
    "Memory: floats of hidden feature maps for one image: the outputs of convolutions and linear layers but",
    "the last, and the map that the first linear layer reads. File: the tensors' bytes.",
    "Percentages are of the original model.",
)
SPARSE_CONVENTIONS = (
    "Sparse FLOPs: multiplications by weights that are not zero; onnxruntime and torch do all of them.",
    "Stored: the file, which holds the non-zero weights only.",
)
HEADER = ("Weights", "FLOPs", "Memory", "File")
SPARSE_HEADER = ("Sparse FLOPs", "Stored")
LAYER_HEADER = ("Layer", "Kind", "Output", "Neurons", "Weights", "FLOPs", "Memory")
LAYER_COLUMNS = (
    *("name", "kind", "input_shape", "output_shape", "neurons", "original_neurons"),
    *("parameters", "weights", "weights_only", "flops", "flops_sparse", "memory"),
)
TIME_HEADER = "Time"
FRONT_HEADER = "Front"
FRONT_WORDS = {"flops": "FLOPs", "weights": "weights"}
FRONT_CONVENTION = "Front: no other run here has less error for as many of these, or fewer of these for as much error."
NESTED = ("layers", "task", "uncounted", "time_between")  # what no table's cell holds
UNKNOWN = "–"
Fronts = Sequence[tuple[str, ...]]  # for each row, the counts on whose Pareto front it is


class Format(StrEnum):
    """What a table is printed as."""

    TEXT = "text"
    MARKDOWN = "markdown"
    CSV = "csv"
    JSON = "json"


def rows_json(rows: Sequence[Row], fronts: Fronts | None = None) -> list[dict[str, Any]]:
    """The rows as JSON-able objects, one a model; the error of a regression is there as ``rmse``, too."""
    records = [_record(row) | {"uncounted": list(row.uncounted), "layers": list(row.layers)} for row in rows]
    for record, front in zip(records, fronts or (), strict=fronts is not None):
        record["front"] = list(front)
    return records


def _record(row: Row) -> dict[str, Any]:
    """All but the layers and what was not counted."""
    values = {name: value for name, value in dataclasses.asdict(row).items() if name not in NESTED}
    return {"name": row.name, **row.task.entries(row.error), **values}


def render(rows: Sequence[Row], format: Format, layers: bool = False, fronts: Fronts | None = None) -> str:
    """Prints rows, without a newline at the end.

    Args:
        rows: The models, the original first.
        format: Text and Markdown are for people (rounded, with the conventions below the table); CSV and
            JSON hold every digit.
        layers: Also print each model's layers; in CSV they take the models' place. JSON always has them.
        fronts: On which Pareto fronts each row is, where rows are compared.
    """
    if format is Format.JSON:
        return json.dumps(rows_json(rows, fronts), indent=2, ensure_ascii=False)
    if format is Format.CSV:
        return _layers_csv(rows) if layers else _models_csv(rows, fronts)
    markdown = format is Format.MARKDOWN
    title = _title(rows)
    header, conventions = ["Model", title[0].upper() + title[1:], *HEADER], list(CONVENTIONS)
    cells = [_model_cells(row, title) for row in rows]
    if any(row.stored_bytes is not None for row in rows):
        header += SPARSE_HEADER
        conventions += SPARSE_CONVENTIONS
        cells = [line + _sparse_cells(row) for line, row in zip(cells, rows, strict=True)]
    if fronts is not None:
        header.append(FRONT_HEADER)
        conventions.append(FRONT_CONVENTION)
        marks = (", ".join(FRONT_WORDS[count] for count in front) for front in fronts)
        cells = [[*line, mark] for line, mark in zip(cells, marks, strict=True)]
    parts = [grid(header, cells, left=1, markdown=markdown)]
    if layers:
        parts += [_layers_table(row, markdown) for row in rows if row.layers]
    parts += [f"{row.name}: {uncounted_words(row)}" for row in rows if row.uncounted]
    parts.append(" ".join(conventions) if markdown else "\n".join(conventions))
    return "\n\n".join(parts)


def uncounted_words(row: Row) -> str:
    """A sentence that names the operators whose multiplications are in no count, with their modules."""
    named = ", ".join(f"{each['operator']} in {each['module']} ({_times(each['calls'])})" for each in row.uncounted)
    return f"not counted, so that there may be more FLOPs: {named}"


def _times(calls: int) -> str:
    return "once" if calls == 1 else f"{calls} times"


def format_flops(flops: int) -> str:
    """Multiplications in millions, as the papers print them (0.061M); from a thousand millions on, 1.814G."""
    return f"{flops / 1e9:.3f}G" if flops >= 1e9 else f"{flops / 1e6:.3f}M"


def format_bytes(size_bytes: int) -> str:
    """A file size for people: 812 B, 40.5 kB, 1.7 MB."""
    if size_bytes < 1000:
        return f"{size_bytes} B"
    return f"{size_bytes / 1e3:.1f} kB" if size_bytes < 1e6 else f"{size_bytes / 1e6:.1f} MB"


def _title(rows: Sequence[Row]) -> str:
    """What the errors of all rows are called; where tasks meet, a cell says itself what is no error."""
    measures = {row.task.measure for row in rows}
    return measures.pop() if len(measures) == 1 else "error"


def _model_cells(row: Row, title: str) -> list[str]:
    show = row.task.show if row.task.measure == title else row.task.word
    return [
        row.name,
        UNKNOWN if row.error is None else show(row.error),
        f"{row.weights:,} ({row.weights_percent:.2f}%)",
        f"{format_flops(row.flops)} ({row.flops_percent:.2f}%)",
        f"{row.memory:,} ({row.memory_percent:.2f}%)",
        format_bytes(row.bytes),
    ]


def _sparse_cells(row: Row) -> list[str]:
    return [format_flops(row.flops_sparse), UNKNOWN if row.stored_bytes is None else format_bytes(row.stored_bytes)]


def _layers_table(row: Row, markdown: bool) -> str:
    header, cells = list(LAYER_HEADER), [_layer_cells(layer) for layer in row.layers]
    if row.time_between is not None:
        header.append(TIME_HEADER)
        cells = [[*line, f"{layer['time_share']:.1%}"] for line, layer in zip(cells, row.layers, strict=True)]
        blank = [""] * (len(LAYER_HEADER) - 1)
        cells.append(["between layers", *blank, f"{sum(row.time_between.values()):.1%}"])
    table = grid(header, cells, left=3, markdown=markdown)
    return f"**{row.name}**\n\n{table}" if markdown else f"{row.name}\n{table}"


def _layer_cells(layer: dict[str, Any]) -> list[str]:
    neurons, before = layer["neurons"], layer["original_neurons"]
    return [
        layer["name"],
        layer["kind"],
        "×".join(map(str, layer["output_shape"])) or UNKNOWN,
        UNKNOWN if neurons is None else str(neurons) if before is None else f"{neurons} of {before}",
        f"{layer['weights']:,}" + _share(layer),
        format_flops(layer["flops"]),
        f"{layer['memory']:,}",
    ]


def _share(layer: dict[str, Any]) -> str:
    """How many of its weights are not zero, where some are."""
    weights, parameters = layer["weights"], layer["parameters"]
    return f" ({100 * weights / parameters:.2f}%)" if weights < parameters else ""


def grid(header: Sequence[str], cells: list[list[str]], left: int, markdown: bool) -> str:
    """A table whose first ``left`` columns are words, the others numbers."""
    if markdown:  # a bar would end the cell
        cells = [[cell.replace("|", "\\|") for cell in line] for line in cells]
    from tabulate import tabulate  # slow to import, and `--help` needs this module

    table: str = tabulate(
        cells,
        headers=header,
        tablefmt="pipe" if markdown else "simple",
        colalign=["left"] * left + ["right"] * (len(header) - left) if cells else None,
        disable_numparse=True,
    )
    return table


def _models_csv(rows: Sequence[Row], fronts: Fronts | None) -> str:
    records = [_record(row) for row in rows]
    for record, front in zip(records, fronts or (), strict=fronts is not None):
        record["front"] = " ".join(front)
    columns = list(dict.fromkeys(name for record in records for name in record))
    return csv_text(columns, [[record.get(column) for column in columns] for record in records])


def _layers_csv(rows: Sequence[Row]) -> str:
    columns = [*LAYER_COLUMNS, *(["time_share"] if any(row.time_between is not None for row in rows) else [])]
    lines = [[row.name, *(_csv_cell(layer.get(key)) for key in columns)] for row in rows for layer in row.layers]
    return csv_text(["model", *columns], lines)


def _csv_cell(value: Any) -> Any:
    return "x".join(map(str, value)) if isinstance(value, list) else value


def csv_text(header: Sequence[str], lines: Sequence[Sequence[Any]]) -> str:
    """Lines as CSV, without a newline at the end."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(lines)
    return out.getvalue().rstrip("\n")
