"""Recipes of the zoo name options that exist."""

from __future__ import annotations

import inspect
import tomllib
from pathlib import Path

import pytest

from snncompress.cli.prune import prune
from snncompress.cli.train import train

ZOO = Path(__file__).parents[1] / "model_zoo"
RECIPES = sorted(ZOO.glob("*/*.toml"))


def test_there_are_recipes() -> None:
    assert RECIPES


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: str(path.relative_to(ZOO)))
def test_every_option_of_a_recipe_is_one_of_its_command(recipe: Path) -> None:
    command = prune if recipe.stem == "small" else train
    known = inspect.signature(command).parameters
    options = tomllib.loads(recipe.read_text(encoding="utf-8"))
    assert options
    assert all(option.replace("-", "_") in known for option in options)
