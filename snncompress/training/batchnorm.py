"""Statistics of batch norms, gathered again with the noise off.

What a batch norm saw while its inputs were noisy is wrong for the mean: the variance is too large. Only where the
mean carries nothing, and the network is used by sampling, they are gathered under noise.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from snncompress.models.layout import Arranger
from snncompress.noise.attach import Noise
from snncompress.noise.branch import Mode

BATCHES = 40  # of 250 images: enough for a mean and a variance; a whole epoch gains nothing


@torch.no_grad()
def reestimate(model: nn.Module, noise: Noise | None, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Replaces the running statistics by averages over some batches, in place; no batch norm: no work."""
    norms = [m for m in model.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    if not norms:
        return
    momenta = {norm: norm.momentum for norm in norms}
    before = [{name: buffer.clone() for name, buffer in norm.named_buffers()} for norm in norms]
    samples, arrange = 0, Arranger()
    model.eval()
    for norm in norms:
        norm.reset_running_stats()
        norm.train()
    with nullcontext() if noise is None else noise.mode(Mode.SAMPLE if noise.find_hollow() else Mode.MEAN):
        for index, (inputs, _) in enumerate(batches):
            if index == BATCHES:
                break
            if len(inputs) == 1:  # one sample has no variance
                continue
            samples += len(inputs)
            for norm in norms:
                norm.momentum = len(inputs) / samples  # a plain average over the samples
            model(arrange(model, inputs))
    for norm, buffers in zip(norms, before, strict=True):
        norm.momentum = momenta[norm]
        if norm.num_batches_tracked == 0:  # nothing to gather from: better the old ones than none
            norm.load_state_dict(buffers, strict=False)
    model.eval()
