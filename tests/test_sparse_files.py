"""Sparse files: every bit comes back, and they are smaller where it matters."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_data import CLASSES
from torch import Tensor, nn

import snncompress
from snncompress import TrainOptions, WeightOptions, prune_weights
from snncompress.errors import RunError
from snncompress.files import read_tensors, write_tensors
from snncompress.measure.cost import count_nonzero, state_bytes
from snncompress.models.lenet import lenet5
from snncompress.sparse_files import PARTS, pack, read_model, unpack, write_model

DTYPES = (
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.float8_e4m3fn,
    torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64,
    torch.bool,
)  # fmt: skip


def bits(tensor: Tensor) -> bytes:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def assert_same_bits(found: Any, stored: Any) -> None:
    assert found.keys() == stored.keys()
    for name, tensor in stored.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape), name
        assert bits(found[name]) == bits(tensor), name


def sparse(*shape: int, density: float = 0.05, dtype: torch.dtype = torch.float32) -> Tensor:
    """Random bits where it is not zero: negative, denormal, infinite, not a number, whatever comes."""
    generator = torch.Generator().manual_seed(len(shape) + shape[-1])
    kept = torch.rand(shape, generator=generator) < density
    if dtype is torch.bool:
        return kept
    size = torch.empty(0, dtype=dtype).element_size()
    noise = torch.randint(1, 256, (*shape, size), generator=generator, dtype=torch.uint8)  # no byte is zero
    return (noise * kept.unsqueeze(-1)).view(dtype).view(shape)


def round_trip(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return unpack(*pack(tensors))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_type(tmp_path: Path, dtype: torch.dtype) -> None:
    tensors = {
        "a": sparse(20, 300, dtype=dtype),
        "conv": sparse(6, 5, 3, 3, dtype=dtype),
        "full": sparse(4, 4, density=2),
    }
    packed, shapes = pack(tensors)
    assert shapes["a"] == [20, 300]
    assert "full" in packed
    write_model(tmp_path / "model.safetensors", tensors, sparse=True)
    assert_same_bits(read_model(tmp_path / "model.safetensors"), tensors)


def test_numbers_that_look_like_zero_or_like_nothing() -> None:
    odd = [
        -0.0,
        float("nan"),
        float("inf"),
        -float("inf"),
        1e-45,
        struct.unpack("<f", struct.pack("<I", 0xFFC12345))[0],
    ]
    tensor = torch.zeros(8, 40)
    tensor.view(-1)[torch.arange(len(odd)) * 53] = torch.from_numpy(np.array(odd, dtype=np.float32))
    tensor.view(torch.int32)[7, 39] = 0x7F800001  # a signalling NaN
    packed, shapes = pack({"a": tensor})
    assert shapes == {"a": [8, 40]}
    assert len(packed["a.values"]) == len(odd) + 1
    found = round_trip({"a": tensor})
    assert_same_bits(found, {"a": tensor})
    assert bool(found["a"].view(-1)[0].signbit())


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor(0.0), torch.zeros(7), torch.zeros(0), torch.zeros(0, 5), torch.zeros(5, 0), torch.zeros(1, 1),
        torch.ones(3, 4), torch.zeros(9, 9), torch.zeros(2, 3, 5, 5), torch.eye(30), torch.zeros(3, 0, 2),
    ],
    ids=lambda tensor: str(list(tensor.shape)),
)  # fmt: skip
def test_every_shape(tmp_path: Path, tensor: Tensor) -> None:
    write_model(tmp_path / "model.safetensors", {"a": tensor}, sparse=True)
    assert_same_bits(read_model(tmp_path / "model.safetensors"), {"a": tensor})
    if tensor.dim() < 2 or not tensor.numel() or bool(tensor.all()):
        assert pack({"a": tensor})[1] == {}  # dense


@pytest.mark.parametrize(
    ("width", "kind"),
    [(256, torch.uint8), (257, torch.uint16), (65_536, torch.uint16), (65_537, torch.uint32)],
)
def test_columns_take_the_smallest_integers(width: int, kind: torch.dtype) -> None:
    tensor = torch.zeros(3, width)
    tensor[0, width - 1], tensor[2, 0] = 1.5, -2.5  # the row between is empty
    packed, shapes = pack({"a": tensor})
    assert shapes == {"a": [3, width]}
    assert packed["a.columns"].dtype == kind
    assert packed["a.rows"].tolist() == [1, 0, 1]
    assert packed["a.rows"].dtype == torch.uint8
    assert_same_bits(round_trip({"a": tensor}), {"a": tensor})


@pytest.mark.parametrize("count", [255, 256])
def test_counts_of_rows_do_too(count: int) -> None:
    tensor = torch.zeros(3, 2000)
    tensor[1, :count] = 1.0
    packed, _ = pack({"a": tensor})
    assert packed["a.rows"].dtype == (torch.uint8 if count < 256 else torch.uint16)
    assert_same_bits(round_trip({"a": tensor}), {"a": tensor})


def test_a_view_of_other_memory() -> None:
    whole = sparse(40, 60)
    views = {"transposed": whole.t(), "part": whole[::2, 3:50:3], "conv": sparse(8, 3, 5, 5).permute(1, 0, 3, 2)}
    assert not any(view.is_contiguous() for view in views.values())
    assert_same_bits(round_trip(views), views)
    last = sparse(8, 6, 3, 3).to(memory_format=torch.channels_last)
    assert_same_bits(round_trip({"a": nn.Parameter(last)}), {"a": last})


@settings(derandomize=True, deadline=None, max_examples=60)
@given(
    st.lists(st.integers(0, 20), max_size=4), st.floats(0, 1), st.sampled_from(DTYPES), st.integers(0, 300),
    st.booleans(),
)  # fmt: skip
def test_any_tensor(shape: list[int], density: float, dtype: torch.dtype, longer: int, turned: bool) -> None:
    if len(shape) > 1:
        shape[-1] += longer
    tensor = sparse(*shape, density=density, dtype=dtype) if shape else torch.zeros((), dtype=dtype)
    tensors = {"a": tensor.transpose(0, -1) if turned and shape else tensor, "b": sparse(5, 9)}
    packed, shapes = pack(tensors)
    assert_same_bits(unpack(packed, shapes), tensors)
    assert sum(len(bits(part)) for part in packed.values()) <= sum(len(bits(tensor)) for tensor in tensors.values())


def lenet(sparsity: float) -> nn.Module:
    model = lenet5()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data[parameter.abs() < parameter.abs().quantile(sparsity)] = 0
    return model


@pytest.mark.parametrize("sparsity", [0.0, 0.3, 0.6, 0.7, 0.9, 0.99])
def test_from_sixty_percent_on_the_file_is_smaller(tmp_path: Path, sparsity: float) -> None:
    state = lenet(sparsity).state_dict()
    sizes = {}
    for kind in (False, True):
        write_model(tmp_path / "model.safetensors", state, sparse=kind)
        sizes[kind] = (tmp_path / "model.safetensors").stat().st_size
        assert_same_bits(read_model(tmp_path / "model.safetensors"), state)
    assert sizes[True] <= sizes[False] + 200  # never larger, but for the header
    assert (sizes[True] < 0.95 * sizes[False]) == (sparsity >= 0.6)
    if sparsity > 0.6:
        assert sizes[True] < 1.6 * (1 - sparsity) * sizes[False] + 6000  # 4 bytes and 1 or 2 each, and the header


def test_lenet5_280_times_sparser_takes_less_than_12_kilobytes(tmp_path: Path) -> None:
    run = snncompress.load("lenet5")
    batches = [(torch.rand(20, 1, 28, 28), torch.arange(20) % 10)]
    options = WeightOptions(target_size="1540", criterion="magnitude", finetune_steps=0, final_epochs=0)
    small = prune_weights(run, batches, options, TrainOptions(), out=tmp_path / "small")
    assert 1400 < count_nonzero(small.model) <= 1540 == run.original["weights"] // 280 + 1  # a neuron comes with many
    assert (small.plan or {})["removed_neurons"] > 0
    assert small.stored_bytes == (tmp_path / "small" / "model.safetensors").stat().st_size < 12_000
    assert state_bytes(small.model) > 1.5 * small.stored_bytes
    assert_same_bits(snncompress.load(tmp_path / "small").model.state_dict(), small.model.state_dict())


def test_names_that_clash_with_those_of_the_parts() -> None:
    for taken in PARTS:
        tensors = {
            "a": torch.eye(20),
            f"a.{taken}": torch.arange(3.0),
            "b": torch.eye(20),
            f"a.{taken}.b": torch.eye(20),
        }
        packed, shapes = pack(tensors)
        assert "a" not in shapes
        assert "b" in shapes
        assert_same_bits(unpack(packed, shapes), tensors)
    nested = {"a": torch.eye(20), "a.values": torch.eye(20)}  # the one's part has the other's name
    assert_same_bits(round_trip(nested), nested)
    assert_same_bits(round_trip(dict(reversed(nested.items()))), dict(reversed(nested.items())))


def test_order_of_names_and_tied_weights(tmp_path: Path) -> None:
    weight = torch.eye(30)
    tensors = {"one": weight, "other": weight, "bias": torch.ones(3)}
    write_model(tmp_path / "model.safetensors", tensors, sparse=True)
    assert_same_bits(read_model(tmp_path / "model.safetensors"), tensors)
    write_model(tmp_path / "model.safetensors", tensors, sparse=False)
    assert_same_bits(read_model(tmp_path / "model.safetensors"), tensors)
    assert read_tensors(tmp_path / "model.safetensors")[1] is None


# --- damage ---------------------------------------------------------------------------------------------------


def assert_damaged(path: Path) -> None:
    with pytest.raises(RunError) as caught:
        read_model(path)
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    assert "--force" in message


def test_every_flipped_bit_and_every_cut_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    tensors = {"a": sparse(9, 30), "bias": torch.randn(4)}
    write_model(path, tensors, sparse=True)
    whole = path.read_bytes()
    for position in range(0, len(whole), 5):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << (position % 8)
        path.write_bytes(damaged)
        try:
            found = read_model(path)
        except RunError:
            continue
        assert_same_bits(found, tensors)  # spaces that pad the header mean nothing
    for length in (0, 5, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        assert_damaged(path)


@pytest.mark.parametrize("missing", PARTS)
def test_a_missing_part(tmp_path: Path, missing: str) -> None:
    packed, shapes = pack({"a": torch.eye(20)})
    del packed[f"a.{missing}"]
    write_tensors(tmp_path / "model.safetensors", packed, {"csr": shapes})
    assert_damaged(tmp_path / "model.safetensors")


@pytest.mark.parametrize(
    "shape", [[19, 20], [21, 20], [20, 19], [20], [], [-20, 20], [20, -1], [0, 20], None, "20", [20.0, 20], [10**9] * 2]
)
def test_a_wrong_shape(tmp_path: Path, shape: Any) -> None:
    packed, _ = pack({"a": torch.eye(20)})
    write_tensors(tmp_path / "model.safetensors", packed, {"csr": {"a": shape}})
    assert_damaged(tmp_path / "model.safetensors")


@pytest.mark.parametrize("shapes", [None, 3, ["a"], "a", {"b": [20, 20]}])
def test_shapes_that_are_none(tmp_path: Path, shapes: Any) -> None:
    packed, _ = pack({"a": torch.eye(20)})
    write_tensors(tmp_path / "model.safetensors", packed, {"csr": shapes})
    assert_damaged(tmp_path / "model.safetensors")


def test_parts_that_do_not_fit_together(tmp_path: Path) -> None:
    packed, shapes = pack({"a": torch.eye(20)})
    for part, wrong in (
        ("values", torch.ones(19)),
        ("columns", torch.zeros(21, dtype=torch.uint8)),
        ("rows", torch.ones(20) * 2),
    ):
        write_tensors(tmp_path / "model.safetensors", {**packed, f"a.{part}": wrong}, {"csr": shapes})
        assert_damaged(tmp_path / "model.safetensors")


def test_a_damaged_run_is_one_line(tmp_path: Path) -> None:
    run = snncompress.load("mlp", arguments={"widths": "12-8"}, classes=CLASSES, input_shape=(1, 8, 8))
    batches = [(torch.rand(20, 1, 8, 8), torch.arange(20) % 4)]
    options = WeightOptions(target_size="30%", criterion="magnitude", finetune_steps=0, final_epochs=0)
    prune_weights(run, batches, options, out=tmp_path / "small")
    file = tmp_path / "small" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(RunError, match=r"model\.safetensors is damaged"):
        snncompress.load(tmp_path / "small")
