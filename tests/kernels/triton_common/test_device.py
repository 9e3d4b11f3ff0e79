"""Sums in a fixed order."""

import pytest
import torch
from support.kernel_cases import normal
from support.triton_cases import DEVICE

from kernels.triton_common import sum_rows


@pytest.mark.parametrize("shape", [(0, 3), (1, 3), (2, 2, 1100), (33, 70), (5, 2, 3)], ids=str)
def test_sums_of_parts(shape):
    parts = normal(*shape, dtype=torch.float32).to(DEVICE)
    torch.testing.assert_close(sum_rows(parts, torch.float32), parts.sum(0), rtol=1e-5, atol=1e-5)
