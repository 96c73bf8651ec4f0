"""torchvision, imported so that it works beside a torch built for another device.

torchvision's wheel for CUDA cannot load its C++ library beside a torch for the CPU, and its import then
stops with ``operator torchvision::nms does not exist``: it describes two operators of that library
without asking whether they are there. Classifiers and data sets need neither of them, so they are
declared here (without an implementation) and the import is repeated. Where torchvision imports by
itself, nothing is touched.

    from snncompress.vision import torchvision
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

import torch

__all__ = ["torchvision"]

MISSING_OPERATORS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_declarations: list[torch.library.Library] = []  # declarations last as long as their library object


def _import_torchvision() -> Any:
    try:
        return importlib.import_module("torchvision")
    except RuntimeError as error:
        if "operator torchvision::" not in str(error):
            raise
    library = torch.library.Library("torchvision", "FRAGMENT")
    for schema in MISSING_OPERATORS:
        library.define(schema)
    _declarations.append(library)
    # The failed import leaves submodules behind that belong to a package which is gone.
    for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        del sys.modules[name]
    return importlib.import_module("torchvision")


torchvision = _import_torchvision()
