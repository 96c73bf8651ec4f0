"""``bn-scale``: the scale γ of the batch norm that follows a neuron; needs no noise.

    importance of neuron j = |γ_j|

Liu, Li, Shen, Huang, Yan, Zhang: Learning Efficient Convolutional Networks through Network Slimming, ICCV 2017.
"""

from __future__ import annotations

from torch import Tensor

from snncompress.errors import UsageError
from snncompress.pruning.scoring import ScoreRequest

SCALE_FREE = True  # what a norm gives has the same scale everywhere but for γ


def score(request: ScoreRequest) -> dict[str, Tensor]:
    """The scale of every output that a batch norm follows."""
    names = {name for group in request.groups for name, _ in group.outputs}
    scales = {
        name: request.model.get_submodule(norm).weight for name in sorted(names) if (norm := request.norms.get(name))
    }
    found = {name: scale.detach().abs().cpu() for name, scale in scales.items() if isinstance(scale, Tensor)}
    if not found:
        raise UsageError("criterion bn-scale needs batch norms after the layers; choose --criterion taylor")
    return found
