"""A temperature in a model: in the classifier's weights where that is exact, else a division behind it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from networks import Lambda
from tiny import CLASSES, SHAPE, tiny_images, tiny_run
from torch import Tensor, nn

from snncompress.data.batches import Batches
from snncompress.errors import UsageError
from snncompress.evaluation.calibration import Scaling, calibrate
from snncompress.exporting.calibrated import bake
from snncompress.exporting.formats import ExportFormat, export_model
from snncompress.noise.attach import attach
from snncompress.noise.branch import Reach
from snncompress.run import NoiseRecord, Run, wrap


def calibrated(run: Run, use: Scaling | None = None) -> Run:
    """The run, as ``snncompress calibrate`` leaves it."""
    batches = Batches(tiny_images(run), 20, run.normalization, device=torch.device("cpu"))
    return replace(run, metrics={**run.metrics, "calibration": calibrate(run, batches, use=use).to_json()})


def of_layers(*layers: nn.Module) -> Run:
    torch.manual_seed(0)
    return wrap(nn.Sequential(*layers), SHAPE, classes=CLASSES, normalization=tiny_run().normalization)


CONV_LAST: Callable[[], Run] = lambda: of_layers(  # noqa: E731
    nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 4, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()
)
BENT: Callable[[], Run] = lambda: of_layers(  # noqa: E731
    nn.Flatten(), nn.Linear(432, 4), Lambda(lambda x: x + 0.1 * x**3)
)


@pytest.mark.parametrize(("make", "folded"), [(tiny_run, True), (CONV_LAST, True), (BENT, False)])
def test_logits_are_divided(make: Callable[[], Run], folded: bool, tmp_path: Path) -> None:
    run = calibrated(make())
    baked = bake(run)
    assert (baked.folded, baked.weights, baked.flops, baked.scaling) == (folded, 0, 0, Scaling.TEMPERATURE)
    images = torch.randn(9, *SHAPE)
    with torch.no_grad():
        wanted = run.model(images) / baked.temperature
        torch.testing.assert_close(baked.run.model(images), wanted, rtol=1e-4, atol=1e-6)
    if folded:
        assert baked.run.model.state_dict().keys() == run.model.state_dict().keys()
    export_model(baked.run, tmp_path / "a.onnx", images=tiny_images(run).images)


@pytest.mark.parametrize("layers", [["hidden"], [Reach.HIDDEN]])  # a layer of this name, and all hidden ones
@pytest.mark.parametrize("format", [ExportFormat.ONNX, ExportFormat.PT2, ExportFormat.PYTHON])
def test_the_noise_of_a_hidden_layer_serves_too(layers: list[str], format: ExportFormat, tmp_path: Path) -> None:
    """Σσ of noise on what a layer makes; of several, the one that is nearest to the classifier."""
    run = tiny_run()
    noise = attach(run.model, "se-snn", run.input_shape, {"aggregate": "sample"}, layers)
    for _, parameter in noise.named_parameters():
        nn.init.normal_(parameter, std=0.2)
    noise.detach()
    run = calibrated(replace(run, noise=NoiseRecord.of(noise)), Scaling.SAMPLE_WISE)
    layer = run.metrics["calibration"]["sigma_layer"]
    assert layer == "hidden"
    baked = bake(run)
    assert baked.weights == sum(p.numel() for p in noise.branches[layer].parameters())
    assert baked.flops == 32 * 16
    inputs: list[Tensor] = []
    handle = run.model.get_submodule(layer).register_forward_pre_hook(lambda _, given: inputs.append(given[0]))
    images = torch.randn(5, *SHAPE)
    with torch.no_grad():
        logits = run.model(images)
        handle.remove()
        raw = inputs[0] @ noise.branches[layer].weight.T + noise.branches[layer].bias  # type: ignore[operator]
        wanted = logits / (baked.temperature * nn.functional.softplus(raw).sum(1, keepdim=True))
        torch.testing.assert_close(baked.run.model(images), wanted, rtol=1e-4, atol=1e-6)
    export_model(baked.run, tmp_path / f"net{'.py' if format is ExportFormat.PYTHON else ''}", format)


def test_nothing_fitted() -> None:
    with pytest.raises(UsageError, match=r"run `snncompress calibrate RUN` first, or leave --calibrated out"):
        bake(tiny_run())
    with pytest.raises(UsageError, match=r"no sample-wise scaling was fitted .*calibrate RUN` again"):
        bake(calibrated(tiny_run()), Scaling.SAMPLE_WISE)
