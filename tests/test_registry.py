"""What there is to choose from: every entry loads, is described, and is called like its file."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import snncompress
from snncompress import registry
from snncompress.errors import UsageError

ALL = [(kind, name) for kind in registry.KINDS for name in registry.entries(kind)]


@pytest.mark.parametrize(("kind", "name"), ALL)
class TestContract:
    def test_it_loads(self, kind: str, name: str) -> None:
        module = registry.load(kind, name)
        assert module.__name__ == registry.entries(kind)[name].module

    def test_it_is_described(self, kind: str, name: str) -> None:
        entry = registry.entries(kind)[name]
        assert entry.name == name
        assert 10 <= len(entry.summary) <= 110  # one line of a terminal, with the name before it
        assert entry.summary == entry.summary.strip()


@pytest.mark.parametrize("kind", ["methods", "criteria", "corrections", "attacks"])
def test_one_file_one_name(kind: str) -> None:
    for name, entry in registry.entries(kind).items():
        assert entry.module.rpartition(".")[2] == name.replace("-", "_")


@pytest.mark.parametrize("kind", ["methods", "criteria", "corrections", "attacks"])
def test_the_docstring_opens_with_the_summary(kind: str) -> None:
    for name, entry in registry.entries(kind).items():
        docstring = registry.load(kind, name).__doc__ or ""
        assert docstring.splitlines()[0].rstrip(".") == f"``{name}``: {entry.summary}"


@pytest.mark.parametrize("kind", registry.KINDS)
def test_no_line_misses_the_form_by_a_little(kind: str) -> None:
    """A line that looks like an entry is one, or it would be missing without a word."""
    folder = Path(snncompress.__file__).parent.joinpath(*registry.KINDS[kind][0].split("."))
    names = []
    for file in folder.glob("*.py"):
        docstring = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
        names += re.findall(r"^ *`+([^`]+)`+ *[:—–-]", docstring, re.MULTILINE)
    assert sorted(names) == sorted(registry.entries(kind))  # and no name stands twice


def test_what_the_issue_asks_for_is_there() -> None:
    assert {"se-snn", "sparse-vd", "vd", "variance", "dropout", "vib"} <= set(registry.entries("methods"))
    assert {"entropy", "magnitude", "random"} <= set(registry.entries("criteria"))
    assert {"fgs", "ifgs", "pgd", "cw"} <= set(registry.entries("attacks"))


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        ("models", "lenet", r"unknown model 'lenet'; did you mean 'lenet\w*'\? \(known: .*resnet56.*\)"),
        ("data", "minst", r"unknown data set 'minst'; did you mean 'mnist'\?"),
        ("methods", "noise", r"unknown method 'noise' \(known: .*se-snn.*\)"),
        ("methods", "sparsevd", r"unknown method 'sparsevd'; did you mean 'sparse-vd'\?"),
        ("criteria", "entropi", r"unknown criterion 'entropi'; did you mean 'entropy'\?"),
    ],
)
def test_an_unknown_name_lists_the_known_ones(kind: str, name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        registry.load(kind, name)


def test_listing_needs_no_torch() -> None:
    code = "from snncompress import registry; import sys; [registry.entries(k) for k in registry.KINDS]; "
    code += "sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
