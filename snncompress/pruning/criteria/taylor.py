"""``taylor``: how much the loss would change without a neuron, to first order; needs no noise.

    importance of neuron j = 1/N Σ_i | 1/P Σ_p ∂L/∂z_ijp · z_ijp |

over images i and positions p; z is the neuron's output, after the batch norm that follows it where there is one.

Molchanov, Tyree, Karras, Aila, Kautz: Pruning Convolutional Neural Networks for Resource Efficient Inference,
ICLR 2017 (Eq. 8).
"""

from __future__ import annotations

from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from snncompress.models.channels import channel_axis
from snncompress.pruning.scoring import ScoreRequest

SAMPLES = 100  # images in a pass: gradients of a thousand would need ten times the memory


def score(request: ScoreRequest) -> dict[str, Tensor]:
    """The importance of every output of every layer that makes a neuron."""
    model = request.model.eval()
    names = {name for group in request.groups for name, _ in group.outputs}
    seen: dict[str, Tensor] = {}
    axes = {name: channel_axis(model.get_submodule(name)) for name in names}

    def keep(name: str) -> Any:
        def hook(module: nn.Module, args: Any, output: Tensor) -> Tensor:
            # Frozen layers need no gradient, their outputs do.
            seen[name] = output if output.requires_grad else output.requires_grad_()
            return seen[name].clone()  # what follows may work in place

        return hook

    places = {name: request.norms.get(name) or name for name in names}
    handles = [model.get_submodule(place).register_forward_hook(keep(name)) for name, place in places.items()]
    totals: dict[str, Tensor] = {}
    try:
        for inputs, targets in islice(request.batches.epoch(0), request.count):
            for images, labels in zip(inputs.split(SAMPLES), targets.split(SAMPLES), strict=True):
                seen.clear()
                with torch.enable_grad():
                    loss = request.loss(model(images), labels) * len(images)
                for name, gradient in zip(seen, torch.autograd.grad(loss, list(seen.values())), strict=True):
                    products = (gradient * seen[name].detach()).movedim(axes[name], 1)  # (N, K, positions)
                    added = products.flatten(2).mean(2).abs().sum(0) if products.dim() > 2 else products.abs().sum(0)
                    totals[name] = totals[name] + added if name in totals else added
    finally:
        for handle in handles:
            handle.remove()
    return {name: total.cpu() for name, total in totals.items()}
