"""Makes PyTorch image classifiers smaller with stochastic neural networks.

Example:
    ::

        data = snncompress.load_data("mnist-sample")
        run = snncompress.load("lenet5", classes=data.classes, input_shape=data.image_shape, normalize="mnist")
        run = snncompress.train(run, data, snncompress.TrainOptions(epochs=5), method="se-snn")
        small = snncompress.prune(run, data, snncompress.PruneOptions(target_flops="10%"))
        snncompress.export_onnx(small, "small.onnx")
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from snncompress.data.sources import load_data as load_data
    from snncompress.evaluation.accuracy import evaluate as evaluate
    from snncompress.evaluation.attacks.plan import AttackPlan as AttackPlan
    from snncompress.evaluation.calibration import calibrate as calibrate
    from snncompress.evaluation.ood import detect_outliers as detect_outliers
    from snncompress.evaluation.robustness import attack as attack
    from snncompress.evaluation.sampling import evaluate_stochastic as evaluate_stochastic
    from snncompress.evaluation.suspects import find_suspects as find_suspects
    from snncompress.exporting.calibrated import bake as bake
    from snncompress.exporting.formats import export_model as export_model
    from snncompress.exporting.onnx import export_onnx as export_onnx
    from snncompress.exporting.verify import verify_onnx as verify_onnx
    from snncompress.measure.cost import measure_cost as measure_cost
    from snncompress.noise.attach import attach as attach
    from snncompress.pruning.options import PruneOptions as PruneOptions
    from snncompress.pruning.options import WeightOptions as WeightOptions
    from snncompress.pruning.pipeline import preview as preview
    from snncompress.pruning.pipeline import prune as prune
    from snncompress.pruning.sparsify import prune_weights as prune_weights
    from snncompress.run import wrap as wrap
    from snncompress.run_files import load as load
    from snncompress.training.adversarial import AdversarialOptions as AdversarialOptions
    from snncompress.training.distillation import DistillOptions as DistillOptions
    from snncompress.training.langevin import PosteriorOptions as PosteriorOptions
    from snncompress.training.loop import train as train
    from snncompress.training.options import TrainOptions as TrainOptions
    from snncompress.zoo.entries import list_zoo as list_zoo
    from snncompress.zoo.measuring import verify_zoo as verify_zoo

# The public verbs and where they live: imported when they are used, so that `snncompress --help` needs no torch.
_PUBLIC = {
    "AdversarialOptions": "training.adversarial",
    "AttackPlan": "evaluation.attacks.plan",
    "DistillOptions": "training.distillation",
    "PosteriorOptions": "training.langevin",
    "PruneOptions": "pruning.options",
    "TrainOptions": "training.options",
    "WeightOptions": "pruning.options",
    "attach": "noise.attach",
    "attack": "evaluation.robustness",
    "bake": "exporting.calibrated",
    "calibrate": "evaluation.calibration",
    "detect_outliers": "evaluation.ood",
    "evaluate": "evaluation.accuracy",
    "evaluate_stochastic": "evaluation.sampling",
    "export_model": "exporting.formats",
    "export_onnx": "exporting.onnx",
    "find_suspects": "evaluation.suspects",
    "list_zoo": "zoo.entries",
    "load": "run_files",
    "load_data": "data.sources",
    "measure_cost": "measure.cost",
    "preview": "pruning.pipeline",
    "prune": "pruning.pipeline",
    "prune_weights": "pruning.sparsify",
    "train": "training.loop",
    "verify_onnx": "exporting.verify",
    "verify_zoo": "zoo.measuring",
    "wrap": "run",
}
__all__ = sorted(_PUBLIC)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'snncompress' has no attribute '{name}'")
    return getattr(importlib.import_module(f"snncompress.{_PUBLIC[name]}"), name)
