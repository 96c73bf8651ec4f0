"""Features, dense and sparse, and numbers to predict, from .npz files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_data import to_csr

from snncompress.data.batches import Batches
from snncompress.data.dataset import Dataset, Normalization, TensorImages
from snncompress.data.features import standardization
from snncompress.data.sources import load_data
from snncompress.data.sparse import CsrMatrix, SparseFeatures
from snncompress.data.task import Task
from snncompress.errors import DataError, UsageError

CPU = torch.device("cpu")
RANDOM = np.random.RandomState(0)
FEATURES = RANDOM.randn(20, 5) * [1, 10, 100, 1, 1] - [0, 0, 500, 0, 3]
CLASSES = np.arange(20) % 3
NUMBERS = RANDOM.randn(20) * 7
COUNTS = RANDOM.poisson(0.5, (20, 6))
CSR = to_csr(COUNTS)


def write(folder: Path, **arrays: Any) -> str:
    np.savez(folder / "set.npz", **arrays)
    return f"npz:{folder / 'set.npz'}"


def everything(data: Dataset) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and labels of the training and the validation part, in the order of the file."""
    parts = [part.batch(torch.arange(len(part))) for part in (data.train, data.validation)]
    inputs, labels = (torch.cat(each) for each in zip(*parts, strict=True))
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))  # how they were split
    count = len(data.validation)
    return tuple(
        t[torch.cat([order[count:].sort().values, order[:count].sort().values]).argsort()] for t in (inputs, labels)
    )  # type: ignore[return-value]


@pytest.mark.parametrize("inputs", ["train_features", "train_images", "x_train"])
@pytest.mark.parametrize("labels", [CLASSES, NUMBERS])
def test_a_matrix_is_read_as_features(tmp_path: Path, inputs: str, labels: Any) -> None:
    label_key = "y_train" if inputs == "x_train" else "train_labels"
    test = {key.replace("train", "test"): values[:4] for key, values in ((inputs, FEATURES), (label_key, labels))}
    data = load_data(write(tmp_path, **{inputs: FEATURES, label_key: labels}, **test))
    assert data.image_shape == (5, 1, 1)
    assert data.noun == "samples"
    assert data.task is (Task.CLASSIFICATION if labels is CLASSES else Task.REGRESSION)
    assert data.classes == (("0", "1", "2") if labels is CLASSES else ("target",))
    found, targets = everything(data)
    torch.testing.assert_close(found.flatten(1), torch.from_numpy(FEATURES).float())
    assert targets.dtype == (torch.int64 if labels is CLASSES else torch.float32)
    torch.testing.assert_close(targets, torch.from_numpy(labels).to(targets.dtype))
    assert len(data.test or []) == 4


def test_features_are_standardized_by_the_training_part(tmp_path: Path) -> None:
    constant = np.column_stack([FEATURES, np.full(20, 0.1)])
    data = load_data(
        write(tmp_path, features=constant, targets=NUMBERS, test_features=constant[:3], test_targets=NUMBERS[:3])
    )
    stored = constant.astype(np.float32).astype(float)
    np.testing.assert_allclose(data.normalization.mean, stored.mean(0), rtol=1e-12)
    np.testing.assert_allclose(data.normalization.std[:5], stored.std(0)[:5], rtol=1e-12)
    assert data.normalization.std[5] == 1
    inputs, _ = everything(data)
    normal = data.normalization(inputs).flatten(1)
    torch.testing.assert_close(normal.mean(0), torch.zeros(6), atol=1e-5, rtol=0)
    torch.testing.assert_close(normal[:, :5].std(0, correction=0), torch.ones(5))
    assert load_data(write(tmp_path, features=constant, targets=NUMBERS), normalize="none").normalization.mean == (0.0,)


def test_what_is_set_aside_for_testing_has_no_part_in_the_normalization(tmp_path: Path) -> None:
    data = load_data(write(tmp_path, features=FEATURES, labels=CLASSES))
    assert len(data.test or []) == 2
    inputs = torch.cat([part.batch(torch.arange(len(part)))[0] for part in (data.train, data.validation)])
    torch.testing.assert_close(torch.tensor(data.normalization.mean), inputs.flatten(1).mean(0))


def test_many_features_share_one_normalization() -> None:
    features = torch.randn(10, 1001, 1, 1) * 3 + 2
    found = standardization(features)
    assert found.mean == pytest.approx((float(features.mean()),), rel=1e-5)
    assert found.std == pytest.approx((float(features.std(correction=0)),), rel=1e-5)
    assert len(standardization(features[:, :1000]).mean) == 1000
    assert Normalization.parse("0.5/2", 5000) == Normalization((0.5,), (2.0,))
    assert torch.equal(found(features), (features - found.mean[0]) / found.std[0])
    images = TensorImages(features, torch.zeros(10), device=CPU)
    inputs, _ = next(iter(Batches(images, 10, found, device=CPU)))
    assert torch.equal(inputs, found(features))


@pytest.mark.parametrize("labels", [CLASSES, NUMBERS])
@pytest.mark.parametrize("prefix", ["", "train_"])
def test_sparse_features_are_the_dense_ones(tmp_path: Path, prefix: str, labels: Any) -> None:
    matrix = {f"{prefix}{key}": values for key, values in CSR.items()}
    test = {f"test_{key}": values for key, values in to_csr(COUNTS[:4]).items()} | {"test_labels": labels[:4]}
    data = load_data(write(tmp_path, **matrix, **test, **{f"{prefix}labels": labels, "features": 6}))
    assert data.image_shape == (6, 1, 1)
    assert data.task is (Task.CLASSIFICATION if labels is CLASSES else Task.REGRESSION)
    assert data.normalization == Normalization((0.0,), (1.0,))
    inputs, targets = everything(data)
    assert inputs.dtype == torch.float32
    assert torch.equal(inputs.flatten(1), torch.from_numpy(COUNTS).float())
    torch.testing.assert_close(targets, torch.from_numpy(labels).to(targets.dtype))
    assert data.test is not None
    assert torch.equal(data.test.batch(torch.tensor([2, 0]))[0][:, :, 0, 0], torch.from_numpy(COUNTS[[2, 0]]).float())


def test_the_number_of_columns(tmp_path: Path) -> None:
    """By the shape, else by ``features``, else by the largest index of both parts."""
    short = to_csr(COUNTS[:, :3])
    for more, columns in (
        ({"shape": np.array([20, 9])}, 9),
        ({"features": np.array([8])}, 8),
        ({"test_data": [1], "test_indices": [6], "test_indptr": [0, 1], "test_labels": [0]}, 7),
        ({}, 3),
    ):
        data = load_data(write(tmp_path, **short, labels=CLASSES, **more))  # type: ignore[arg-type]
        assert data.image_shape == (columns, 1, 1)


def test_rows_of_a_sparse_matrix() -> None:
    matrix = CsrMatrix(*(torch.from_numpy(CSR[key]) for key in ("data", "indices", "indptr")), 6)
    dense = torch.from_numpy(COUNTS)
    for rows in ([3, 0, 3], [19], list(range(20)), []):
        assert torch.equal(matrix.take(torch.tensor(rows, dtype=torch.int64)).dense(), dense[rows])
    twice = CsrMatrix(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([1, 1, 0]), torch.tensor([0, 0, 3]), 2)
    assert twice.dense().tolist() == [[0, 0], [4, 3]]  # as SciPy has it
    part = SparseFeatures(matrix, torch.from_numpy(CLASSES), device=CPU).subset(torch.tensor([5, 2, 7]))
    inputs, labels = part.batch(torch.tensor([2, 1]))
    assert torch.equal(inputs[:, :, 0, 0], dense[[7, 2]])
    assert labels.tolist() == CLASSES[[7, 2]].tolist()
    assert (len(part), part.shape) == (3, (6, 1, 1))


def test_a_matrix_beyond_the_budget_stays_where_it_is(tmp_path: Path) -> None:
    data = load_data(write(tmp_path, **CSR, labels=CLASSES), device=torch.device("meta"), memory_budget_bytes=10)
    assert data.train.labels.device == CPU
    inputs, labels = data.train.batch(torch.arange(3))
    assert (inputs.device.type, labels.device.type) == ("meta", "meta")
    assert inputs.shape == (3, 6, 1, 1)


BAD = {
    "features": FEATURES,
    "labels": CLASSES,
}


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (BAD | {"features": np.where(FEATURES > 5, np.nan, FEATURES)}, r"\(features\) contains NaN"),
        (BAD | {"features": FEATURES * 1e300}, r"\(features\) contains NaN, infinite values or some beyond"),
        (BAD | {"features": FEATURES.astype(str)}, r"\(features\) is <U.*; give numbers"),
        (BAD | {"features": FEATURES[:, :0]}, "no features; give at least one column"),
        (BAD | {"features": FEATURES[:19]}, "19 rows but 20 labels; each needs one"),
        (BAD | {"labels": np.where(NUMBERS > 0, np.inf, NUMBERS)}, r"\(labels\) contains NaN, infinite"),
        (BAD | {"labels": NUMBERS.reshape(10, 2)}, r"shape \(10, 2\); labels must be one integer .* or one float"),
        (BAD | {"labels": NUMBERS[:0]}, r"\(labels\) is empty"),
        (BAD | {"labels": CLASSES + 1}, "no row of class 0"),
        (BAD | {"test_features": FEATURES, "test_labels": NUMBERS}, r"some labels are integers .* some floats"),
        (BAD | {"test_features": FEATURES[:, :4], "test_labels": CLASSES}, r"training rows are \(5, 1, 1\), test rows"),
        (BAD | {"test_features": FEATURES[:4], "test_labels": CLASSES}, r"\(test part\): 4 rows but 20 labels"),
    ],
)
def test_bad_features_are_explained(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message) as raised:
        load_data(write(tmp_path, **arrays))
    assert "\n" not in str(raised.value)


SPARSE = CSR | {"labels": CLASSES}
ENDS = CSR["indptr"]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({k: v for k, v in SPARSE.items() if k != "data"}, "has indptr but no data; a CSR matrix is"),
        ({k: v for k, v in SPARSE.items() if k != "indices"}, "has indptr but no indices"),
        (SPARSE | {"indptr": ENDS[::-1]}, r"\(indptr\) does not rise from 0"),
        (SPARSE | {"indptr": ENDS + 1}, r"\(indptr\) does not rise from 0"),
        (SPARSE | {"indptr": ENDS[:-1]}, r"\(indptr\) ends at \d+, but there are \d+ entries"),
        (SPARSE | {"indptr": ENDS / 1.0}, r"\(indptr\) is float64 of shape \(21,\); give one integer more"),
        (SPARSE | {"indptr": ENDS.reshape(3, 7)}, r"\(indptr\) is int\d+ of shape \(3, 7\)"),
        (SPARSE | {"indptr": ENDS[0]}, r"\(indptr\) is int\d+ of shape \(\)"),
        (SPARSE | {"indptr": np.append(ENDS, ENDS[-1])}, "21 rows but 20 labels"),
        (SPARSE | {"indices": CSR["indices"][1:]}, r"\(indices\) has shape .*; each entry needs one of both"),
        (SPARSE | {"indices": CSR["indices"] / 1.0}, r"\(indices\) is float64; column numbers must be integers"),
        (SPARSE | {"indices": CSR["indices"] - 1}, r"\(indices\): column -1 is outside 0\.\.4"),
        (SPARSE | {"features": 5}, r"\(indices\): column 5 is outside 0\.\.4; the features are 5"),
        (SPARSE | {"features": np.ones(3, int)}, r"\(features\) is int64 of shape \(3,\); give one integer"),
        (SPARSE | {"features": 0}, "has 0 features; give 1 to"),
        (SPARSE | {"shape": np.array([20, 7]), "features": 8}, "shape says 7 features, features says 8 features"),
        (SPARSE | {"shape": np.array([19, 6])}, r"\(shape\) says 19 rows, but indptr has 20"),
        (SPARSE | {"shape": np.array([6])}, r"\(shape\) is int64 of shape \(1,\); give two integers"),
        (SPARSE | {"data": CSR["data"] * np.nan}, r"\(data\) contains NaN"),
        (SPARSE | {"data": CSR["data"].astype(str)}, r"\(data\) is <U.*; give numbers"),
        (SPARSE | {"test_labels": CLASSES}, "has test_labels alone; test_indptr and test_labels belong together"),
        (CSR, "holds data, indices, indptr; name its arrays train_images and train_labels"),
        (to_csr(COUNTS * 0) | {"labels": CLASSES}, "has 0 features"),
    ],
)
def test_bad_matrices_are_explained(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message) as raised:
        load_data(write(tmp_path, **arrays))
    assert "\n" not in str(raised.value)


def test_features_have_no_pixels(tmp_path: Path) -> None:
    for arrays in ({"features": FEATURES, "labels": CLASSES}, SPARSE):
        name = write(tmp_path, **arrays)
        with pytest.raises(UsageError, match=r"--image-size 8: .* holds features, not images"):
            load_data(name, image_size=8)
        data = load_data(name)
        with pytest.raises(UsageError, match="--augment shift moves pixels, but these are features"):
            Batches(data.train, 4, data.normalization, device=CPU, augment="shift")


def test_images_may_have_numbers_to_predict(tmp_path: Path) -> None:
    images = RANDOM.randint(0, 256, (20, 6, 7), dtype=np.uint8)
    data = load_data(write(tmp_path, images=images, targets=NUMBERS.reshape(-1, 1)))
    assert (data.task, data.image_shape, data.noun) == (Task.REGRESSION, (1, 6, 7), "images")
    assert data.normalization == Normalization((0.5,), (0.5,))
    assert data.train.labels.dtype == torch.float32
