"""Help: every command and option has it, with an example, and it needs no torch."""

from __future__ import annotations

import subprocess
import sys

import pytest
import typer

from snncompress.cli.app import app

COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]
HEAVY = {"torch", "torchvision", "numpy", "onnx", "onnxruntime", "safetensors", "matplotlib"}


def test_the_commands() -> None:
    assert set(COMMANDS) == {"train", "prune", "report", "export", "evaluate", "list", "demo"}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_has_help_and_every_command_an_example(name: str) -> None:
    command = COMMANDS[name]
    assert f"snncompress {name} " in command.help
    assert "Example" in command.help
    for parameter in command.params:
        if parameter.name != "help":
            assert getattr(parameter, "help", None), f"{name} {parameter.name}"


@pytest.mark.parametrize("name", COMMANDS)
def test_all_commands_share_these(name: str) -> None:
    options = {option for parameter in COMMANDS[name].params for option in parameter.opts}
    assert {"--json", "--quiet", "--debug"} <= options


@pytest.mark.parametrize("words", [["--help"], ["train", "--help"], ["prune", "-h"], ["report", "--help"], []])
def test_help_needs_no_torch(words: list[str]) -> None:
    program = (
        f"import sys\nfrom snncompress.cli import run\nrun({words!r})\n"
        f"print('loaded:', sorted(set(sys.modules) & {HEAVY!r}))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "Usage: snncompress" in result.stdout
    assert "loaded: []" in result.stdout
    assert result.stderr == ""


def test_list_needs_no_torch() -> None:
    program = (
        "import sys\nfrom snncompress.cli import run\nrun(['list', 'methods'])\n"
        f"print('loaded:', sorted(set(sys.modules) & {HEAVY!r}))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "se-snn" in result.stdout
    assert "loaded: []" in result.stdout
