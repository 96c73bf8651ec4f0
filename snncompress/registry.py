"""What there is to choose from: models, data, methods, criteria, attacks; files are read, not imported.

An entry is a line of a module's docstring of the form

    ``name``: one-line summary

so that a new method, criterion, data set, architecture or attack is one new file, and ``snncompress list``
and ``--help`` answer without importing torch.
"""

from __future__ import annotations

import ast
import importlib
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType

from snncompress.errors import unknown_name

# kind: (package below snncompress, how one of them is called in a message)
KINDS = {
    "models": ("models", "model"),
    "data": ("data", "data set"),
    "methods": ("noise", "method"),
    "criteria": ("pruning.criteria", "criterion"),
    "corrections": ("training.corrections", "correction"),
    "weight-criteria": ("pruning.weight_criteria", "criterion of weights"),
    "attacks": ("evaluation.attacks", "attack"),
}
ENTRY = re.compile(r"^``([a-z0-9][a-z0-9-]*)``: (.+?)\.?$", re.MULTILINE)


@dataclass(frozen=True)
class Entry:
    """One choice: its name, its summary, and the module that holds it."""

    name: str
    summary: str
    module: str


@cache
def entries(kind: str) -> dict[str, Entry]:
    """All entries of a kind by name, in the order of files and of lines in them."""
    package, _ = KINDS[kind]
    folder = Path(__file__).parent.joinpath(*package.split("."))
    found = {}
    for file in sorted(folder.glob("*.py")):
        docstring = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
        for name, summary in ENTRY.findall(docstring):
            found[name] = Entry(name, summary, f"snncompress.{package}.{file.stem}")
    return found


def load(kind: str, name: str) -> ModuleType:
    """Imports the module that holds an entry."""
    known = entries(kind)
    if name not in known:
        raise unknown_name(KINDS[kind][1], name, known)
    return importlib.import_module(known[name].module)
