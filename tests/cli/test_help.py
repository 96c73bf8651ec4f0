"""Help and lists: every command and option has help, with an example, and it needs no torch."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import pytest
import typer

import snncompress
from snncompress.cli import run as run_command
from snncompress.cli.app import app
from snncompress.registry import KINDS, entries, load


def leaves(group: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    """All commands, those of groups as ``zoo list``."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from leaves(command, f"{before}{name} ")
        else:
            yield f"{before}{name}", command


COMMANDS = dict(leaves(typer.main.get_command(app)))
HEAVY = {"torch", "torchvision", "numpy", "onnx", "onnxruntime", "safetensors", "matplotlib"}


def test_the_commands() -> None:
    assert set(COMMANDS) == {
        "train", "prune", "watch", "restore", "report", "export", "verify", "evaluate", "calibrate", "attack",
        "curve", "list", "demo", "zoo list", "zoo show", "zoo run", "zoo verify",
    }  # fmt: skip


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_has_help_and_every_command_an_example(name: str) -> None:
    command = COMMANDS[name]
    assert f"snncompress {name} " in command.help
    assert "Example" in command.help
    for parameter in command.params:
        if parameter.name != "help":
            assert getattr(parameter, "help", None), f"{name} {parameter.name}"


@pytest.mark.parametrize(
    ("flag", "choices"),
    [
        ("--aggregate", {"se-snn.aggregate"}), ("--alpha", {"vd.alpha"}), ("--prior", {"vd.prior"}),
        ("--noise", {"variance.noise", "dropout.noise"}),
    ],
)  # fmt: skip
def test_the_help_of_a_choice_names_every_value(flag: str, choices: set[str]) -> None:
    (text,) = (parameter.help for parameter in COMMANDS["train"].params if flag in parameter.opts)
    for choice in choices:
        method, _, option = choice.partition(".")
        assert method in text
        values = type(getattr(load("methods", method).Options(), option))
        assert all(value in text for value in values)


def test_options_that_many_methods_have_are_flags() -> None:
    """Those of one method alone may be left to -o, those that several share may not."""
    options = Counter(field.name for name in entries("methods") for field in fields(load("methods", name).Options))
    flags = {option for parameter in COMMANDS["train"].params for option in parameter.opts}
    for name, count in options.items():
        assert count == 1 or f"--{name.replace('_', '-')}" in flags, name


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        (
            "train",
            "--distill --distill-temperature --distill-weight --distill-layers --posterior --posterior-lr --prior-std "
            "--noise-lr --aggregate --alpha --prior --noise --kl-scale --kl-warmup --layers --omega --margin "
            "--correction --correction-from --label-noise --random-labels --limit-train",
        ),
        ("evaluate", "--samples --seed --split --suspects --suspects-by --ood --ood-root"),
        ("calibrate", "--samples --seed --split --use --out"),
        ("attack", "--attack --eps --targeted --gradient-samples --ensemble-samples --steps --seeds --limit --runs"),
        (
            "prune",
            "--target-flops --target-size --target-memory --target-latency --criterion --allocation --candidates "
            "--trial-steps --per --step --round-to --min-neurons --keep --finetune-steps --finetune-noise "
            "--final-epochs --final-lr --distill --distill-layers --max-error --max-drop --dry-run",
        ),
    ],
)
def test_flags_are_shown_with_a_sentence(name: str, flags: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command([name, "--help"]) == 0
    shown = capsys.readouterr().out
    helps = {option: parameter.help for parameter in COMMANDS[name].params for option in parameter.opts}
    for flag in flags.split():
        assert f"  {flag} " in shown
        assert helps[flag].partition("  [default")[0].endswith(".")


@pytest.mark.parametrize("name", COMMANDS)
def test_all_commands_share_these(name: str) -> None:
    options = {option for parameter in COMMANDS[name].params for option in parameter.opts}
    assert {"--json", "--quiet", "--debug"} <= options


@pytest.mark.parametrize(
    "words", [["--help"], ["train", "--help"], ["prune", "-h"], ["report", "--help"], ["zoo", "run", "--help"], []]
)
def test_help_needs_no_torch(words: list[str]) -> None:
    program = (
        f"import sys\nfrom snncompress.cli import run\nrun({words!r})\n"
        f"print('loaded:', sorted(set(sys.modules) & {HEAVY!r}))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "Usage: snncompress" in result.stdout
    assert "loaded: []" in result.stdout
    assert result.stderr == ""


@pytest.mark.parametrize(
    ("words", "shown"), [("list methods", "se-snn"), ("zoo list", "lenet5-sample"), ("zoo show lenet5-sample", "prune")]
)
def test_list_needs_no_torch(words: str, shown: str) -> None:
    program = (
        f"import sys\nfrom snncompress.cli import run\nrun({words.split()!r})\n"
        f"print('loaded:', sorted(set(sys.modules) & {HEAVY!r}))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert shown in result.stdout
    assert "loaded: []" in result.stdout


@pytest.mark.parametrize("kind", KINDS)
def test_list_shows_every_entry(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["list", kind, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert {entry["name"] for entry in shown} == set(entries(kind))
    assert all(entry["summary"] for entry in shown)
    assert run_command(["list", kind, "--quiet"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in entries(kind))


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["--version"]) == 0
    assert capsys.readouterr().out == f"snncompress {snncompress.__version__}\n"
