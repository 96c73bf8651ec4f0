"""What ``evaluate`` finds out about single samples: suspects among the training labels, and images of another kind."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from snncompress.cli.render import print_json
from snncompress.errors import DataError, UsageError

if TYPE_CHECKING:
    from snncompress.cli.opening import Opened
    from snncompress.cli.screen import Screen
    from snncompress.evaluation.ood import Outliers
    from snncompress.evaluation.suspects import Suspects

OOD_DRAWS = 20  # of a stochastic run, unless --samples says


def judge_suspects(
    opened: Opened,
    count: int,
    by: str | None,
    out: Path | None,
    draws: int | None,
    seed: int,
    device: str,
    screen: Screen,
) -> Suspects:
    """Ranks the training samples; draws them where ``out`` says."""
    from snncompress.evaluation.sampling import check_draws
    from snncompress.evaluation.suspects import find_suspects
    from snncompress.evaluation.uncertainty import Score
    from snncompress.reporting.suspects import MOST, plot_suspects
    from snncompress.training.feed import pick_device

    if draws is not None:
        check_draws(draws)
    data = opened.need_data()
    found = find_suspects(
        opened.run, data, count, by=Score(by or Score.LOSS), draws=draws or 0, seed=seed,
        device=pick_device(device), progress=screen,
    )  # fmt: skip
    if out is not None:
        plot_suspects(found, data, out, f"{opened.run.label}, {data.name}")
        screen.message(f"{out}: the first {min(count, MOST)} of them")
    return found


def show_suspects(opened: Opened, found: Suspects, json: bool) -> None:
    """The samples as a table, and how many labels are known to be wrong."""
    from tabulate import tabulate

    data = opened.need_data()
    if json:
        print_json({"run": opened.run.name, "data": data.name, "label_noise": data.label_noise, **found.to_json()})
        return
    known = found.flipped is not None
    names, rows = data.classes, []
    for each in found.found:
        rows.append([each.name, f"{each.score:.4f}", names[each.given], names[each.predicted]])
        if each.truth is not None:
            rows[-1] += [names[each.truth], "" if each.truth == each.given else "wrong"]
    header = ["sample", found.score.words, "label", "predicted", *(["truth", ""] if known else [])]
    align = ("left", "right", *["left"] * (len(header) - 2))
    print(f"{opened.run.name}: {len(rows)} of {found.samples:,} training {data.noun} of {data.name}\n")
    print(tabulate(rows, header, disable_numparse=True, colalign=align))
    if known:
        separated = "" if found.auroc is None else f"; AUROC {found.auroc:.3f}"
        print(
            f"\n{data.label_noise}: {found.flipped:.1f}% of these labels are wrong, "
            f"{found.flipped_overall:.1f}% of all{separated}"
        )


def judge_outliers(
    opened: Opened,
    other: str,
    root: Path | None,
    split: str,
    draws: int | None,
    seed: int,
    device: str,
    screen: Screen,
) -> Outliers:
    """Compares the run's own images with those of another data set."""
    from snncompress.data.adapt import adapt
    from snncompress.data.batches import Batches
    from snncompress.data.sources import load_data
    from snncompress.evaluation.ood import detect_outliers
    from snncompress.evaluation.sampling import check_draws
    from snncompress.training.feed import EVALUATION_BATCH, pick_device

    run, chosen = opened.run, pick_device(device)
    if draws is not None:
        check_draws(draws)
    if draws is not None and run.noise is None:
        raise UsageError(f"{run.name} was not trained with noise: there is nothing to sample; leave --samples out")
    inside = opened.batches(split, device)
    loaded = load_data(other, root=root or opened.run.data.get("root"), device=chosen)
    if loaded.name == opened.need_data().name:
        raise UsageError(f"--ood {other} is the run's own data; give another data set")
    if loaded.test is None:
        raise DataError(f"{other} has no test images; give another data set")
    images, done = adapt(loaded.test, run.input_shape, other)
    if done:
        screen.message(f"{other}: images are {' and '.join(done)}")
    outside = Batches(images, EVALUATION_BATCH, run.normalization, device=chosen)
    draws = draws or (OOD_DRAWS if run.noise is not None else 0)
    return detect_outliers(run, inside, outside, draws=draws, seed=seed, device=chosen, progress=screen)


def show_outliers(opened: Opened, other: str, split: str, found: Outliers, json: bool) -> None:
    """A table with a row for each score."""
    from tabulate import tabulate

    data = opened.need_data()
    if json:
        print_json({"run": opened.run.name, "data": data.name, "split": split, "ood": other, **found.to_json()})
        return
    rows = [
        [each.score.words, f"{each.inside:.4f}", f"{each.outside:.4f}", f"{each.auroc:.4f}"]
        for each in found.detections
    ]
    how = f"{found.draws} samples averaged" if found.draws else "mean propagation"
    print(
        f"{opened.run.name}, {how}: {found.inside_samples:,} {split} {data.noun} of {data.name} against "
        f"{found.outside_samples:,} of {other}\n"
    )
    header = ["score", data.name, other, "AUROC"]
    print(tabulate(rows, header, disable_numparse=True, colalign=("left", *["right"] * 3)))
