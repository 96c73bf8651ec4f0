"""Error against the share of weights that is removed, criterion by criterion, without any retraining.

Beside it, networks of the same depth with as many weights, trained from new ones on the soft targets of the whole
network: what pruning must beat.

Nalisnick, Anandkumar, Smyth: A Scale Mixture Perspective of Multiplicative Noise in Neural Networks, 2015, Figure 2.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from snncompress.data.batches import Batches
from snncompress.data.dataset import Dataset
from snncompress.errors import TargetError
from snncompress.evaluation.accuracy import evaluate
from snncompress.models.initial import reinitialize
from snncompress.models.layers import weight_layers
from snncompress.progress import Progress
from snncompress.pruning.allocation import shrink_to
from snncompress.pruning.compaction import compact
from snncompress.pruning.coupling import by_family
from snncompress.pruning.moments import weight_moments
from snncompress.pruning.sparsifier import Sparsifier
from snncompress.pruning.sparsify import check_hollow, make_subject
from snncompress.pruning.targets import Targets
from snncompress.run import Run
from snncompress.run_files import load, read_header
from snncompress.training.distillation import DistillOptions
from snncompress.training.feed import EVALUATION_BATCH, make_feed, pick_device
from snncompress.training.loop import train
from snncompress.training.options import TrainOptions

SHARES = (*range(0, 95, 5), 92.5, 95.0, 96.0, 97.0, 98.0, 99.0, 99.5)  # percent
RETRAINED_SHARES = (25.0, 50.0, 75.0, 90.0, 95.0)
SCATTERED = 3000  # weights: more would only be ink


@dataclass(frozen=True)
class Curve:
    """Errors of one network as its weights go.

    Attributes:
        name: the criterion.
        shares: of the weights of convolutions and linear layers that are removed, in percent.
        errors: by share, in the task's unit.
        doubles: the share at which the error is twice that of the whole network; None if it never is.
    """

    name: str
    shares: tuple[float, ...]
    errors: tuple[float, ...]
    doubles: float | None

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def weight_curves(
    run: Run,
    data: Dataset,
    criteria: Sequence[str],
    *,
    split: str = "validation",
    shares: Sequence[float] = SHARES,
    device: str = "auto",
    seed: int = 0,
    progress: Progress | None = None,
) -> list[Curve]:
    """A curve for each criterion; nothing is trained or written.

    Args:
        run: best one whose weights have a distribution.
        data: its data set.
        criteria: names that ``snncompress list weight-criteria`` shows.
        split: ``validation``, ``test`` or ``train``.
        shares: of weights that are removed, in percent, rising from 0.
        device: ``auto``, ``cpu``, ``cuda``, ...
        seed: of the random criterion.
        progress: is told what happens.
    """
    progress, chosen, options = progress or Progress(), pick_device(device), TrainOptions(seed=seed)
    feed = make_feed(data, None, options, run.normalization, chosen)
    feed = replace(feed, validation=_batches(run, data, split, chosen))
    sparsifier = Sparsifier(make_subject(run, options, chosen), feed)
    for criterion in criteria:  # one that cannot score says so before anything is done
        check_hollow(run, criterion)
        sparsifier.rank(criterion)
    curves = []
    for criterion in criteria:
        torch.manual_seed(seed)
        ranking = sparsifier.rank(criterion)
        errors = []
        progress.start(criterion, len(shares))
        for share in shares:
            stay = ranking.total - round(share / 100 * ranking.total)
            errors.append(sparsifier.error_of(ranking, min(max(stay, ranking.least), ranking.alive)))
            progress.advance(1, **{run.task.measure: errors[-1]})
        progress.finish()
        curves.append(Curve(criterion, tuple(shares), tuple(errors), find_rise(shares, errors)))
    return curves


def find_rise(shares: Sequence[float], errors: Sequence[float], factor: float = 2.0) -> float | None:
    """Where the error first is so many times the first one, on straight lines between the points."""
    limit = factor * errors[0]
    for index in range(1, len(errors)):
        before, after = errors[index - 1], errors[index]
        if after >= limit > before:
            way = (limit - before) / (after - before)
            return shares[index - 1] + way * (shares[index] - shares[index - 1])
    return None


def retrain_smaller(
    run: Run,
    data: Dataset,
    out: Path,
    options: TrainOptions,
    distill: DistillOptions,
    *,
    split: str = "validation",
    shares: Sequence[float] = RETRAINED_SHARES,
    device: str = "auto",
    progress: Progress | None = None,
) -> Curve:
    """Networks with as many weights as pruning leaves, trained from new ones on the soft targets of the whole one.

    Each is a run in ``out``: what is there already is not trained again, what was interrupted goes on.
    """
    progress, chosen = progress or Progress(), pick_device(device)
    batches = _batches(run, data, split, chosen)
    found, errors = [], []
    for share in shares:
        torch.manual_seed(options.seed)
        if (student := smaller(run, share)) is None:
            progress.message(f"no network of this depth has {share:g}% fewer weights")
            continue
        folder = out / f"retrained-{share:g}"
        known = (folder / "run.json").is_file()
        if known and read_header(folder)["status"] == "complete":
            trained = load(folder, model=None if run.source is not None else copy.deepcopy(run.model))
        else:
            progress.message(f"{share:g}% fewer weights, trained on soft targets")
            trained = train(
                student, data, options, teacher=run, distill=distill, out=folder, resume=known, device=device,
                progress=progress,
            )  # fmt: skip
        found.append(share)
        errors.append(evaluate(trained.model.to(chosen), batches).error)
    return Curve("retrained", tuple(found), tuple(errors), None)


def smaller(run: Run, share: float) -> Run | None:
    """The run's architecture with all layers narrower and new weights, this share (percent) fewer; None if none is."""
    subject = make_subject(run, TrainOptions(), torch.device("cpu"))
    weights = sum(layer.weight.numel() for layer in weight_layers(run.model).values())
    budget = subject.budget(Targets(size=subject.cost().size - round(share / 100 * weights)), 1, 1)
    try:
        budget.check()
    except TargetError:
        return None
    widths = shrink_to(budget, dict.fromkeys(budget.full, 1.0))
    gone = [group for family, members in by_family(subject.groups).items() for group in members[widths[family] :]]
    model, _ = compact(subject.model, gone)
    reinitialize(model)
    return replace(run, model=model, noise=None, posterior=None, plan=None, metrics={}, sparse=False)


def sample_moments(run: Run, seed: int = 0) -> tuple[list[float], list[float]] | None:
    """Means and deviations of some of the weights that have a distribution; None if none has."""
    model = copy.deepcopy(run.model)
    noise = run.attach_noise(model)
    if noise is not None:
        noise.detach()
    moments = weight_moments(model, noise, run.posterior).values()
    if not moments:
        return None
    means, deviations = (torch.cat([each[index].flatten() for each in moments]) for index in (0, 1))
    some = torch.randperm(len(means), generator=torch.Generator().manual_seed(seed))[:SCATTERED]
    return means[some].tolist(), deviations[some].tolist()


def _batches(run: Run, data: Dataset, split: str, device: torch.device) -> Batches:
    return Batches(data.part(split), EVALUATION_BATCH, run.normalization, device=device)
