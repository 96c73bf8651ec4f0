"""Every entry of the zoo: its recipe is one, its commands are commands, its run loads, its card says what it must."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from snncompress import registry
from snncompress.cli.app import app
from snncompress.data.task import Task
from snncompress.errors import UsageError
from snncompress.reporting.table import format_flops
from snncompress.run_files import load
from snncompress.zoo.entries import ZOO_VARIABLE, ZooEntry, find_zoo, list_zoo
from snncompress.zoo.measuring import verify_zoo
from snncompress.zoo.recipe import show_errors

ENTRIES = list_zoo()
COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]
REPOSITORY = Path(__file__).parents[2]
LARGEST_BYTES = 2_000_000  # what a clone should not have to carry


def filled(entry: ZooEntry) -> list[list[str]]:
    files = dict.fromkeys(entry.recipe.files, "file.pth")
    values = entry.recipe.values(entry.name, Path("OUT"), Path("DATA"), 7, files)
    return [step.fill(values) for step in entry.recipe.steps]


def test_there_are_entries() -> None:
    assert {"lenet5-mnist", "lenet5-sample"} <= {entry.name for entry in ENTRIES}
    assert any(entry.stored for entry in ENTRIES)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
class TestContract:
    def test_its_names_are_known(self, entry: ZooEntry) -> None:
        recipe = entry.recipe
        assert recipe.model in registry.entries("models") or ":" in recipe.model
        assert recipe.data.partition(":")[0] in registry.entries("data")
        assert 10 <= len(recipe.summary) <= 110
        assert all(step.about for step in recipe.steps)

    def test_its_commands_are_command_lines(self, entry: ZooEntry) -> None:
        for name, *words in filled(entry):
            COMMANDS[name].make_context(name, words)  # raises for what the command does not take

    def test_its_steps_follow_from_each_other(self, entry: ZooEntry) -> None:
        made: set[str] = set()
        for words in filled(entry):
            out = words[words.index("--out") + 1] if "--out" in words else None
            read = {word for word in words if word.startswith("OUT/") and word != out}
            assert read <= made
            if words[0] in ("train", "prune"):
                assert words[words.index("--seed") + 1] == "7"
                assert out is not None
                assert Path(out).parts[0] == "OUT"
                made.add(out)
        assert f"OUT/{entry.recipe.result}" in made
        for beside in (entry.recipe.original, entry.recipe.scratch):
            assert beside is None or f"OUT/{beside}" in made

    def test_its_card(self, entry: ZooEntry) -> None:
        assert entry.recipe.licence in entry.card
        assert entry.recipe.data in entry.card
        assert f"snncompress zoo run {entry.name}" in entry.card
        assert f"snncompress zoo verify {entry.name}" in entry.card
        assert "seed" in entry.card.lower()
        if (figures := entry.recipe.figures) is not None:  # a card is not left behind
            task = Task(figures.task)
            assert show_errors(figures.task, figures.errors) in entry.card
            assert all(task.show(error) in entry.card for error in figures.errors)
            beside = (*figures.original_errors, *figures.scratch_errors)
            assert all(task.show(error) in entry.card for error in beside)
            assert f"{figures.weights:,}" in entry.card
            assert format_flops(figures.flops) in entry.card

    def test_weights_and_figures_come_together(self, entry: ZooEntry) -> None:
        assert entry.stored == (entry.recipe.figures is not None)
        if entry.recipe.figures is not None:
            assert bool(entry.recipe.figures.scratch_errors) == (entry.recipe.scratch is not None)
            assert bool(entry.recipe.figures.original_errors) == (entry.recipe.original is not None)

    def test_the_stored_run_loads(self, entry: ZooEntry) -> None:
        if not entry.stored:
            with pytest.raises(UsageError, match=f"snncompress zoo run {entry.name}"):
                load(f"zoo:{entry.name}")
            return
        run = load(f"zoo:{entry.name}")
        assert run.label == run.name == entry.name
        assert run.data["name"] == entry.recipe.data
        assert run.parent is None
        assert run.source is not None
        assert run.source.name == entry.recipe.model
        files = [file for file in entry.folder.iterdir() if file.is_file()]
        assert sum(file.stat().st_size for file in files) < LARGEST_BYTES
        assert {file.suffix for file in files} <= {".toml", ".md", ".json", ".safetensors"}

    def test_it_has_its_figures(self, entry: ZooEntry) -> None:
        """Where the data are embedded; others are verified by `python -m benchmarks.tables`."""
        if entry.stored and entry.recipe.data == "mnist-sample":
            result = verify_zoo(entry.name)
            assert result.passed, result.checks
            assert [check.name for check in result.checks] == ["error", "weights", "FLOPs", "memory", "file"]


def test_an_unknown_name_lists_the_closest() -> None:
    with pytest.raises(UsageError, match=r"unknown zoo entry 'lenet5-sampel'; did you mean 'lenet5-sample'\?"):
        find_zoo("zoo:lenet5-sampel")


def test_another_zoo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(find_zoo("lenet5-sample").folder, tmp_path / "mine")
    monkeypatch.setenv(ZOO_VARIABLE, str(tmp_path))
    assert [entry.name for entry in list_zoo()] == ["mine"]
    monkeypatch.setenv(ZOO_VARIABLE, str(tmp_path / "gone"))
    with pytest.raises(UsageError, match=f"set {ZOO_VARIABLE}"):
        find_zoo("mine")


def test_the_zoo_is_installed_with_the_package(tmp_path: Path) -> None:
    """What a wheel holds: the package as it is built, with the zoo inside."""
    words = ["egg_info", "--egg-base", str(tmp_path), "build_py", "--build-lib", str(tmp_path / "lib")]
    subprocess.run([sys.executable, "setup.py", "--quiet", *words], cwd=REPOSITORY, check=True, capture_output=True)
    package = tmp_path / "lib" / "snncompress"
    zoo = package / "model_zoo"
    for entry in ENTRIES:
        have = {file.name for file in (zoo / entry.name).iterdir()}
        assert have == {file.name for file in entry.folder.iterdir() if file.is_file()}
    built = {file.relative_to(package) for file in package.rglob("*.py")}
    here = REPOSITORY / "snncompress"
    assert built == {file.relative_to(here) for file in here.rglob("*.py")}
    program = "import json; from snncompress.zoo.entries import zoo_root; print(json.dumps(str(zoo_root())))"
    shown = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path / "lib", env={"PYTHONPATH": str(tmp_path / "lib")},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert Path(json.loads(shown.stdout)) == zoo


def test_the_second_data_set_is_not_tuned() -> None:
    first, second = (find_zoo(name).recipe for name in ("lenet5-mnist", "lenet5-fashion-mnist"))
    assert [step.words for step in second.steps] == [
        tuple("fashion-mnist" if word == "mnist" else word for word in step.words) for step in first.steps
    ]


@pytest.mark.parametrize(
    ("name", "whole"),
    [
        ("lenet5-plain", "lenet5-mnist"),
        ("lenet5-plain", "lenet5-sparse"),
        ("lenet5-tiny", "lenet5-mnist"),
        ("lenet300-plain", "lenet300-sparse"),
    ],
)
def test_recipes_begin_with_the_same_steps(name: str, whole: str) -> None:
    first, second = ([step.words for step in find_zoo(entry).recipe.steps] for entry in (name, whole))
    same = min(len(first), len(second) - 1)  # the last one is the network from new weights
    assert first[:same] == second[:same]
