"""Recipes: read, checked, filled, and given figures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from snncompress.errors import RunError, UsageError
from snncompress.zoo.recipe import Figures, read_recipe, show_errors, with_figures

TEXT = """
summary = "a small thing"
model = "mlp"
data = "mnist-sample"
licence = "CC BY-SA 3.0"
result = "plain"

[[steps]]
about = "the beginning"
command = '''
train mlp --checkpoint {weights} --data mnist-sample
  --data-root {data_root} --seed {seed} --out "{out}/plain"
'''

[files]
weights = "mlp.pth from somewhere"
"""
FIGURES = Figures("test", (0, 1), (5.0, 5.5), 100, 10.0, 1000, 5.0, 20, 2.5, 12.5, 900, 20)


def write(folder: Path, text: str) -> Path:
    path = folder / "recipe.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_command_is_filled_word_by_word(tmp_path: Path) -> None:
    recipe = read_recipe(write(tmp_path, TEXT))
    values = recipe.values("small", Path("my runs"), Path("my data"), 3, {"weights": "a b.pth"})
    assert recipe.steps[0].fill(values) == [
        "train", "mlp", "--checkpoint", "a b.pth", "--data", "mnist-sample", "--data-root", "my data", "--seed", "3",
        "--out", "my runs/plain",
    ]  # fmt: skip


def test_files_that_a_recipe_needs_are_asked_for(tmp_path: Path) -> None:
    recipe = read_recipe(write(tmp_path, TEXT))
    with pytest.raises(UsageError, match=r"--file weights=PATH \(mlp.pth from somewhere\)"):
        recipe.values("small", tmp_path, tmp_path, 0, {})
    with pytest.raises(UsageError, match=r"needs no such file \(it takes: weights\)"):
        recipe.values("small", tmp_path, tmp_path, 0, {"weights": "a", "wights": "b"})


def test_figures_are_read_as_they_were_written(tmp_path: Path) -> None:
    text = with_figures(TEXT, FIGURES)
    recipe = read_recipe(write(tmp_path, text))
    assert recipe.figures == FIGURES
    assert (FIGURES.error, FIGURES.spread) == (5.25, 0.25)
    assert recipe.steps == read_recipe(write(tmp_path, TEXT)).steps
    assert with_figures(text, FIGURES) == text
    between = TEXT.replace("[files]", f"[figures]\n{FIGURES.to_toml()}[files]")
    assert with_figures(between, FIGURES) == text


def test_figures_of_the_same_shape_from_new_weights(tmp_path: Path) -> None:
    assert FIGURES.scratch is None
    beside = replace(FIGURES, scratch_errors=(6.0, 7.0))
    assert beside.scratch == (6.5, 0.5)
    assert beside.original is None
    assert replace(FIGURES, original_errors=(2.0,)).original == (2.0, 0.0)
    (tmp_path / "recipe.toml").write_text(with_figures(TEXT, beside))
    assert read_recipe(tmp_path / "recipe.toml").figures == beside


def test_one_seed_has_no_spread() -> None:
    assert show_errors("classification", (9.38,)) == "9.38%"
    assert show_errors("classification", (1.0, 2.0)) == "1.50 ± 0.50%"
    assert show_errors("regression", (0.5, 0.7)) == "0.6000 ± 0.1000"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('model = "mlp"', "", "it lacks 'model'"),
        ("{seed}", "{sed}", r"\{sed\} stands for nothing \(known: out, data_root, seed, weights\)"),
        ("[files]", "[flies]", "there is no 'flies' in a recipe"),
        ("command", "comand", "it lacks 'command'"),
        ('"{out}/plain"', '"{out}/plain', "No closing quotation"),
        ("[files]", "[figures]\nerror = 1\n[files]", "it lacks 'seeds'"),
        ("[[steps]]", "[[steps", "cannot read the recipe"),
    ],
)
def test_what_makes_no_sense_is_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in TEXT
    with pytest.raises(RunError, match=message):
        read_recipe(write(tmp_path, TEXT.replace(old, new)))
    with pytest.raises(RunError, match=r"recipe\.toml"):
        read_recipe(tmp_path / "gone" / "recipe.toml")


def test_further_seeds_stand_beside_the_first_and_change_no_cost() -> None:
    more = replace(FIGURES, seeds=(2,), errors=(6.0,), weights=99, scratch_errors=(7.0,))
    joined = replace(FIGURES, scratch_errors=(8.0, 9.0)).joined(more)
    assert (joined.seeds, joined.errors, joined.scratch_errors) == ((0, 1, 2), (5.0, 5.5, 6.0), (8.0, 9.0, 7.0))
    assert joined.weights == FIGURES.weights
    with pytest.raises(UsageError, match="seed 2 stands in the figures already"):
        joined.joined(more)
    with pytest.raises(UsageError, match="the figures have split test, those to add validation"):
        FIGURES.joined(replace(more, split="validation"))
