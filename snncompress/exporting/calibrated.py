"""A run whose model gives calibrated logits: the temperature that ``calibrate`` fitted becomes part of the model.

One temperature is folded into the weights of the classifier where that is exact, and costs nothing; else a division
follows. A sample-wise one, l / (T·Σ_j σ_ij) (Eq. 8 of Yu et al., AAAI 2021), keeps f_σ of one stochastic layer, a sum
and a division.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from snncompress.errors import ModelError, UsageError
from snncompress.evaluation.calibration import Scaling
from snncompress.evaluation.predictions import watch_spread
from snncompress.measure.cost import measure_cost
from snncompress.models.channels import trace_channels
from snncompress.noise.branch import Branch
from snncompress.run import Run

EXACT = 1e-5  # of the largest logit: folding changes no more than rounding does
PROBES = 8


@dataclass(frozen=True)
class Baked:
    """A calibrated run and what that costs.

    Attributes:
        run: With a model that gives calibrated logits.
        scaling: What these are divided by.
        temperature: T.
        folded: Whether T is in the classifier's weights: the model's layers are those that it had.
        weights: Numbers more than the plain model has.
        flops: Multiplications more, for one image, as reports count them.
    """

    run: Run
    scaling: Scaling
    temperature: float
    folded: bool
    weights: int
    flops: int


def bake(run: Run, scaling: Scaling | None = None) -> Baked:
    """Makes what was fitted part of a run's model, on a copy.

    Args:
        run: What ``snncompress calibrate`` has looked at.
        scaling: Which of the fitted temperatures; what was chosen there when absent.

    Raises:
        UsageError: If nothing was fitted, or not this, or the mean of the run carries nothing.
    """
    run.need_mean("exported")
    record = run.metrics.get("calibration")
    again = f"snncompress calibrate {run.path or 'RUN'}"
    if record is None:
        raise UsageError(f"no temperature was fitted for {run.name}; run `{again}` first, or leave --calibrated out")
    chosen = Scaling(scaling or record["chosen"])
    rows = [row for row in record["rows"] if (row["prediction"], row["scaling"]) == ("mean", chosen)]
    if not rows or rows[0]["temperature"] is None:
        raise UsageError(f"no {chosen} scaling was fitted for the mean of {run.name}; run `{again}` again")
    temperature = float(rows[0]["temperature"])
    model = copy.deepcopy(run.model).cpu().eval()
    folded = None if chosen is Scaling.SAMPLE_WISE else _fold(model, run, temperature)
    if chosen is Scaling.SAMPLE_WISE:
        made: nn.Module = _sample_wise(run, record["sigma_layer"], temperature)
    else:
        made = folded or Tempered(model, temperature)
    costs = [measure_cost(each, run.input_shape) for each in (run.model, made)]
    notes: dict[str, Any] = {"scaling": str(chosen), "temperature": temperature}
    return Baked(
        run=replace(run, model=made.eval(), metrics={**run.metrics, "baked": notes}),
        scaling=chosen,
        temperature=temperature,
        folded=folded is not None,
        weights=sum(p.numel() for p in made.parameters()) - sum(p.numel() for p in run.model.parameters()),
        flops=costs[1].flops - costs[0].flops,
    )


class Tempered(nn.Module):
    """A model whose logits are divided by a temperature."""

    def __init__(self, model: nn.Module, temperature: float) -> None:
        super().__init__()
        self.model, self.temperature = model, temperature

    def forward(self, images: Tensor) -> Tensor:
        """Images to calibrated logits."""
        logits: Tensor = self.model(images)
        return logits / self.temperature


class SampleWise(nn.Module):
    """A model whose logits are divided by T·Σσ of one of its layers."""

    def __init__(self, model: nn.Module, layer: str, branch: Branch, temperature: float) -> None:
        super().__init__()
        self.model, self.layer, self.branch, self.temperature = model, layer, branch, temperature

    def forward(self, images: Tensor) -> Tensor:
        """Images to calibrated logits."""
        with watch_spread(self.model.get_submodule(self.layer), self.branch) as found:
            logits: Tensor = self.model(images)
        spread = found[0]
        for more in found[1:]:
            spread = spread + more
        return logits / (self.temperature * spread.unsqueeze(1))


@torch.no_grad()
def _fold(model: nn.Module, run: Run, temperature: float) -> nn.Module | None:
    """Divides the weights of the classifier in place; None, and nothing changed, where that is not the same."""
    try:
        names = trace_channels(model, run.input_shape).classifiers
    except ModelError:
        return None
    if len(names) != 1:
        return None
    layer = model.get_submodule(next(iter(names)))
    values = [value for value in layer._parameters.values() if value is not None]
    before = [value.clone() for value in values]
    images = torch.randn(PROBES, *run.input_shape, generator=torch.Generator().manual_seed(0))
    wanted = model(images) / temperature
    for value in values:
        value.copy_((value.double() / temperature).to(value.dtype))
    if bool((model(images) - wanted).abs().max() <= EXACT * wanted.abs().max()):
        return model
    for value, old in zip(values, before, strict=True):
        value.copy_(old)
    return None


def _sample_wise(run: Run, layer: str, temperature: float) -> SampleWise:
    model = copy.deepcopy(run.model).cpu().eval()
    noise = run.attach_noise(model)
    if noise is None or layer not in noise.branches:
        raise UsageError(f"{run.name} has no noise on layer {layer} any more; run `snncompress calibrate` again")
    noise.detach()
    return SampleWise(model, layer, noise.branches[layer].requires_grad_(False).eval(), temperature)
