"""nsa_attention's Triton kernels against the definition: the three branches, the choice, packing, odd sizes."""

from functools import partial

import pytest
import torch
from kernel_cases import normal, packed
from torch import Tensor
from triton_cases import DEVICE, HALF, assert_kernel_agrees

from kernels import nsa_attention

SMALL = {"block_size": 4, "stride": 2, "select_size": 4, "n_select": 4, "window": 5}


def inputs(
    batch, time, heads=2, kv_heads=1, width=16, value_width=16, queries=None, blocks=None, rotated=True
) -> dict[str, Tensor]:
    """q, q_rotated, k and v of three branches, gates; as many compressed blocks as stride 2 can need."""
    blocks = max(1, time // 2) if blocks is None else blocks
    queries = queries or time
    made = {"q": normal(batch, queries, heads, width, seed=1)}
    if rotated:
        made["q_rotated"] = normal(batch, queries, heads, width, seed=2)
    for seed, (name, length) in enumerate((("cmp", blocks), ("slc", time), ("win", time))):
        made[f"k_{name}"] = normal(batch, length, kv_heads, width, seed=3 + seed)
        made[f"v_{name}"] = normal(batch, length, kv_heads, value_width, seed=6 + seed)
    return {**made, "gates": torch.sigmoid(normal(batch, queries, heads, 3, seed=9))}


def call(*, q, k_cmp, v_cmp, k_slc, v_slc, k_win, v_win, gates, **options) -> Tensor:
    """The operation, with its tensors by name."""
    options = {name: x.to(DEVICE) if isinstance(x, Tensor) else x for name, x in options.items()}
    branches = (k_cmp, v_cmp), (k_slc, v_slc), (k_win, v_win)
    return nsa_attention(q, *branches, gates, **{**SMALL, **options})


def only(branch: int, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The inputs with the gate of one branch 1 and the others 0."""
    gates = torch.zeros_like(tensors["gates"])
    return {**tensors, "gates": gates.index_fill_(-1, torch.tensor(branch), 1)}


CASES = {
    "plain": (inputs(1, 21), {}),
    "one query for all branches": (inputs(1, 13, rotated=False), {}),
    "packed": (inputs(1, 28), {"cu_seqlens": packed(17, 0, 1, 4, 6)}),
}


@pytest.mark.parametrize("case", CASES)
def test_kernels_equal_the_definition(case):
    tensors, options = CASES[case]
    assert_kernel_agrees(partial(call, **options), tensors, torch.float32)
