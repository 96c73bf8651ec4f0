"""Results on stdout, for a person or, with ``--json``, for a script."""

from __future__ import annotations

import json as json_module
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from snncompress.checks import Check
    from snncompress.cli.screen import Screen
    from snncompress.data.dataset import Dataset
    from snncompress.data.task import Task
    from snncompress.evaluation.sampling import StochasticEvaluation
    from snncompress.pruning.pipeline import Preview
    from snncompress.pruning.sparsify import WeightPreview
    from snncompress.run import Run

VERDICTS = {True: "PASS", False: "FAIL", None: "    "}


def print_json(value: Any) -> None:
    """One JSON document on stdout."""
    print(json_module.dumps(value, indent=2, ensure_ascii=False))


def show_checks(checks: Sequence[Check]) -> None:
    """A line a check, with its verdict."""
    width = max(len(check.name) for check in checks)
    for check in checks:
        print(f"{VERDICTS[check.passed]} {check.name:{width}}  {check.detail}")


def show_run(run: Run, json: bool) -> None:
    """What ``train`` and ``prune`` have made."""
    from snncompress.reporting.rows import make_row
    from snncompress.reporting.table import format_bytes, format_flops

    validation = run.metrics.get("validation", {})
    row = make_row(
        run.name, run.measured_model(), run.input_shape, run.original, validation.get("error"),
        stored_bytes=run.stored_bytes, task=run.task,
    )  # fmt: skip
    plan = run.plan or {}
    if json:
        result = {"run": str(run.path), "name": run.name, **run.task.entries(row.error, "validation_")}
        result |= {key: getattr(row, key) for key in ("weights", "weights_percent", "flops", "flops_percent")}
        shown = (
            "targets", "criterion", "threshold", "layers", "latency", "unprunable", "removed_dead", "removed_neurons",
            "logit_change", "stopped",
        )  # fmt: skip
        result |= {key: plan[key] for key in shown if key in plan}
        if row.stored_bytes is not None:
            result |= {"flops_sparse": row.flops_sparse, "bytes": row.bytes, "stored_bytes": row.stored_bytes}
        print_json(result)
        return
    if plan.get("stopped"):
        print(f"{plan['stopped']}: this is the last model within it")
    elif "layers" in plan:
        _show_sparsity(plan)
    elif run.plan is not None and not plan["targets"]:
        print("no target was given (--target-flops and others): only neurons that never fire were removed")
    elif run.plan is not None and all(plan["points"][0][name] <= target for name, target in plan["targets"].items()):
        print("the model met the target already: only dead neurons were removed")
    if latency := plan.get("latency"):
        print(f"one image takes {latency['ms']:.3g} ms in onnxruntime, target {latency['target_ms']:.3g} ms")
    error = "" if row.error is None else f", validation {run.task.word(row.error)}"
    if "error_averaged" in validation:
        error += f" by the mean, {run.task.show(validation['error_averaged'])} by averaging samples"
    stored = "" if row.stored_bytes is None else f" in {format_bytes(row.stored_bytes)}"
    print(
        f"{run.path}: {format_flops(row.flops)} FLOPs ({row.flops_percent:.2f}%), "
        f"{row.weights:,} weights ({row.weights_percent:.2f}%){stored}{error}"
    )


def _show_sparsity(plan: Mapping[str, Any]) -> None:
    """How many weights are left of each layer that pruning began with."""
    _show_layers(plan["layers"])
    gone, change = plan["removed_neurons"], plan["logit_change"]
    print(f"\n{gone} neurons were left idle and are gone; logits changed by {change:.1e} of the largest")


def _show_layers(layers: Mapping[str, Mapping[str, int]]) -> None:
    from tabulate import tabulate

    rows = [
        (name, f"{layer['left']:,} of {layer['weights']:,}", f"{100 * layer['left'] / layer['weights']:.2f}%")
        for name, layer in layers.items()
    ]
    print(tabulate(rows, ["layer", "weights left", ""], disable_numparse=True, colalign=("left", "right", "right")))


def format_seconds(seconds: float) -> str:
    """A duration as people say it."""
    if seconds < 90:
        return f"about {max(1, round(seconds))} s"
    return f"about {round(seconds / 60)} min" if seconds < 5400 else f"about {seconds / 3600:.1f} h"


def show_preview(plan: Preview | WeightPreview, json: bool) -> None:
    """What ``prune --dry-run`` found."""
    from tabulate import tabulate

    from snncompress.pruning.sparsify import WeightPreview

    if json:
        print_json(plan.to_json())
        return
    if isinstance(plan, WeightPreview):
        _show_layers(plan.layers)
        last = "" if plan.threshold is None else f"; the last to stay has {plan.threshold:.4g}"
        print(f"\nWeights rank by {plan.criterion}{last}.")
    else:
        rows = [(name, width, plan.planned[name]) for name, width in plan.widths.items()]
        print(tabulate(rows, ["layer", "neurons", "planned"]))
        print(f"\n{plan.dead} of {plan.neurons} neurons never fire; the others rank by {plan.criterion}.")
        if plan.unprunable:
            print(f"Hidden layers that lose no neurons of their own: {', '.join(plan.unprunable)}.")
    for name, word in (("flops", "FLOPs"), ("size", "Weights"), ("memory", "Memory")):
        target = f", target {plan.targets[name]:,}" if name in plan.targets else ""
        print(f"{word}: {plan.cost[name]:,} now, {plan.planned_cost[name]:,} planned{target}.")
    if not isinstance(plan, WeightPreview) and plan.steps:
        print(f"At most {plan.steps:,} steps of fine-tuning, {format_seconds(plan.seconds)}.")


def show_points(points: Sequence[Mapping[str, Any]], task: Task, json: bool) -> None:
    """The trade-off curve of a pruned run."""
    from tabulate import tabulate

    if json:
        print_json(points)
        return
    rows = [
        [index, *(f"{point[name]:,}" for name in ("flops", "size", "memory")), _error(point.get("error"), task)]
        for index, point in enumerate(points)
    ]
    header = ["point", "FLOPs", "weights", "memory", f"validation {task.measure}"]
    print(tabulate(rows, header, disable_numparse=True, colalign=("right",) * len(header)))


def _error(value: float | None, task: Task) -> str:
    return "" if value is None else task.show(value)


def show_samples(run: Run, result: StochasticEvaluation, images: str, split: str, json: bool) -> None:
    """What ``evaluate --samples`` measured."""
    from tabulate import tabulate

    if json:
        print_json({**run.task.entries(result.mean.error), **result.to_json(), "split": split})
        return
    one, averaged, draws = result.sampled.one, result.sampled.averaged, result.sampled.draws
    show = run.task.show
    rows = [
        ("mean propagation", show(result.mean.error), f"{result.mean.nll:.4f}"),
        ("one sample", f"{show(one.error)} ± {run.task.number(result.sampled.spread)}", f"{one.nll:.4f}"),
        (f"{draws} averaged", show(averaged.error), f"{averaged.nll:.4f}"),
    ]
    print(f"{run.name} on {result.mean.samples:,} {images}\n")
    print(tabulate(rows, ["", run.task.measure, "NLL"], disable_numparse=True, colalign=("left", "right", "right")))
    if result.elbo is not None:
        bound = result.elbo
        data = f"{bound.data:,.1f}" + (f" ± {bound.deviation:,.1f}" if bound.deviation else "")
        print(f"\nELBO of the training data: {bound.elbo:,.1f} = {data} (data) − {bound.kl:,.1f} (KL)")


def warn_labels(data: Dataset, screen: Screen) -> None:
    """Says that labels were made wrong on purpose, and what errors are measured against."""
    if data.label_noise is not None:
        screen.message(
            f"labels of training and validation {data.noun} have {data.label_noise} noise, so validation errors are "
            "against noisy labels; test labels stay true"
        )


def warn_uncorrected(run: Run, teacher: Run | None, screen: Screen) -> None:
    """Says that fine-tuning believes the labels that training did not."""
    if teacher is None and (correction := run.config.get("correction")):
        screen.message(
            f"{run.name} was trained with --correction {correction['name']}, but fine-tuning believes its labels; "
            "--distill self keeps more of what it has learned"
        )


def warn_hollow(run: Run, screen: Screen) -> None:
    """Says that the mean network is not how this run is used."""
    if run.hollow:
        screen.message(
            f"{run.name}: the mean of layer {run.hollow[0]} carries nothing, so its error is a guess's and its weights "
            "are its variances; evaluate it with --samples 20"
        )
