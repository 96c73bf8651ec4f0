from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from snncompress.data.batches import Batches
from snncompress.data.dataset import Normalization, TensorImages
from snncompress.data.sources import load_data
from snncompress.data.streaming import StreamedImages
from snncompress.errors import DataError, UsageError

CPU = torch.device("cpu")


def save(file: Path, number: int, size: tuple[int, int] = (6, 5), mode: str = "RGB") -> None:
    """Writes an image of random pixels, (width, height) large, the same for a number."""
    file.parent.mkdir(parents=True, exist_ok=True)
    shape = (size[1], size[0], 3) if mode == "RGB" else (size[1], size[0])
    pixels = np.random.RandomState(number).randint(0, 256, shape, dtype=np.uint8)
    Image.fromarray(pixels).save(file)


def make_folder(path: Path, per_class: int = 10, classes: tuple[str, ...] = ("cat", "dog"), mode: str = "RGB") -> Path:
    for c, name in enumerate(classes):
        for i in range(per_class):
            save(path / name / f"{i:03}.png", 100 * c + i, mode=mode)
    return path


def test_classes_are_the_sorted_folders_and_pixels_the_files(tmp_path: Path) -> None:
    make_folder(tmp_path, classes=("dog", "cat", "ant"))
    (tmp_path / "notes.txt").write_text("no class")
    (tmp_path / "cat" / "Thumbs.db").write_text("no image")
    (tmp_path / ".git").mkdir()
    data = load_data(f"folder:{tmp_path}")
    assert data.classes == ("ant", "cat", "dog")
    assert data.image_shape == (3, 5, 6)
    assert data.normalization == Normalization.parse("imagenet", 3)
    assert data.test is not None
    assert (len(data.train), len(data.validation), len(data.test)) == (24, 3, 3)
    assert isinstance(data.train, TensorImages)
    images, labels = data.train.images, data.train.labels
    cats = {
        torch.from_numpy(np.array(Image.open(f))).permute(2, 0, 1).numpy().tobytes() for f in tmp_path.glob("cat/*.png")
    }
    held = {image.numpy().tobytes() for image in images[labels == 1]}
    assert held <= cats
    assert len(held) == int((labels == 1).sum())


def test_gray_folders_stay_gray(tmp_path: Path) -> None:
    data = load_data(f"folder:{make_folder(tmp_path, mode='L')}")
    assert data.image_shape == (1, 5, 6)
    save(tmp_path / "cat" / "colour.png", 7)
    assert load_data(f"folder:{tmp_path}").image_shape == (3, 5, 6)


def test_the_test_part_is_the_same_for_every_seed_and_the_validation_part_is_not(tmp_path: Path) -> None:
    make_folder(tmp_path, per_class=30)
    one, two = (load_data(f"folder:{tmp_path}", seed=seed) for seed in (1, 2))
    assert torch.equal(one.test.images, two.test.images)  # type: ignore[union-attr]
    assert not torch.equal(one.validation.images, two.validation.images)  # type: ignore[attr-defined]


def test_train_val_and_test_folders_are_taken_as_they_are(tmp_path: Path) -> None:
    make_folder(tmp_path / "train", 10)
    make_folder(tmp_path / "val", 3)
    imagenet_like = load_data(f"folder:{tmp_path}")
    assert [len(part) for part in (imagenet_like.train, imagenet_like.validation, imagenet_like.test or [])] == [
        18,
        2,
        6,
    ]
    make_folder(tmp_path / "test", 4)
    all_three = load_data(f"folder:{tmp_path}")
    assert [len(part) for part in (all_three.train, all_three.validation, all_three.test or [])] == [20, 6, 8]


def test_validation_images_of_their_own_are_not_trained_on(tmp_path: Path) -> None:
    for part in ("train", "val", "test"):
        make_folder(tmp_path / part)
    with pytest.raises(UsageError, match="has validation images of its own"):
        load_data(f"folder:{tmp_path}", holdout="none")


def test_a_missing_class_in_the_test_folder_does_not_renumber_the_others(tmp_path: Path) -> None:
    make_folder(tmp_path / "train", 4)
    make_folder(tmp_path / "test", 2, classes=("dog",))
    test = load_data(f"folder:{tmp_path}").test
    assert test is not None
    assert test.labels.tolist() == [1, 1]


def test_streamed_batches_equal_those_from_memory(tmp_path: Path) -> None:
    make_folder(tmp_path, 20)
    held, streamed = (load_data(f"folder:{tmp_path}", memory_budget_bytes=b) for b in (2**20, 100))
    assert isinstance(held.train, TensorImages)
    assert isinstance(streamed.train, StreamedImages)
    for part in ("train", "validation", "test"):
        epochs = []
        for data in (held, streamed):
            torch.manual_seed(0)
            batches = Batches(getattr(data, part), 7, data.normalization, device=CPU, augment="crop-flip", shuffle=True)
            epochs.append(list(batches.epoch(4, skip=0 if part != "train" else 2)))
        assert len(epochs[0]) == len(epochs[1]) > 0
        for (inputs, labels), (other_inputs, other_labels) in zip(*epochs, strict=True):
            assert torch.equal(inputs, other_inputs)
            assert torch.equal(labels, other_labels)


def test_leaving_a_streamed_epoch_early_leaves_no_threads(tmp_path: Path) -> None:
    import threading

    data = load_data(f"folder:{make_folder(tmp_path)}", memory_budget_bytes=0)
    before = threading.active_count()
    epoch = Batches(data.train, 4, data.normalization, device=CPU).epoch(0)
    next(epoch)
    epoch.close()  # type: ignore[attr-defined]
    assert threading.active_count() == before


def test_image_size_makes_one_shape_of_many(tmp_path: Path) -> None:
    make_folder(tmp_path)
    save(tmp_path / "cat" / "wide.png", 1, size=(40, 9))
    with pytest.raises(DataError, match=r"wide\.png is 9×40, other images are 5×6; pass --image-size"):
        load_data(f"folder:{tmp_path}")
    data = load_data(f"folder:{tmp_path}", image_size=8)
    assert data.image_shape == (3, 8, 8)
    assert data.train.batch(torch.tensor([0]))[0].shape == (1, 3, 8, 8)


def test_resizing_cuts_the_centre(tmp_path: Path) -> None:
    wide = np.zeros((4, 12), dtype=np.uint8)
    wide[:, 4:8] = 200
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for i in range(3):
            Image.fromarray(wide).save(tmp_path / name / f"{i}.png")
    images, _ = load_data(f"folder:{tmp_path}", image_size=4).train.batch(torch.tensor([0]))
    assert torch.equal(images, torch.full((1, 1, 4, 4), 200, dtype=torch.uint8))


def test_an_empty_class_folder_is_named(tmp_path: Path) -> None:
    make_folder(tmp_path)
    (tmp_path / "owl").mkdir()
    with pytest.raises(DataError, match=r"class folder .*owl holds no images"):
        load_data(f"folder:{tmp_path}")


def test_one_class_is_not_enough(tmp_path: Path) -> None:
    make_folder(tmp_path, classes=("cat",))
    with pytest.raises(DataError, match="1 class folder"):
        load_data(f"folder:{tmp_path}")


def test_a_class_known_only_to_the_test_set_is_named(tmp_path: Path) -> None:
    make_folder(tmp_path / "train")
    make_folder(tmp_path / "test", classes=("cat", "cow"))
    with pytest.raises(DataError, match="cow is a class without training images"):
        load_data(f"folder:{tmp_path}")


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no such folder: .*nowhere"):
        load_data(f"folder:{tmp_path / 'nowhere'}")


def test_a_truncated_image_is_named_at_loading_or_when_its_batch_comes(tmp_path: Path) -> None:
    make_folder(tmp_path, 20)
    file = tmp_path / "dog" / "003.png"
    file.write_bytes(file.read_bytes()[:60])
    with pytest.raises(DataError, match=r"cannot read image .*003\.png"):
        load_data(f"folder:{tmp_path}")
    data = load_data(f"folder:{tmp_path}", memory_budget_bytes=0)
    with pytest.raises(DataError, match=r"cannot read image .*003\.png"):
        _ = [
            list(Batches(part, 4, data.normalization, device=CPU))
            for part in (data.train, data.validation, data.test)
            if part
        ]


def test_a_file_that_is_no_image_is_named(tmp_path: Path) -> None:
    make_folder(tmp_path)
    (tmp_path / "dog" / "x.jpg").write_text("hello")
    with pytest.raises(DataError, match=r"cannot read image .*x\.jpg"):
        load_data(f"folder:{tmp_path}")


def test_sixteen_bits_are_refused_rather_than_clipped(tmp_path: Path) -> None:
    make_folder(tmp_path, mode="L")
    Image.fromarray(np.full((5, 6), 40000, dtype=np.uint16)).save(tmp_path / "cat" / "deep.png")
    with pytest.raises(DataError, match=r"deep\.png has more than 8 bits"):
        load_data(f"folder:{tmp_path}")
