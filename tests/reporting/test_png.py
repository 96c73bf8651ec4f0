"""The page's pictures as files."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from PIL import Image

from snncompress.errors import RunError, UsageError
from snncompress.reporting.charts import GAP, Bar, BarChart, Chart, Histogram, LineChart, Mark, ReliabilityChart, Series
from snncompress.reporting.png import write_pictures

LINE = Series("_hidden$", (1, 2, 2, 3), (1, 100, GAP, 0), band=((1, 1, GAP, 1), (2, 2, GAP, 2)))
LINES = LineChart(
    "lines", "_$a", "x", "y", (LINE,),
    (Mark("last", 3, 2, 1, "2 at 3"),), (1.5, "level"), ((1, "first"), (2, "second_$")), log_x=True, log_y=True,
)  # fmt: skip
CHARTS: list[Chart] = [
    LINES,
    BarChart("bars", "Neurons", (Bar("conv$1", 20, 2), Bar("_fc", 10, 10))),
    Histogram("counts", "fc1", "x", (0.0, 1.0, 2.0), (1, 2), (3, 4)),
    Histogram("weights", "fc1", "x", (0.0, 1.0, 2.0), (1, 2), None, "weights", log_y=True),
    ReliabilityChart("sure", "Sure", (0, 5, 20), (0.0, 0.5, 0.9), (0.0, 0.6, 0.8)),
]


def test_every_kind_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    files = write_pictures(CHARTS, tmp_path / "new" / "pictures")
    assert [file.name for file in files] == ["lines.png", "bars.png", "counts.png", "weights.png", "sure.png"]
    assert sorted((tmp_path / "new" / "pictures").iterdir()) == sorted(files)
    for file in files:
        with Image.open(file) as picture:
            assert picture.format == "PNG"
            assert len(picture.convert("RGB").getcolors(10**6) or []) > 10  # something is drawn


@pytest.mark.filterwarnings("error")
def test_a_single_point_is_seen_and_names_fit_in(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    long = "a name that is longer than the picture is wide, " * 5
    chart = LineChart("one", "图", "x", "y", (Series("one", (1,), (1,)),), dividers=((0, "a"), (1, long)))
    (file,) = write_pictures([chart], tmp_path)
    with Image.open(file) as picture:
        colours = {colour: count for count, colour in picture.convert("RGB").getcolors(10**6) or []}
    assert colours.get((0, 114, 178), 0) > 20


def test_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot write"):
        write_pictures(CHARTS[:1], tmp_path / "file")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UsageError, match=r"pip install snncompress\[plots\]"):
        write_pictures(CHARTS, tmp_path / "none")
    assert not (tmp_path / "none").exists()
