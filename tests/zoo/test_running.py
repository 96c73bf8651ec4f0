"""A recipe that was followed in part goes on, also where its later steps have changed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from snncompress.errors import UsageError
from snncompress.zoo.recipe import Recipe, Step
from snncompress.zoo.running import Followed

STEPS = tuple(Step("a step", ("train", name, "--out", "{out}/" + name)) for name in ("a", "b", "c"))
RECIPE = Recipe("three steps", "mlp", "mnist-sample", "none", "c", STEPS)
OTHER = Step("another", ("train", "other", "--out", "{out}/other"))


def follow(out: Path, steps: tuple[Step, ...], *, seed: int = 0, resume: bool = True) -> Followed:
    followed = Followed(out, "three", replace(RECIPE, steps=steps), seed, {})
    followed.begin(resume)
    return followed


def test_steps_that_were_not_begun_may_change(tmp_path: Path) -> None:
    out = tmp_path / "out"
    follow(out, STEPS, resume=False).end(0)
    values = {"out": str(out)}
    again = follow(out, (*STEPS[:2], OTHER))
    assert again.words(0, values) is None
    assert again.words(2, values) == ["train", "other", "--out", f"{out}/other"]
    for number in (0, 1):  # the first is done, the second may be under way
        with pytest.raises(UsageError, match=f"step {number + 1} was another when .* began; choose another --out"):
            follow(out, (*STEPS[:number], OTHER, *STEPS[number + 1 :]))
    with pytest.raises(UsageError, match="begun with another seed"):
        follow(out, STEPS, seed=1)
