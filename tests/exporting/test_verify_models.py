"""The benchmark that exports and verifies every model, on one of them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import verify_models
from snncompress import registry


def test_every_model_of_the_zoo_is_in_it() -> None:
    assert set(registry.entries("models")) <= set(verify_models.MODELS)
    assert "torchvision:vit_b_16" in verify_models.MODELS


def test_whole_and_pruned_pass_and_are_not_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    threads = torch.get_num_threads()
    whole, pruned = verify_models.try_model("mlp", 5)
    torch.set_num_threads(threads)
    for result in (whole, pruned):
        assert result["passed"]
        assert list(result["differences"]) == ["1", "7", "5"]
        assert max(result["differences"].values()) < 1e-5
        assert result["spread"] > 0.1  # the comparison says something
    assert whole["flops_percent"] == 100
    assert 45 < pruned["flops_percent"] <= 50
    assert pruned["bytes"] < whole["bytes"]
    out = tmp_path / "out.jsonl"
    out.write_text("".join(json.dumps(result) + "\n" for result in (whole, pruned | {"passed": False})))
    monkeypatch.setattr(sys, "argv", ["verify_models", "mlp", "--out", str(out)])
    with pytest.raises(SystemExit) as caught:
        verify_models.main()
    assert caught.value.code == 1  # what OUT says, without another trial
    printed = capsys.readouterr().out
    assert printed.count("| mlp") == 2
    assert "FAIL" in printed
