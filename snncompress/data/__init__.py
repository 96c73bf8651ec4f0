"""Data sets, a file a source, and the batches that training takes from them."""

from snncompress.data.augment import AUGMENTATIONS
from snncompress.data.batches import Batches, IterableBatches
from snncompress.data.dataset import Dataset, Images, Normalization, TensorImages
from snncompress.data.sources import load_data
from snncompress.data.streaming import StreamedImages

__all__ = [
    "AUGMENTATIONS",
    "Batches",
    "Dataset",
    "Images",
    "IterableBatches",
    "Normalization",
    "StreamedImages",
    "TensorImages",
    "load_data",
]
