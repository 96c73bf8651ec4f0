"""Our FLOPs beside those of fvcore and ptflops, for torchvision's classifiers with random weights.

    pip install "snncompress[bench]"
    python -m benchmarks.count_flops                            # all but the largest, a few minutes on one thread
    python -m benchmarks.count_flops --models resnet18,vit_b_16

One image each; all three count one for a multiplication and the addition that follows it. A difference is explained
only if the numbers agree to the last digit:

- fvcore also counts norms and pooling; its convolutions and matrix products are taken by name. It does not know
  ``scaled_dot_product_attention``: what that multiplies, 2·queries·keys·width, is counted beside it. Its ``einsum`` is
  read from a text of numpy's, which has four digits.
- ptflops (its ATen backend) adds one for every output of a layer that has a bias, and does not know fused attention
  either.
"""

from __future__ import annotations

import argparse
import logging
import sys
import warnings
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from tabulate import tabulate
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from snncompress.measure.cost import measure_cost
from snncompress.vision import torchvision

LARGE = ("vit_l_16", "vit_l_32", "vit_h_14", "regnet_y_128gf", "convnext_large", "vgg19_bn", "vgg16_bn", "vgg13_bn")
SIDES = {"inception_v3": 299}
PRODUCTS = ("conv", "linear", "matmul", "bmm", "addmm", "einsum")  # as fvcore calls them


class Bystander(TorchFunctionMode):
    """Counts what the other counters add or miss: multiplications of fused attention, and outputs with a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = 0
        self.biased = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        if func is F.scaled_dot_product_attention:
            self.attention += 2 * args[0].numel() * args[1].shape[-2]  # queries times keys, and weights times values
        elif func is F.multi_head_attention_forward:  # hides what it calls; tokens come first there
            self.attention += 2 * args[0].numel() * args[1].shape[0]
            self.biased += sum(each.numel() for each in args[:3]) + output[0].numel()
        elif func in (F.linear, F.conv2d) and (args[2:] or (kwargs or {}).get("bias") is not None):
            self.biased += output.numel() if (args[2] if args[2:] else kwargs["bias"]) is not None else 0
        return output


@dataclass(frozen=True)
class Line:
    """What three counters say of a model, and what would explain a difference."""

    model: str
    ours: int
    uncounted: int
    products: int
    einsum: int
    everything: int
    ptflops: int
    attention: int
    biased: int

    def explain_fvcore(self) -> str:
        """Why its products are not ours."""
        missing = self.ours - self.products
        if missing == 0:
            return "equal"
        if missing == self.attention:
            return "lacks fused attention"
        if abs(missing) <= 1e-3 * self.einsum:
            return f"rounds its einsum: {missing:+,}"
        return f"unexplained: {missing:+,}"

    def explain_ptflops(self) -> str:
        """Why its count is not ours."""
        more = self.ptflops - self.ours
        if more == 0:
            return "equal"
        if more == self.biased:
            return "adds biases"
        if more == self.biased - self.attention:
            return "adds biases, lacks fused attention"
        return f"unexplained: {more:+,}"


def count(name: str) -> Line:
    from fvcore.nn import FlopCountAnalysis
    from ptflops import get_model_complexity_info

    more = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
    model: nn.Module = torchvision.models.get_model(name, weights=None, **more).eval()
    shape = (3, SIDES.get(name, 224), SIDES.get(name, 224))
    cost = measure_cost(model, shape)
    image: Tensor = torch.zeros(1, *shape)
    analysis = FlopCountAnalysis(model, image).unsupported_ops_warnings(False).uncalled_modules_warnings(False)
    operators = analysis.by_operator()
    model.to("meta")  # the others need no numbers
    theirs, _ = get_model_complexity_info(
        model, shape, as_strings=False, print_per_layer_stat=False, verbose=False, backend="aten"
    )
    with torch.no_grad(), Bystander() as seen:
        model(image.to("meta"))
    return Line(
        name, cost.flops, len(cost.uncounted), int(sum(operators[key] for key in PRODUCTS)), int(operators["einsum"]),
        int(sum(operators.values())), int(theirs), seen.attention, seen.biased,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", help="names of torchvision, commas between; all but the largest when absent")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    for name in ("fvcore", "fvcore.nn.jit_analysis"):
        logging.getLogger(name).setLevel(logging.ERROR)
    every = torchvision.models.list_models(module=torchvision.models)
    names = arguments.models.split(",") if arguments.models else [name for name in every if name not in LARGE]
    rows = []
    for name in names:
        print(f"{len(rows) + 1} of {len(names)}: {name}", file=sys.stderr)
        line = count(name)
        rows.append([
            f"`{line.model}`", f"{line.ours:,}", line.uncounted, f"{line.products:,}", line.explain_fvcore(),
            f"{line.everything:,}", f"{line.ptflops:,}", line.explain_ptflops(),
        ])  # fmt: skip
    header = ["model", "ours", "not counted", "fvcore: products", "", "fvcore: all", "ptflops", ""]
    print(tabulate(rows, header, tablefmt="pipe", disable_numparse=True))


if __name__ == "__main__":
    main()
