"""The card says what the file is; the program beside it gives the run's answers where torch is not."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tiny import CLASSES, tiny_images, tiny_run

from snncompress.data.task import Task
from snncompress.errors import UsageError
from snncompress.exporting.card import write_card
from snncompress.exporting.onnx import export_onnx
from snncompress.run import Run, wrap
from snncompress.run_files import save_run


def predict(folder: Path, *files: str) -> list[str]:
    program = "import sys, runpy\nsys.modules['torch'] = sys.modules['snncompress'] = None\n"
    program += f"sys.argv[1:] = {list(files)!r}\nrunpy.run_path('predict.py', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def run() -> Run:
    return tiny_run()


@pytest.mark.parametrize("inside", [False, True])
def test_the_program_gives_the_runs_answers(run: Run, tmp_path: Path, inside: bool) -> None:
    result = export_onnx(run, tmp_path / "my model.onnx", with_softmax=inside, with_normalization=inside)
    write_card(run, result)
    pixels = (255 * tiny_images(run, 3).images).byte()
    for index, image in enumerate(pixels):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(tmp_path / f"{index}.png")
    with torch.no_grad():
        wanted = run.model.eval()(run.normalization(pixels.float() / 255)).softmax(1)
    lines = predict(tmp_path, "0.png", "1.png", "2.png")
    assert lines == [f"{i}.png: {CLASSES[row.argmax()]} ({row.max():.1%})" for i, row in enumerate(wanted)]


def test_the_program_names_what_it_cannot_read(run: Run, tmp_path: Path) -> None:
    write_card(run, export_onnx(run, tmp_path / "a.onnx"))
    (tmp_path / "text.png").write_text("no image")
    for files, line in (((), "Predicts with a.onnx"), (("none.png",), "none.png"), (("text.png",), "give image files")):
        words = [sys.executable, "predict.py", *files]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert line in done.stderr
        assert "Traceback" not in done.stderr


def test_an_image_of_another_size_is_scaled_and_cut(run: Run, tmp_path: Path) -> None:
    write_card(run, export_onnx(run, tmp_path / "a.onnx"))
    Image.fromarray(np.full((30, 50), 90, np.uint8)).save(tmp_path / "gray.png")
    (line,) = predict(tmp_path, "gray.png")
    with torch.no_grad():
        wanted = run.model(run.normalization(torch.full((1, 3, 12, 12), 90 / 255))).softmax(1)[0]
    assert line == f"gray.png: {CLASSES[wanted.argmax()]} ({wanted.max():.1%})"


def test_features_and_a_number(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(6, 1))
    run = replace(wrap(model, (6, 1, 1)), task=Task.REGRESSION)
    write_card(run, export_onnx(run, tmp_path / "a.onnx"))
    features = torch.randn(2, 6)
    np.save(tmp_path / "a.npy", features.double().numpy())
    with torch.no_grad():
        wanted = run.model(features.view(2, 6, 1, 1)).flatten().tolist()
    assert [float(line.split()[1]) for line in predict(tmp_path, "a.npy")] == pytest.approx(wanted, rel=1e-4)
    assert "features" in (tmp_path / "MODEL_CARD.md").read_text(encoding="utf-8")


def test_the_card(run: Run, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("plain", "small")]
    for folder in folders:
        folder.mkdir()
    save_run(run, folders[0], ["snncompress", "train", "net", "--out", "plain"])
    child = save_run(
        replace(run, parent=str(folders[0]), data={"name": "folder:/home/me/photos"}),
        folders[1], ["snncompress", "prune", "plain", "--keep", "a b"],
    )  # fmt: skip
    result = export_onnx(child, tmp_path / "a.onnx")
    card, _ = write_card(child, result, ["snncompress", "export", "small"])
    text = card.read_text(encoding="utf-8")
    made = "snncompress train net --out plain\nsnncompress prune plain --keep 'a b'\nsnncompress export small\n"
    assert made in text
    for part in (
        "# small", "test error (torch, float32) | 1.25%", "N×3×12×12", "N×4, in this order: cat, dog, Öre, ü",
        "100.00%", "mean [0.4, 0.5, 0.6]", f"{result.size_bytes:,} bytes",
        "folder:photos", f"torch {torch.__version__}",
    ):  # fmt: skip
        assert part in text, part
    assert "/home/me" not in text


def test_what_is_there_stays(run: Run, tmp_path: Path) -> None:
    result = export_onnx(run, tmp_path / "a.onnx")
    (tmp_path / "predict.py").write_text("mine")
    with pytest.raises(UsageError, match=r"predict\.py exists already"):
        write_card(run, result)
    assert not (tmp_path / "MODEL_CARD.md").exists()
    write_card(run, result, force=True)
    assert (tmp_path / "predict.py").read_text(encoding="utf-8") != "mine"
