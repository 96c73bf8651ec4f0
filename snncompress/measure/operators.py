"""Which operators may hold convolutions or matrix products that the flop counter does not know.

What the counter counts is counted. Of all others, those are free of such products that only move, compare, pool or
normalize values: views, and what torch itself tags as pointwise, as a reduction, or as one of its core operators (the
core ones that multiply are all counted, but for ``NOT_FREE``). Anything else, such as an operator of another library,
is named in the report rather than taken for zero.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

FREE_TAGS = {torch.Tag.pointwise, torch.Tag.core, torch.Tag.inplace_view}
if hasattr(torch.Tag, "reduction"):  # newer versions of torch
    FREE_TAGS.add(torch.Tag.reduction)
# Core operators that multiply matrices inside, or do as much work.
NOT_FREE = {"_cdist_forward", "_pdist_forward", "_fft_r2c", "_fft_c2r", "_fft_c2c"}
# Operators without those tags that move values, make new ones, pool or normalize.
FREE = {
    "_assert_async", "_fused_rms_norm", "_prelu_kernel", "_safe_softmax", "_unsafe_index", "_unsafe_index_put",
    "_unsafe_view", "_weight_norm_interface", "adaptive_max_pool2d", "adaptive_max_pool3d", "bernoulli",
    "channel_shuffle", "copy", "cummax", "cummin", "empty_like", "eye", "fill", "fractional_max_pool2d", "glu",
    "hardswish", "im2col", "index_add", "index_copy", "index_fill", "is_same_size", "lift", "lift_fresh_copy",
    "linalg_vector_norm", "linspace", "log_sigmoid_forward", "logcumsumexp", "masked_fill", "max_unpool2d",
    "median", "mode", "native_batch_norm", "new_empty", "new_empty_strided", "new_full", "new_ones", "new_zeros",
    "normal", "ones", "ones_like", "pixel_shuffle", "pixel_unshuffle", "rand_like", "randint", "randint_like",
    "randn_like", "roll", "rrelu_with_noise", "stack", "std", "std_mean", "take", "trace", "tril", "triu",
    "uniform", "unique_consecutive", "unsafe_split", "var_mean", "zero", "zeros", "zeros_like",
}  # fmt: skip
FREE_BEGINNINGS = ("upsample_", "_upsample_", "sym_")
OUR_OWN = ("prim", "profiler")  # namespaces of torch that compute nothing


def is_free(operator: Any) -> bool:
    """Whether an operator that the flop counter does not know is free of convolutions and matrix products."""
    if operator.namespace in OUR_OWN:
        return True
    if operator.namespace != "aten":
        return False
    name = operator._schema.name.partition("::")[2].removesuffix("_")  # relu_ is as free as relu
    if name in NOT_FREE:
        return False
    views = any(value.alias_info is not None and not value.alias_info.is_write for value in operator._schema.returns)
    return views or name in FREE or name.startswith(FREE_BEGINNINGS) or bool(FREE_TAGS & _tags(operator, name))


def _tags(operator: Any, name: str) -> set[torch.Tag]:
    """Its own tags, and those of what it does in place."""
    plain = getattr(torch.ops.aten, name, operator.overloadpacket)
    return set(operator.tags).union(*(getattr(plain, overload).tags for overload in plain.overloads()))


class UnknownOperators(TorchDispatchMode):
    """Calls ``found`` with the name of every operator that runs and may multiply uncounted.

    Entered before the flop counter, so that it sees what the counter makes of operators that it takes apart.
    """

    def __init__(self, found: Any) -> None:
        super().__init__()
        self.found = found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._overloadpacket not in flop_registry and not is_free(func):
            self.found(func._schema.name.replace("::", "."))
        return func(*args, **(kwargs or {}))
