"""Our FLOPs beside other counters', where those are installed."""

from __future__ import annotations

from importlib.util import find_spec

import pytest


@pytest.mark.parametrize(("name", "fvcore"), [("squeezenet1_1", "equal"), ("vit_b_32", "lacks fused attention")])
@pytest.mark.filterwarnings("ignore")
def test_the_difference_is_explained(name: str, fvcore: str) -> None:
    for other in ("fvcore", "ptflops"):  # not imported here: torchvision has to come first, as snncompress imports it
        if find_spec(other) is None:
            pytest.skip(f"{other} is not installed: pip install snncompress[bench]")
    from benchmarks.count_flops import count

    line = count(name)
    assert line.explain_fvcore() == fvcore
    assert line.explain_ptflops() == "adds biases"
    assert line.uncounted == 0
