"""What a model costs: weights, FLOPs and memory, by the conventions of the published tables.

- **FLOPs**: multiplications only, of convolutions and matrix products; no additions, biases, activations,
  pooling. LeNet-5-Caffe on 28×28 images: 2,293,000. Sparse FLOPs are those of them by a weight that is not zero.
- **Model size**: non-zero weights, biases and batch-norm scales and shifts included, running statistics not.
- **Memory**: floats of hidden feature maps, of one image: the outputs of all convolutions and linear layers
  but the last, and the map that the first linear layer reads. LeNet-5-Caffe: 16,020. Attention counts as its
  four linear layers (query, key, value and output).

A module that runs twice multiplies and stores twice; a weight that two modules share is held once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd

from snncompress.measure.trace import FeatureMap, Record, Uncounted, trace

WEIGHTED = (_ConvNd, nn.Linear, nn.MultiheadAttention)


@dataclass(frozen=True)
class LayerCost:
    """What one layer costs: a module that holds weights of its own, or multiplies by itself.

    Attributes:
        name: Its name in the model; the model's class for what the model's own forward does.
        kind: Its class.
        input_shape: What it read last, without the batch; () if it was never called.
        output_shape: What it gave last.
        neurons: Output channels of a convolution or a linear layer; None for others.
        parameters: All its weights, zeros and biases included.
        weights: The non-zero ones of them.
        weights_only: The non-zero ones without biases, of convolutions and linear layers.
        flops: Multiplications.
        flops_sparse: Those of them by a weight that is not zero.
        memory: Floats of hidden feature maps.
        memory_read: Those of them that it reads: the map before the first linear layer.
    """

    name: str
    kind: str
    input_shape: tuple[int, ...]
    output_shape: tuple[int, ...]
    neurons: int | None
    parameters: int
    weights: int
    weights_only: int
    flops: int
    flops_sparse: int
    memory: int
    memory_read: int


@dataclass(frozen=True)
class Cost:
    """What a model costs; each total is the sum over ``layers``.

    ``uncounted`` names operators that may multiply and are in no count, with the modules that call them.
    """

    parameters: int
    weights: int
    weights_only: int
    flops: int
    flops_sparse: int
    memory: int
    layers: tuple[LayerCost, ...]
    uncounted: tuple[Uncounted, ...] = ()


def measure_cost(model: nn.Module, input_shape: tuple[int, int, int]) -> Cost:
    """Measures a model by the conventions above, without data; the model is not touched.

    Args:
        model: A plain (detached) model, on any device.
        input_shape: Channels, height and width of the images it reads.

    Raises:
        ModelError: If the model cannot run on such images; names the layer that failed.
    """
    forward = trace(model, input_shape)
    layers = tuple(_layers(model, forward.records, *_memory_by_module(forward.maps)))
    return Cost(
        parameters=sum(layer.parameters for layer in layers),
        weights=sum(layer.weights for layer in layers),
        weights_only=sum(layer.weights_only for layer in layers),
        flops=sum(layer.flops for layer in layers),
        flops_sparse=sum(layer.flops_sparse for layer in layers),
        memory=sum(layer.memory for layer in layers),
        layers=layers,
        uncounted=tuple(replace(each, module=each.module or type(model).__name__) for each in forward.uncounted),
    )


def state_bytes(model: nn.Module) -> int:
    """Bytes of the tensors in the model's state dict, running statistics included.

    This is the size of its safetensors file without the header (some kilobytes). A tensor that the model
    holds under two names counts once.
    """
    tensors = {id(tensor): tensor for tensor in model.state_dict(keep_vars=True).values()}
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def count_nonzero(model: nn.Module) -> int:
    """The non-zero weights of a model, biases and batch-norm scales and shifts included."""
    return sum(int(torch.count_nonzero(parameter)) for parameter in model.parameters())


def _memory_by_module(maps: tuple[FeatureMap, ...]) -> tuple[Counter[str], Counter[str]]:
    """Floats that each module gives, and those that the first linear layer reads."""
    memory: Counter[str] = Counter()
    read: Counter[str] = Counter()
    for feature_map in maps[:-1]:  # the last is the model's output, not hidden
        memory[feature_map.module] += feature_map.floats
    first_linear = next((feature_map for feature_map in maps if feature_map.linear), None)
    if first_linear is not None:
        read[first_linear.module] += first_linear.floats_read
    return memory, read


def _layers(
    model: nn.Module, records: Mapping[str, Record], given: Counter[str], read: Counter[str]
) -> Iterator[LayerCost]:
    counted: set[int] = set()  # parameters that an earlier layer shares
    for name, module in model.named_modules():
        own = {key: p for key, p in module.named_parameters(recurse=False) if id(p) not in counted}
        counted.update(map(id, own.values()))
        record = records.get(name, Record())
        if not (own or record.multiplications or given[name] or read[name]):
            continue
        nonzero = {key: int(torch.count_nonzero(p)) for key, p in own.items()}
        matrices = [key for key, p in own.items() if isinstance(module, WEIGHTED) and p.dim() > 1]
        used = sum(nonzero[key] for key in matrices)
        share = used / sum(own[key].numel() for key in matrices) if matrices else 1.0
        yield LayerCost(
            name=name or type(model).__name__,
            kind=type(module).__name__,
            input_shape=record.input_shape,
            output_shape=record.output_shape,
            neurons=_neurons(module),
            parameters=sum(p.numel() for p in own.values()),
            weights=sum(nonzero.values()),
            weights_only=used,
            flops=record.multiplications,
            flops_sparse=round(record.multiplications * share),  # each weight of a matrix multiplies as often
            memory=given[name] + read[name],
            memory_read=read[name],
        )


def _neurons(module: nn.Module) -> int | None:
    if isinstance(module, _ConvNd):
        return module.out_channels
    return module.out_features if isinstance(module, nn.Linear) else None
