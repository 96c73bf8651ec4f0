r"""Converts two sets that are no images into .npz files for ``npz:PATH``.

    python -m benchmarks.tabular --shared FOLDER --out FOLDER [--weighting counts|log|presence]

reads ``FOLDER/imdb/imdb_bow.npz`` (film reviews as bags of words, Maas et al. 2011) and ``FOLDER/protein`` (physical
properties of protein structures, UCI), and writes

- ``imdb.npz``: sparse, the 5,000 words that occur most often in the training reviews, 25,000 + 25,000 reviews; class 1
  has a rating above 5. A feature is how often its word occurs: on validation data log(1 + that number) did no better,
  and mere presence a little worse (mlp widths=100, dropout, 4 epochs, two seeds: 11.38%, 11.44% and 11.62% error).
- ``protein.npz``: nine features of 41,157 + 4,573 structures and a number to predict. The first column of the set's
  test masks says which rows are for testing. The target is standardized by the training rows' mean and standard
  deviation, so that an RMSE of 1 is that of predicting the mean; the two are in the file as ``target_mean`` and
  ``target_std``.

Short recipes, chosen on validation data (seed 0; 11.84% error and an RMSE of 0.597):

    snncompress train mlp --data npz:imdb.npz --model-arg widths=100 --method dropout --epochs 4 --out runs/imdb
    snncompress train mlp --data npz:protein.npz --model-arg widths=200-200 --method dropout -o rate=0.1 --epochs 30 \
        --lr 0.003 --out runs/protein
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

WORDS = 5000
LIKED = 5  # ratings above are positive; the set has none of 5 and 6
WEIGHTINGS: dict[str, Callable[[Any], Any]] = {
    "counts": lambda counts: counts,
    "log": lambda counts: np.log1p(counts.astype(np.float32)),
    "presence": np.ones_like,
}

Arrays = dict[str, Any]


def convert_imdb(source: Path, weighting: str = "counts", words: int = WORDS) -> Arrays:
    """The reviews as two CSR matrices of the most frequent words and labels."""
    with np.load(source / "imdb" / "imdb_bow.npz") as archive:
        read = {key: archive[key] for key in archive.files}
    totals = np.bincount(read["train_indices"], read["train_counts"])
    order = np.argsort(-totals, kind="stable")[:words]  # ties: the word that comes first
    column = np.full(max(int(read[f"{part}_indices"].max()) for part in ("train", "test")) + 1, -1)
    column[order] = np.arange(len(order))
    arrays: Arrays = {"features": len(order)}
    for part in ("train", "test"):
        columns = column[read[f"{part}_indices"]]
        kept = columns >= 0
        before = np.concatenate([[0], kept.cumsum()])  # entries that are kept, up to each place
        arrays |= {
            f"{part}_data": WEIGHTINGS[weighting](read[f"{part}_counts"][kept]),
            f"{part}_indices": columns[kept].astype(np.int16 if words <= 2**15 else np.int32),
            f"{part}_indptr": before[read[f"{part}_indptr"]].astype(np.int32),
            f"{part}_labels": (read[f"{part}_rating"] > LIKED).astype(np.int8),
        }
    return arrays


def convert_protein(source: Path) -> Arrays:
    """The structures' features and their standardized target."""
    table = np.loadtxt(source / "protein" / "data.csv.gz", delimiter=",")
    test = np.loadtxt(source / "protein" / "test_mask.csv.gz", delimiter=",", usecols=0) == 1
    features, target = table[:, :-1], table[:, -1]
    mean, std = target[~test].mean(), target[~test].std()
    target = (target - mean) / std
    return {
        "train_features": features[~test].astype(np.float32),
        "train_targets": target[~test].astype(np.float32),
        "test_features": features[test].astype(np.float32),
        "test_targets": target[test].astype(np.float32),
        "target_mean": mean,
        "target_std": std,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, required=True, help="the folder of imdb and protein")
    parser.add_argument("--out", type=Path, default=Path("data"))
    parser.add_argument("--weighting", choices=WEIGHTINGS, default="counts", help="of the words")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    sets = {
        "imdb": convert_imdb(arguments.shared, arguments.weighting),
        "protein": convert_protein(arguments.shared),
    }
    for name, arrays in sets.items():
        file = arguments.out / f"{name}.npz"
        np.savez_compressed(file, **arrays)
        print(f"{file}: {file.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
