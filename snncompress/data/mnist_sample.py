"""A part of MNIST that comes with the package, for the demo, the tests and a first look.

``mnist-sample``: 4,000 + 1,000 of MNIST's digits, embedded in the package

Its images are real ones, as many of each digit, drawn by ``benchmarks/make_sample.py``;
their licence (CC BY-SA 3.0) and authors are named in ``sample/LICENSE``.
"""

from __future__ import annotations

from importlib.resources import as_file, files

from snncompress.data.dataset import Normalization
from snncompress.data.npz import hold, read_npz
from snncompress.data.request import DataRequest, Parts


def load(request: DataRequest) -> Parts:
    """Loads the embedded sample."""
    with as_file(files("snncompress.data") / "sample" / "mnist.npz") as file:
        train, test = read_npz(file)
    assert test is not None
    classes = tuple("0123456789")
    return Parts(classes, Normalization.parse("mnist", 1), hold(request, train), None, hold(request, test))
