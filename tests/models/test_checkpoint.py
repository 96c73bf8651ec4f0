import os
import pickle
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from snncompress.errors import CheckpointError
from snncompress.models.checkpoint import load_checkpoint, read_tensors
from snncompress.models.sources import build, resolve

PUBLIC = Path(__file__).parents[3] / "shared" / "data" / "checkpoints"
SUFFIXES = (".safetensors", ".pt", ".pth", ".th")


def make(name="lenet5", seed=0, **arguments):
    torch.manual_seed(seed)
    return build(resolve(name, arguments))


def small(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(2, 3))


def save(model_or_tensors, path):
    tensors = model_or_tensors.state_dict() if isinstance(model_or_tensors, nn.Module) else model_or_tensors
    if path.suffix == ".safetensors":
        save_file(tensors, path)
    else:
        torch.save(tensors, path)
    return path


def equal(left, right):
    return all(torch.equal(a, b) for a, b in zip(left.values(), right.values(), strict=True))


def refused(path, model=None):
    """The message of the error; checks that it is one line and that the model did not change."""
    model = small() if model is None else model
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(model, path)
    assert equal(before, model.state_dict())
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    return message


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_round_trip(tmp_path, suffix):
    model, other = small(0), small(1)
    load_checkpoint(other, str(save(model, tmp_path / f"weights{suffix}")))
    assert equal(model.state_dict(), other.state_dict())


@pytest.mark.parametrize("key", ["state_dict", "model", "net", "model_state_dict"])
@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "module._orig_mod."])
def test_wrappers_and_prefixes(tmp_path, key, prefix):
    model, other = small(0), small(1)
    state = OrderedDict((prefix + name, tensor) for name, tensor in model.state_dict().items())
    path = save({"epoch": 3, "optimizer": {"lr": 0.1}, key: state}, tmp_path / "checkpoint.pth")
    assert read_tensors(path).keys() == model.state_dict().keys()
    load_checkpoint(other, path)
    assert equal(model.state_dict(), other.state_dict())


def test_wrapped_twice(tmp_path):
    path = save({"model": {"state_dict": small().state_dict()}}, tmp_path / "checkpoint.pt")
    assert read_tensors(path).keys() == small().state_dict().keys()


def test_a_model_may_have_a_part_called_module(tmp_path):
    def wrapped(seed):
        model = nn.Module()
        model.module = small(seed)
        return model

    model, other = wrapped(0), wrapped(1)
    load_checkpoint(other, save(model, tmp_path / "weights.pt"))
    assert equal(model.state_dict(), other.state_dict())


def test_missing_counters_of_batch_norms_are_forgiven(tmp_path):
    model, other = small(0), small(1)
    model[1].num_batches_tracked += 5
    state = {name: value for name, value in model.state_dict().items() if "num_batches" not in name}
    load_checkpoint(other, save(state, tmp_path / "old.pt"))
    assert equal(dict(model.named_parameters()), dict(other.named_parameters()))
    assert other[1].num_batches_tracked == 0


def test_half_precision_is_converted(tmp_path):
    model = small(1)
    load_checkpoint(model, save(small(0).half(), tmp_path / "half.safetensors"))
    assert model[0].weight.dtype == torch.float32
    assert torch.allclose(model[0].weight, small(0)[0].weight, atol=1e-3)


def test_auxiliary_heads_are_left_out_where_the_model_has_none(tmp_path):
    model, other = small(0), small(1)
    other.aux_logits = False
    state = {**model.state_dict(), "aux1.conv.weight": torch.zeros(3)}
    load_checkpoint(other, save(state, tmp_path / "inception.pt"))
    assert equal(model.state_dict(), other.state_dict())


def test_no_such_file_and_folders(tmp_path):
    assert "no such checkpoint" in refused(tmp_path / "nothing.pt")
    assert "is a folder" in refused(tmp_path)


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root reads everything")
def test_unreadable(tmp_path):
    for suffix in SUFFIXES:
        path = save(small(), tmp_path / f"weights{suffix}")
        path.chmod(0)
        assert "cannot read" in refused(path)


@pytest.mark.parametrize("kept", [0, 1, 4, 9, 50, 0.5, -1])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_truncated(tmp_path, suffix, kept):
    path = save(small(), tmp_path / f"weights{suffix}")
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * kept) if isinstance(kept, float) else kept])
    assert "is damaged" in refused(path)


@pytest.mark.parametrize("kept", [0, 1, 5, 30, 200, 600, 0.5, -3])
def test_truncated_in_the_format_before_zip(tmp_path, kept):
    path = tmp_path / "old.pt"
    torch.save(small().state_dict(), path, _use_new_zipfile_serialization=False)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * kept) if isinstance(kept, float) else kept])
    assert "is damaged" in refused(path)


def test_flipped_bits_of_a_safetensors_header_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("snncompress.models.checkpoint.describe_closest", lambda file, model: "")  # slow
    path = save(small(), tmp_path / "weights.safetensors")
    content = path.read_bytes()
    header_end = 8 + int.from_bytes(content[:8], "little")
    for position in range(header_end):
        flipped = bytearray(content)
        flipped[position] ^= 1 << (position % 8)
        path.write_bytes(flipped)
        assert refused(path, small(1))


def test_a_flipped_bit_of_an_exponent_shows_as_a_weight_that_is_no_number(tmp_path):
    tensors = {**small().state_dict(), "0.bias": torch.tensor([1.5, 1.0])}
    path = save(tensors, tmp_path / "weights.safetensors")
    content = bytearray(path.read_bytes())
    stored = tensors["0.bias"].numpy().tobytes()
    assert content.count(stored) == 1
    content[content.index(stored) + 3] ^= 0x40  # the exponent's highest bit: 1.5 becomes NaN
    path.write_bytes(content)
    assert "tensor 0.bias holds NaN or infinite" in refused(path)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_values_that_are_not_finite(tmp_path, value):
    model = small()
    with torch.no_grad():
        model[3].weight[1, 1] = value
    assert "tensor 3.weight holds NaN or infinite" in refused(save(model, tmp_path / "weights.pt"))


class Evil:
    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return (os.mkdir, (self.mark,))


def test_pickles_are_never_executed(tmp_path):
    mark = tmp_path / "executed"
    torch.save(small(), tmp_path / "module.pt")
    torch.save(small(), tmp_path / "old_module.pt", _use_new_zipfile_serialization=False)
    torch.save({"state_dict": small().state_dict(), "extra": Evil(str(mark))}, tmp_path / "evil.pt")
    (tmp_path / "pickle.pth").write_bytes(pickle.dumps(Evil(str(mark))))
    torch.jit.save(torch.jit.trace(small().eval(), torch.zeros(1, 1, 3, 3)), tmp_path / "script.pt")
    for name in ("module.pt", "old_module.pt", "evil.pt", "pickle.pth", "script.pt"):
        assert "is not opened: save `model.state_dict()` instead" in refused(tmp_path / name)
    assert "Sequential" in refused(tmp_path / "module.pt")
    assert not mark.exists()


def test_other_files(tmp_path):
    for name, content in (
        ("text.pt", b"hello, this is text"),
        ("image.pth", b"\x89PNG\r\n\x1a\n" + bytes(100)),
    ):
        (tmp_path / name).write_bytes(content)
        assert "is damaged or no PyTorch checkpoint" in refused(tmp_path / name)
    (tmp_path / "text.safetensors").write_bytes(b"hello, this is text")
    assert "is damaged or no safetensors" in refused(tmp_path / "text.safetensors")


@pytest.mark.parametrize("content", [{}, 3, [torch.zeros(2)], {"epoch": 3, "state_dict": {}}])
def test_no_tensors_inside(tmp_path, content):
    torch.save(content, tmp_path / "empty.pt")
    assert "holds no tensors" in refused(tmp_path / "empty.pt")


def test_quantized_weights(tmp_path):
    state = {**small().state_dict(), "3.weight": torch.zeros(3, 2, dtype=torch.int8)}
    assert "torch.int8 in the file, torch.float32 in the model" in refused(save(state, tmp_path / "int8.pt"))


class TestAnotherArchitecture:
    def test_first_of_each_kind_is_named_with_counts_and_shapes(self, tmp_path):
        state = small().state_dict()
        state["3.weight"] = torch.zeros(5, 2)
        state["3.bias"] = torch.zeros(5)
        state["extra"] = state.pop("0.bias")
        message = refused(save(state, tmp_path / "other.pt"))
        assert "1 missing (first: 0.bias)" in message
        assert "1 unexpected (first: extra)" in message
        assert "2 of another shape (first: 3.weight, 5×2 in the file, 3×2 in the model)" in message
        assert message.endswith("give the architecture that it was saved from")

    @pytest.mark.parametrize(
        ("saved", "arguments", "typed"),
        [
            ("resnet56", {}, "'resnet56'"),
            ("resnet20", {"classes": 100}, "'resnet20' --model-arg classes=100"),
            ("resnet20", {"shortcut": "B"}, "'resnet20' --model-arg shortcut=B"),
            ("vgg16-c100", {}, "'vgg16-c100'"),
            ("torchvision:resnet18", {}, "'torchvision:resnet18'"),
            (
                "torchvision:squeezenet1_1",
                {"classes": 3},
                "'torchvision:squeezenet1_1' --model-arg classes=3",
            ),
            (
                "torchvision:regnet_x_400mf",
                {"classes": 7},
                "'torchvision:regnet_x_400mf' --model-arg classes=7",
            ),
        ],
    )
    def test_the_one_that_fits_is_named(self, tmp_path, saved, arguments, typed):
        path = save(make(saved, **arguments), tmp_path / "other.pt")
        assert refused(path, make("lenet5")).endswith(f"; it fits {typed}")

    def test_what_was_typed_with_another_number_of_classes(self, tmp_path):
        path = save(make("resnet20"), tmp_path / "ten.safetensors")
        message = refused(path, make("resnet20", classes=100))
        assert message.endswith("; it fits 'resnet20' --model-arg classes=10")

    def test_the_closest_is_named_where_none_fits(self, tmp_path):
        state = make("resnet56").state_dict()
        state["linear2.weight"] = torch.zeros(2, 2)
        message = refused(save(state, tmp_path / "other.pt"), make("lenet5"))
        assert "the closest is 'resnet56' (99% of the tensors" in message

    def test_the_closest_is_not_named_if_what_was_typed_is_as_close(self, tmp_path):
        state = make("lenet5").state_dict()
        state["fc1.bias"] = torch.zeros(7)
        assert "the closest" not in refused(save(state, tmp_path / "other.pt"), make("lenet5"))


@pytest.mark.skipif(not PUBLIC.exists(), reason="the public checkpoints (../shared/data) are not here")
@pytest.mark.parametrize("name", ["resnet20", "resnet56"])
def test_public_checkpoints(name):
    path = next(PUBLIC.glob(f"{name}-*.th"))
    model = make(name)
    load_checkpoint(model, path)
    assert torch.equal(model.linear.weight, read_tensors(path)["linear.weight"])
    assert refused(path, make("resnet32")).endswith(f"; it fits '{name}'")
