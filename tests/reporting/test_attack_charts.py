"""Curves of attacks: what is drawn is what was stored, and kinds that do not compare stand apart."""

from __future__ import annotations

from typing import Any

from snncompress.reporting.attack_charts import attack_charts
from snncompress.reporting.svg_charts import draw


def record(attack: str = "fgs", **more: Any) -> dict[str, Any]:
    found = {
        "attack": attack, "eps": [0.0, 0.1], "accuracy": [98.0, 1.0], "accuracy_std": [0.5, 2.0],
        "success": [2.0, 99.0], "success_std": [0.0, 0.0], "targeted": False,
        "gradient": "expected", "split": "test", "images": 1000,
    }  # fmt: skip
    return found | more


def test_a_line_an_attack() -> None:
    records = {
        "a": record(), "b": record("pgd", accuracy_std=[0, 0]), "c": record(gradient="rounded"), "d": record("cw"),
        "e": record(targeted=True),
    }  # fmt: skip
    charts = {chart.key: chart for chart in attack_charts({"attacks": records})}
    assert set(charts) == {"attacks", "attacks-l2", "attacks-targeted"}
    names = [series.name for series in charts["attacks"].series]
    assert names == [
        "FGS (1,000 test)", "PGD (1,000 test)",
        "FGS, rounded gradient (1,000 test)",
    ]  # fmt: skip
    first, second, _ = charts["attacks"].series
    assert first.ys == (98.0, 1.0)
    assert first.band == ((97.5, 0.0), (98.5, 3.0))  # no accuracy is below zero
    assert second.band is None
    assert charts["attacks-targeted"].series[0].ys == (2.0, 99.0)  # success
    assert charts["attacks-targeted"].y_label == "Success (%)"
    assert "length" in charts["attacks-l2"].x_label
    assert all(draw(chart).startswith("<svg") for chart in charts.values())


def test_more_attacks_than_colours() -> None:
    (chart,) = attack_charts({"attacks": {str(n): record(images=n) for n in range(9)}})
    assert len(chart.series) == 9
    assert max(series.colour for series in chart.series) < 7


def test_nothing_to_show() -> None:
    assert attack_charts({"validation": {"error": 1.0}}) == []
