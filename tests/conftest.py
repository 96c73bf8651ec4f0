"""What all tests share; small networks to test with are in networks.py beside it."""

from __future__ import annotations

import os

# Some virtual machines name AMX among their processor's abilities but do not let programs use it: there bfloat16 fails
# ("could not create a primitive") and takes later products with it. Torch reads this when it is imported.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
