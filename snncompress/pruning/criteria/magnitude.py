"""``magnitude``: the Euclidean norm of a neuron's weights; needs no noise.

importance of neuron j = ‖w_j‖₂
"""

from __future__ import annotations

from torch import Tensor, nn

from snncompress.pruning.scoring import ScoreRequest


def score(request: ScoreRequest) -> dict[str, Tensor]:
    """The importance of every output of every convolution and linear layer."""
    return {
        name: module.weight.detach().flatten(1).norm(dim=1)
        for name, module in request.model.named_modules()
        if isinstance(module, (nn.Conv2d, nn.Linear))
    }
