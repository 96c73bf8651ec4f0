from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch

from snncompress import registry
from snncompress.data.dataset import Dataset, Normalization, TensorImages
from snncompress.data.sources import load_data
from snncompress.errors import DataError, UsageError

SHARED = Path(__file__).parents[3] / "shared" / "data"
IDX_NAMES = ("images-idx3-ubyte", "labels-idx1-ubyte")


def tensors(data: Dataset, part: str) -> TensorImages:
    images = getattr(data, part)
    assert isinstance(images, TensorImages)
    return images


def idx(array: np.ndarray) -> bytes:
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes()


def write_idx(folder: Path, *, zipped: bool = False) -> dict[str, np.ndarray]:
    """Writes a small set in MNIST's layout and returns its arrays by file name."""
    folder.mkdir(parents=True, exist_ok=True)
    random, arrays = np.random.RandomState(0), {}
    for part, count in (("train", 30), ("t10k", 10)):
        arrays[f"{part}-{IDX_NAMES[0]}"] = random.randint(0, 256, (count, 28, 28), dtype=np.uint8)
        arrays[f"{part}-{IDX_NAMES[1]}"] = (np.arange(count) % 10).astype(np.uint8)
    for name, array in arrays.items():
        content = idx(array)
        (folder / (name + ".gz" * zipped)).write_bytes(gzip.compress(content) if zipped else content)
    return arrays


def write_cifar(folder: Path, files: dict[str, int], label_bytes: int, classes: int) -> dict[str, np.ndarray]:
    folder.mkdir(parents=True)
    random, records = np.random.RandomState(0), {}
    for name, count in files.items():
        records[name] = random.randint(0, 256, (count, label_bytes + 3072), dtype=np.uint8)
        records[name][:, :label_bytes] = random.randint(0, classes, (count, label_bytes))
        (folder / name).write_bytes(records[name].tobytes())
    return records


CIFAR10_FILES = {f"data_batch_{i}.bin": 4 for i in range(1, 6)} | {"test_batch.bin": 3}


@pytest.mark.parametrize("name", registry.entries("data"))
def test_every_entry_has_a_loader_and_a_summary(name: str) -> None:
    assert callable(registry.load("data", name).load)
    assert len(registry.entries("data")[name].summary) > 10


def test_the_names_that_are_promised_are_there() -> None:
    promised = {"mnist-sample", "mnist", "fashion-mnist", "cifar10", "cifar100", "folder", "npz"}
    assert promised == set(registry.entries("data"))


def test_unknown_and_misspelt_names_are_explained() -> None:
    with pytest.raises(UsageError, match=r"unknown data set 'cifar'.*did you mean 'cifar10'"):
        load_data("cifar")
    with pytest.raises(UsageError, match="write folder:PATH"):
        load_data("folder")
    with pytest.raises(UsageError, match=r"write mnist$"):
        load_data("mnist:somewhere")


def test_impossible_options_of_a_data_set_are_explained() -> None:
    with pytest.raises(UsageError, match="between 0 and 1"):
        load_data("mnist-sample", validation=1.0)
    with pytest.raises(UsageError, match="--image-size is 0"):
        load_data("mnist-sample", image_size=0)


def test_the_sample_is_balanced_and_split_by_seed() -> None:
    data = load_data("mnist-sample", seed=1)
    train, validation, test = (tensors(data, part) for part in ("train", "validation", "test"))
    assert (len(train), len(validation), len(test)) == (3600, 400, 1000)
    assert data.image_shape == (1, 28, 28)
    assert data.normalization == Normalization.parse("mnist", 1)
    counts = train.labels.bincount() + validation.labels.bincount()
    assert counts.tolist() == [400] * 10
    assert test.labels.bincount().tolist() == [100] * 10
    images = {
        part: {i.numpy().tobytes() for i in tensors(data, part).images} for part in ("train", "validation", "test")
    }
    assert sum(map(len, images.values())) == 5000  # no image twice
    assert not images["train"] & images["validation"]
    again, other = load_data("mnist-sample", seed=1), load_data("mnist-sample", seed=2)
    assert torch.equal(tensors(again, "validation").images, validation.images)
    assert not torch.equal(tensors(other, "validation").images, validation.images)
    assert torch.equal(tensors(other, "test").images, test.images)


def test_the_validation_share_is_the_callers_choice() -> None:
    data = load_data("mnist-sample", validation=0.25)
    assert (len(data.train), len(data.validation)) == (3000, 1000)


def test_the_sample_comes_with_its_licence() -> None:
    from importlib.resources import files

    text = (files("snncompress.data") / "sample" / "LICENSE").read_text()
    assert "CC BY-SA 3.0" in text
    assert "Yann LeCun and Corinna Cortes" in text


@pytest.mark.skipif(not (SHARED / "MNIST").is_dir(), reason="needs MNIST in ../shared/data")
def test_the_sample_is_a_part_of_mnist() -> None:
    whole, sample = load_data("mnist", root=SHARED), load_data("mnist-sample")
    known = {i.numpy().tobytes() for part in ("train", "validation") for i in tensors(whole, part).images}
    assert {i.numpy().tobytes() for i in tensors(sample, "train").images} <= known
    test = {i.numpy().tobytes() for i in tensors(whole, "test").images}
    assert {i.numpy().tobytes() for i in tensors(sample, "test").images} <= test


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
@pytest.mark.parametrize("below", ["raw", "."])
@pytest.mark.parametrize("zipped", [True, False])
def test_idx_files_are_read_wherever_they_are(tmp_path: Path, name: str, below: str, zipped: bool) -> None:
    title = {"mnist": "MNIST", "fashion-mnist": "FashionMNIST"}[name]
    arrays = write_idx(tmp_path / title / "raw" if below == "raw" else tmp_path, zipped=zipped)
    data = load_data(name, root=tmp_path)
    test = tensors(data, "test")
    assert torch.equal(test.images[:, 0], torch.from_numpy(arrays["t10k-images-idx3-ubyte"]))
    assert test.labels.tolist() == arrays["t10k-labels-idx1-ubyte"].tolist()
    assert (len(data.train), len(data.validation), len(data.classes)) == (27, 3, 10)


def test_the_environment_names_the_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_idx(tmp_path)
    monkeypatch.setenv("SNNCOMPRESS_DATA", str(tmp_path))
    assert len(load_data("mnist").train) == 27


def test_sets_over_the_budget_stay_where_they_are_and_only_batches_travel(tmp_path: Path) -> None:
    write_idx(tmp_path)
    data = load_data("mnist", root=tmp_path, device=torch.device("meta"), memory_budget_bytes=10)
    assert tensors(data, "train").images.device.type == "cpu"
    assert data.train.batch(torch.tensor([0]))[0].device.type == "meta"


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar10", "cifar100"])
def test_missing_sets_name_the_folder_and_the_remedy(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match=f"no {name} files in {tmp_path}.*--data-root.*--download"):
        load_data(name, root=tmp_path)


def test_a_failed_download_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from snncompress.vision import torchvision

    def offline(*_: object, **__: object) -> None:
        raise OSError("no route\nto host")

    monkeypatch.setattr(torchvision.datasets, "MNIST", offline)
    with pytest.raises(DataError, match=r"download of MNIST into .* failed \(no route to host\)"):
        load_data("mnist", root=tmp_path, download=True)


def test_a_download_is_read_like_any_other_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from snncompress.vision import torchvision

    def online(root: str, *, download: bool) -> None:
        assert download
        write_idx(Path(root) / "MNIST" / "raw")

    monkeypatch.setattr(torchvision.datasets, "MNIST", online)
    assert len(load_data("mnist", root=tmp_path, download=True).train) == 27


@pytest.mark.parametrize("zipped", [True, False])
def test_truncated_idx_files_are_named(tmp_path: Path, zipped: bool) -> None:
    write_idx(tmp_path, zipped=zipped)
    file = tmp_path / ("train-images-idx3-ubyte" + ".gz" * zipped)
    content = file.read_bytes()
    for kept in (len(content) // 2, 3, 0):
        file.write_bytes(content[:kept])
        with pytest.raises(DataError, match=r"train-images-idx3-ubyte.*fetch it again"):
            load_data("mnist", root=tmp_path)
    file.unlink()
    with pytest.raises(DataError, match=r"cannot read .*train-images"):
        load_data("mnist", root=tmp_path)


def test_idx_files_that_do_not_fit_together_are_explained(tmp_path: Path) -> None:
    write_idx(tmp_path)
    labels = tmp_path / "train-labels-idx1-ubyte"
    labels.write_bytes(idx(np.zeros(29, dtype=np.uint8)))
    with pytest.raises(DataError, match="30 images but 29 labels"):
        load_data("mnist", root=tmp_path)
    labels.write_bytes(idx(np.full(30, 10, dtype=np.uint8)))
    with pytest.raises(DataError, match=r"label 10 is outside 0..9"):
        load_data("mnist", root=tmp_path)
    labels.write_bytes(idx(np.zeros((30, 1), dtype=np.uint8)))
    with pytest.raises(DataError, match="no images and labels"):
        load_data("mnist", root=tmp_path)


@pytest.mark.parametrize("below", ["cifar-10-batches-bin", "."])
def test_binary_cifar10_is_read_record_by_record(tmp_path: Path, below: str) -> None:
    folder = tmp_path / "root" / below
    records = write_cifar(folder, CIFAR10_FILES, 1, 10)
    (folder / "batches.meta.txt").write_text("\n".join(f"kind{i}" for i in range(10)) + "\n\n")
    data = load_data("cifar10", root=tmp_path / "root")
    test = tensors(data, "test")
    assert torch.equal(test.images.flatten(1), torch.from_numpy(records["test_batch.bin"][:, 1:]))
    assert test.labels.tolist() == records["test_batch.bin"][:, 0].tolist()
    assert data.image_shape == (3, 32, 32)
    assert data.classes[3] == "kind3"
    assert (len(data.train), len(data.validation)) == (18, 2)


def test_binary_cifar100_has_fine_labels(tmp_path: Path) -> None:
    records = write_cifar(tmp_path / "cifar-100-binary", {"train.bin": 20, "test.bin": 5}, 2, 100)
    data = load_data("cifar100", root=tmp_path)
    test = tensors(data, "test")
    assert test.labels.tolist() == records["test.bin"][:, 1].tolist()
    assert torch.equal(test.images.flatten(1), torch.from_numpy(records["test.bin"][:, 2:]))
    assert data.classes == tuple(str(i) for i in range(100))


def test_damaged_cifar_files_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-bin"
    records = write_cifar(folder, CIFAR10_FILES, 1, 10)
    file = folder / "data_batch_3.bin"
    file.write_bytes(records[file.name].tobytes()[:-1])
    with pytest.raises(DataError, match=r"data_batch_3\.bin is truncated"):
        load_data("cifar10", root=tmp_path)
    records[file.name][1, 0] = 77
    file.write_bytes(records[file.name].tobytes())
    with pytest.raises(DataError, match=r"data_batch_3\.bin: label 77 is outside 0..9"):
        load_data("cifar10", root=tmp_path)
    file.unlink()
    with pytest.raises(DataError, match=r"cannot read .*data_batch_3\.bin"):
        load_data("cifar10", root=tmp_path)


def test_pickled_cifar_with_wrong_checksums_is_not_opened(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    (folder / "data_batch_1").write_bytes(b"cos\nsystem\n(S'touch opened'\ntR.")
    with pytest.raises(DataError, match=r"cifar-10-batches-py is damaged or not torchvision's"):
        load_data("cifar10", root=tmp_path)
