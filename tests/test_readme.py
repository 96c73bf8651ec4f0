"""The README says what the tool has."""

from __future__ import annotations

import re
from pathlib import Path

import onnx
import pytest

from benchmarks import tables
from snncompress import registry
from snncompress.cli.app import app

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", registry.KINDS)
def test_every_entry_stands_in_a_table_with_its_summary(kind: str) -> None:
    for entry in registry.entries(kind).values():
        assert f"| `{entry.name}` | {entry.summary} |" in README


def test_every_command_is_shown() -> None:
    names = [command.name for command in app.registered_commands]
    for group in app.registered_groups:
        assert group.typer_instance is not None
        names += [f"{group.name} {command.name}" for command in group.typer_instance.registered_commands]
    assert len(names) >= 7
    for name in names:
        assert f"snncompress {name}" in README, name


@pytest.mark.parametrize("method", registry.entries("methods"))
def test_every_method_has_a_card(method: str) -> None:
    card = (Path(__file__).parents[1] / "docs" / "methods" / f"{method}.md").read_text(encoding="utf-8")
    for part in ("How to use", "Suggested values", "Details", "Attribution"):
        assert part in card


@pytest.mark.parametrize("file", ["README.md", "docs/results.md"])
def test_the_tables_are_those_of_their_command(file: str, tmp_path: Path) -> None:
    text = (Path(__file__).parents[1] / file).read_text(encoding="utf-8")
    assert len(tables.MARKS.findall(text)) == text.count("<!-- python") > 0
    assert tables.refresh(text, str(tmp_path)) == text, f"python -m benchmarks.tables --write {file}"


def test_the_python_session_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = re.search(r"```python\n(import snncompress\n.*?)```", README, re.DOTALL)
    assert session is not None
    program = session[1]
    quick = {  # the same calls on less work
        '"lenet5"': '"mlp"',
        "epochs=5": "epochs=1",
        'target_flops="10%"': 'target_flops="10%", candidates=1, finetune_steps=1, final_epochs=1',
    }
    for long, short in quick.items():
        assert long in program
        program = program.replace(long, short)
    monkeypatch.chdir(tmp_path)
    exec(compile(program, "README.md", "exec"), {})
    onnx.checker.check_model(onnx.load("small.onnx"))
