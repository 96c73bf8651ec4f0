"""Weights of the user's: read without unpickling, checked against the model, loaded all or not at all."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from snncompress.errors import CheckpointError
from snncompress.models.closest import describe_closest, shapes_of

WRAPPERS = (
    "state_dict",
    "model_state_dict",
    "model",
    "net",
)  # keys under which training scripts put the weights
PREFIXES = ("module.", "_orig_mod.")  # of DataParallel and torch.compile
COUNTER = "num_batches_tracked"  # newer than many checkpoints, and used by no forward pass
AUXILIARY = ("aux1.", "aux2.", "AuxLogits.")  # heads of GoogLeNet and Inception that serve only training
SAVE_STATE_DICT = "save `model.state_dict()` instead"
FETCH_AGAIN = "copy, download or save it again"


def read_tensors(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a checkpoint by name, on the CPU, without wrappers and prefixes.

    Reads ``.safetensors`` as such and everything else as PyTorch's format with ``weights_only=True``.
    """
    return _without_prefixes(_read(Path(path)))


def load_checkpoint(model: nn.Module, path: str | Path) -> None:
    """Loads a checkpoint's weights into a model of the same architecture; changes nothing if that fails."""
    path = Path(path)
    tensors = _read(path)
    expected = {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}
    if not expected.keys() <= tensors.keys():  # a model may have a part called "module" of its own
        tensors = _without_prefixes(tensors)
    if getattr(model, "aux_logits", True) is False:
        tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith(AUXILIARY)}
    _check_fit(model, expected, tensors, path)
    _check_values(expected, tensors, path)
    # Not strict, for the missing counters: everything else was compared above.
    model.load_state_dict(tensors, strict=False)


def _read(path: Path) -> dict[str, Tensor]:
    try:
        if path.is_dir():
            raise CheckpointError(f"{path} is a folder: give the checkpoint's file")
        if not path.exists():
            raise CheckpointError(f"no such checkpoint: {path}; check the path")
        path.open("rb").close()  # safetensors says "no such file" of one that may not be read
        content = load_file(path) if path.suffix == ".safetensors" else _read_torch(path)
    except safetensors.SafetensorError as error:
        raise CheckpointError(f"{path} is damaged or no safetensors file ({error}): {FETCH_AGAIN}") from error
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror or error}; check its permissions") from error
    tensors = _unwrap(content)
    if not tensors:
        raise CheckpointError(f"{path} holds no tensors: {SAVE_STATE_DICT}")
    return tensors


def _read_torch(path: Path) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # on the file's pickle protocol, and on TorchScript: both end in an error
            return torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:  # a damaged file fails in a dozen ways
        foreign = re.search(r"GLOBAL ([\w.]*\w) ", str(error))
        if foreign:
            what = f"pickled Python objects ({foreign[1]})"
        elif "TorchScript" in str(error):
            what = "a TorchScript program"
        elif _is_foreign_pickle(path):
            what = "pickled Python objects"
        else:
            raise CheckpointError(f"{path} is damaged or no PyTorch checkpoint: {FETCH_AGAIN}") from error
        raise CheckpointError(
            f"{path} holds {what}, which could run code and is not opened: {SAVE_STATE_DICT}"
        ) from error


def _is_foreign_pickle(path: Path) -> bool:
    """Whether a file starts as a pickle of protocol 3 or later; torch writes protocol 2."""
    with path.open("rb") as file:
        start = file.read(2)
    return start[:1] == b"\x80" and start[1:] > b"\x02"


def _unwrap(content: Any) -> dict[str, Tensor]:
    if not isinstance(content, Mapping):
        return {}
    for key in WRAPPERS:
        if isinstance(content.get(key), Mapping) and (inner := _unwrap(content[key])):
            return inner
    return {str(name): value.detach() for name, value in content.items() if isinstance(value, Tensor)}


def _without_prefixes(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    for prefix in PREFIXES:
        if all(name.startswith(prefix) for name in tensors):
            return _without_prefixes({name.removeprefix(prefix): tensor for name, tensor in tensors.items()})
    return tensors


def _check_fit(model: nn.Module, expected: dict[str, Tensor], tensors: dict[str, Tensor], path: Path) -> None:
    missing = [name for name in expected if name not in tensors and not name.endswith(COUNTER)]
    unexpected = [name for name in tensors if name not in expected]
    shared = [name for name in expected if name in tensors]
    reshaped = [name for name in shared if expected[name].shape != tensors[name].shape]
    if not (missing or unexpected or reshaped):
        return
    wrong = []
    if missing:
        wrong.append(f"{len(missing)} missing (first: {missing[0]})")
    if unexpected:
        wrong.append(f"{len(unexpected)} unexpected (first: {unexpected[0]})")
    if reshaped:
        name = reshaped[0]
        theirs, ours = _shape(tensors[name]), _shape(expected[name])
        wrong.append(f"{len(reshaped)} of another shape (first: {name}, {theirs} in the file, {ours} in the model)")
    file = {name: tuple(tensor.shape) for name, tensor in tensors.items() if not name.endswith(COUNTER)}
    hint = describe_closest(file, shapes_of(model)) or "give the architecture that it was saved from"
    raise CheckpointError(f"{path} is of another architecture: tensors {', '.join(wrong)}; {hint}")


def _check_values(expected: dict[str, Tensor], tensors: dict[str, Tensor], path: Path) -> None:
    for name, tensor in tensors.items():
        if tensor.is_floating_point() != expected[name].is_floating_point():
            kinds = f"{tensor.dtype} in the file, {expected[name].dtype} in the model"
            raise CheckpointError(f"{path}: tensor {name} is {kinds}: save unquantized floating-point weights")
        if tensor.is_floating_point() and not torch.isfinite(tensor.float()).all():
            raise CheckpointError(f"{path}: tensor {name} holds NaN or infinite values: give an earlier checkpoint")


def _shape(tensor: Tensor) -> str:
    return "×".join(map(str, tensor.shape)) or "a single number"
