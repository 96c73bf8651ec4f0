"""The converters of the two sets that are no images, on tiny sets of the same form."""

from __future__ import annotations

import gzip
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from small_data import to_csr

from benchmarks import tabular
from snncompress.data.sources import load_data
from snncompress.data.task import Task


def write_imdb(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    counts, ratings = np.random.RandomState(0).poisson(0.5, (30, 12)), np.array([1, 2, 4, 7, 9, 10] * 5)
    parts = {}
    for part, matrix in (("train", counts), ("test", counts[::-1])):
        csr = to_csr(matrix)
        parts |= {f"{part}_indptr": csr["indptr"], f"{part}_indices": csr["indices"]}
        parts |= {f"{part}_counts": csr["data"].astype(np.uint16), f"{part}_rating": ratings}
    (folder / "imdb").mkdir()
    np.savez(folder / "imdb" / "imdb_bow.npz", **parts)
    return counts, ratings


def write_protein(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    table, masks = np.random.RandomState(1).randn(40, 10), (np.arange(80).reshape(40, 2) % 5 == 0).astype(int)
    (folder / "protein").mkdir()
    for name, values in (("data", table), ("test_mask", masks)):
        with gzip.open(folder / "protein" / f"{name}.csv.gz", "wt") as file:
            np.savetxt(file, values, delimiter=",", fmt="%.9g")
    return table, masks[:, 0] == 1


def test_the_most_frequent_words(tmp_path: Path) -> None:
    counts, ratings = write_imdb(tmp_path)
    np.savez(tmp_path / "imdb.npz", **tabular.convert_imdb(tmp_path, words=5))
    data = load_data(f"npz:{tmp_path / 'imdb.npz'}")
    frequent = np.argsort(-counts.sum(0), kind="stable")[:5]
    assert data.image_shape == (5, 1, 1)
    assert data.test is not None
    inputs, labels = data.test.batch(torch.arange(30))
    assert (inputs.flatten(1).numpy() == counts[::-1][:, frequent]).all()
    assert (labels.numpy() == (ratings > 5)).all()


def test_the_target_is_standardized_by_its_training_part(tmp_path: Path) -> None:
    table, test = write_protein(tmp_path)
    arrays = tabular.convert_protein(tmp_path)
    assert arrays["train_targets"].mean() == pytest.approx(0, abs=1e-6)
    assert arrays["train_targets"].std() == pytest.approx(1, rel=1e-5)
    np.testing.assert_allclose(arrays["test_features"], table[test, :9], rtol=1e-5)
    restored = arrays["test_targets"] * arrays["target_std"] + arrays["target_mean"]
    np.testing.assert_allclose(restored, table[test, 9], rtol=1e-4, atol=1e-5)


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_imdb(tmp_path), write_protein(tmp_path)
    monkeypatch.setattr(sys, "argv", ["tabular", "--shared", str(tmp_path), "--out", str(tmp_path / "out")])
    tabular.main()
    assert load_data(f"npz:{tmp_path / 'out' / 'imdb.npz'}").task is Task.CLASSIFICATION
    assert load_data(f"npz:{tmp_path / 'out' / 'protein.npz'}").task is Task.REGRESSION
