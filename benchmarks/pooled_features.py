"""What the classifier of a network reads, computed once and kept in files: a head on it then trains in seconds."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from snncompress.data.batches import Batches
from snncompress.data.dataset import Images
from snncompress.progress import Progress
from snncompress.run import Run

BATCH = 250


def pooled_features(
    run: Run, images: Images, layer: str, file: Path, augment: str, seed: int, progress: Progress
) -> tuple[Tensor, Tensor]:
    """What ``layer`` reads for every image, (N, K), and the labels; from the file where that is there."""
    if not file.exists():
        found, labels = _compute(run, images, layer, augment, seed, progress, file.stem)
        file.parent.mkdir(parents=True, exist_ok=True)
        beside = file.with_suffix(".tmp")
        save_file({"features": found, "labels": labels}, beside)
        beside.rename(file)
    kept = load_file(file)
    return kept["features"], kept["labels"]


@torch.no_grad()
def _compute(
    run: Run, images: Images, layer: str, augment: str, seed: int, progress: Progress, task: str
) -> tuple[Tensor, Tensor]:
    torch.manual_seed(seed)  # of the augmentation
    found: list[Tensor] = []
    labels: list[Tensor] = []
    model = run.model.eval()
    handle = model.get_submodule(layer).register_forward_pre_hook(lambda _, inputs: found.append(inputs[0]))
    batches = Batches(images, BATCH, run.normalization, device=torch.device("cpu"), augment=augment)
    progress.start(task, len(batches))
    for batch, truth in batches:
        model(batch)
        labels.append(truth)
        progress.advance()
    progress.finish()
    handle.remove()
    return torch.cat(found), torch.cat(labels)
