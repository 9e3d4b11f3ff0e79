"""grouped_linear: one product a group against every row with its own matrix, tracing, cost and errors."""

from functools import partial

import pytest
import torch
from support.kernel_cases import assert_agree, normal

from kernels import grouped_linear
from kernels.autograd import flop_counter

COUNTS = {"mixed": [3, 0, 5, 1], "one group": [0, 9, 0, 0], "even": [2, 2, 2, 3], "single expert": [9]}


def inputs(counts: list[int], dtype: torch.dtype = torch.float64):
    return [normal(sum(counts), 6, dtype=dtype, seed=1), normal(len(counts), 5, 6, dtype=dtype, seed=2)]


@pytest.mark.parametrize("case", COUNTS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["fp64", "fp32"])
def test_groups_equal_the_definition_with_all_gradients(case, dtype):
    call = partial(grouped_linear, counts=torch.tensor(COUNTS[case]))
    pair = [partial(call, backend=backend) for backend in ("torch", "reference")]
    assert_agree(*pair, inputs(COUNTS[case], dtype))


def test_a_group_is_a_linear_layer_of_its_own():
    counts = [4, 5]
    x, weight = inputs(counts)
    parts = [torch.nn.functional.linear(part, w) for part, w in zip(x.split(counts), weight, strict=True)]
    torch.testing.assert_close(grouped_linear(x, weight, torch.tensor(counts)), torch.cat(parts))


def test_other_counts_need_no_other_graph():
    compiled = torch.compile(grouped_linear, fullgraph=True, backend="aot_eager")
    for counts in ([3, 0, 5, 1], [1, 1, 1, 6]):
        pair = [partial(f, counts=torch.tensor(counts)) for f in (compiled, grouped_linear)]
        assert_agree(*pair, inputs(counts))


def test_flops_do_not_depend_on_the_groups():
    """2·M·N·K forward and twice that backward, on the meta device and on a real one."""
    for device in ("meta", "cpu"):
        x, weight = (y.to(device).requires_grad_() for y in inputs([3, 0, 5, 1]))
        with flop_counter() as counter:
            y = grouped_linear(x, weight, torch.tensor([3, 0, 5, 1], device=device))
        assert counter.get_total_flops() == 2 * 9 * 5 * 6
        with flop_counter() as counter:
            y.sum().backward()
        assert counter.get_total_flops() == 4 * 9 * 5 * 6


def test_autocast_chooses_the_dtype():
    x, weight = inputs([3, 0, 5, 1], torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = grouped_linear(x, weight, torch.tensor([3, 0, 5, 1]))
    assert y.dtype == torch.bfloat16


def test_counts_that_do_not_fill_the_rows_are_refused():
    x, weight = inputs([3, 0, 5, 1])
    with pytest.raises(ValueError, match="add up to 8, but there are 9 rows"):
        grouped_linear(x, weight, torch.tensor([3, 0, 5, 0]), backend="reference")
