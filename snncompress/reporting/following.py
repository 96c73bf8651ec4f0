"""How far a run is that another process works on: read from its header, its history and the notes of its state."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors

from snncompress.data.task import Task
from snncompress.errors import RunError, SnncompressError
from snncompress.files import META_KEY
from snncompress.pruning.costs import Counts
from snncompress.pruning.targets import Targets, parse_target
from snncompress.reporting.life import NOISE, count_examples_of
from snncompress.reporting.lineage import Record, Stage, read_lineage

SILENT_AFTER = 180.0  # seconds without a new record or state, when a run that is not finished may have died
RECENT = 3  # epochs whose time tells how long the others will take
COUNTS = {"flops": "flops", "size": "weights", "memory": "memory"}  # of a point, and of the original


@dataclass(frozen=True)
class Status:
    """One look at a run.

    Attributes:
        name: its folder's name.
        what: the command and the model: ``train lenet5 with se-snn``.
        complete: whether it is finished.
        doing: where it is: ``epoch 3 of 12``, ``round 7``.
        share: how much of it is behind, 0 to 1; None where that is not known.
        left_seconds: how long it will take; None where that is not known.
        quiet_seconds: how long ago it wrote anything.
        task: what its errors are errors of.
        last: its latest record; empty before the first.
        errors: validation errors so far.
        records: all of them.
    """

    name: str
    what: str
    complete: bool
    doing: str
    share: float | None
    left_seconds: float | None
    quiet_seconds: float
    task: Task
    last: Record
    errors: tuple[float, ...]
    records: tuple[Record, ...]

    @property
    def silent(self) -> bool:
        """Whether it may have died."""
        return not self.complete and self.quiet_seconds > SILENT_AFTER

    def noise(self) -> tuple[str, dict[str, float]] | None:
        """The state of each layer's noise in the latest record, and what it is called."""
        layers: dict[str, dict[str, float]] = self.last.get("noise", {})
        for key, _, _, words in NOISE:
            found = {name: values[key] for name, values in layers.items() if key in values}
            if found:
                return words.removeprefix("Entropy: ").partition(":")[0], found
        return None


def look(folder: Path, now: float | None = None) -> Status:
    """Reads where a run is.

    Args:
        folder: of the run.
        now: the time, seconds since the epoch; the present when absent.

    Raises:
        RunError: If there is no run, or its files are damaged.
    """
    if not (folder / "run.json").is_file():
        raise RunError(f"{folder} is not a run: it has no run.json; name the folder that train or prune got as --out")
    stages = read_lineage(folder).stages
    stage = stages[-1]
    state = _read_state(folder)
    complete = stage.header.get("status") == "complete"
    doing, share = _pruning(stage, stages, state) if stage.pruned else _training(stage, state)
    key = "error" if stage.pruned else "validation_error"
    return Status(
        name=stage.name,
        what=_what(stage),
        complete=complete,
        doing="finished" if complete else doing,
        share=1.0 if complete else share,
        left_seconds=None if complete or stage.pruned else _seconds_left(stage, share),
        quiet_seconds=max(0.0, (time.time() if now is None else now) - _written(folder)),
        task=Task(stage.header.get("task", Task.CLASSIFICATION)),
        last=stage.history[-1] if stage.history else {},
        errors=tuple(record[key] for record in stage.history if key in record),
        records=stage.history,
    )


def _what(stage: Stage) -> str:
    words = stage.header.get("command") or []
    verb = words[1] if len(words) > 1 else "prune" if stage.pruned else "train"
    method = stage.config.get("method", "none")
    return f"{verb} {stage.header['name']}" + (f" with {method}" if method != "none" else "")


def _read_state(folder: Path) -> dict[str, Any]:
    """What the state says beside its tensors; nothing where there is none, or it is just being replaced."""
    try:
        with safetensors.safe_open(folder / "state.safetensors", framework="np") as file:  # type: ignore[no-untyped-call]
            meta = json.loads(file.metadata()[META_KEY])["meta"]
    except (OSError, ValueError, LookupError, TypeError, safetensors.SafetensorError):
        return {}
    return meta if isinstance(meta, dict) else {}


def _written(folder: Path) -> float:
    files = (folder / name for name in ("run.json", "history.jsonl", "state.safetensors"))
    return max(file.stat().st_mtime for file in files if file.exists())


def _training(stage: Stage, state: dict[str, Any]) -> tuple[str, float | None]:
    epochs, last = int(stage.config.get("epochs", 0)), stage.history[-1] if stage.history else {}
    done = float(last.get("epoch", 0))
    steps = next((r["step"] / r["epoch"] for r in stage.history if r.get("epoch") and r.get("step")), None)
    if steps and state.get("step"):
        done = max(done, state["step"] / steps)  # the state may be newer than the last epoch's end
    samples = (stage.config.get("posterior") or {}).get("samples")
    if samples and done >= epochs:
        drawn = int(state.get("drawn", 0))
        return f"posterior: sample {drawn:,} of {samples:,}", drawn / samples
    return f"epoch {min(int(done) + 1, epochs)} of {epochs}", min(done / epochs, 1.0) if epochs else None


def _pruning(stage: Stage, stages: tuple[Stage, ...], state: dict[str, Any]) -> tuple[str, float | None]:
    last = stage.history[-1] if stage.history else {}
    phase = state.get("phase", last.get("phase", "begin"))
    if phase == "final":
        steps, examples = int(state.get("round_step", 0)), count_examples_of(stage, stages)
        epochs, size = stage.config.get("final_epochs", 0), stage.batch_size
        if examples and epochs and size:
            return "the last fine-tuning", min(steps * size / examples / epochs, 1.0)
        return f"the last fine-tuning, step {steps:,}", None
    number = state.get("round", last.get("round", 0))
    words = {
        "dead": "looking for neurons that never fire",
        "rounds": f"round {number}",
        "recover": f"recovering after round {number}",
    }
    return words.get(str(phase), f"phase {phase}"), _way(stage)


def _way(stage: Stage) -> float | None:
    """How much of the way to the targets is behind at the last point."""
    points = [record for record in stage.history if all(name in record for name in COUNTS)]
    try:
        targets = Targets(
            **{
                name: parse_target(text, stage.header["original"][counted])
                for name, counted in COUNTS.items()
                if (text := stage.config.get(f"target_{name}")) is not None
            }
        )
    except SnncompressError:
        return None
    if not points or not targets.given():
        return None
    first, now = (Counts(*(point[name] for name in COUNTS)) for point in (points[0], points[-1]))
    return min(max(targets.way(first, now), 0.0), 1.0)


def _seconds_left(stage: Stage, share: float | None) -> float | None:
    """By the last few epochs."""
    times = [record["seconds"] for record in stage.history if record.get("epoch") and "seconds" in record][-RECENT:]
    if share is None or not times:
        return None
    return float((1 - share) * stage.config["epochs"] * sum(times) / len(times))
