"""The comparison of kernels with their definitions (support/triton_cases.py) sees what it has to."""

import pytest
import torch
from support.kernel_cases import normal
from support.triton_cases import LaunchesOnly, assert_kernel_agrees

from kernels import short_conv


def test_the_watch_sees_what_pytorch_computes():
    with LaunchesOnly(), pytest.raises(AssertionError, match="computes mul"):
        torch.ones(2) * 2
    with LaunchesOnly():
        fresh = torch.empty(3)
    assert fresh.isnan().all()


FLOATS = {
    "sort": lambda x: x.sort(),
    "topk": lambda x: x.topk(2),
    "max": lambda x: x.max(0),
    "argsort": lambda x: x.argsort(),
    "comparison": lambda x: x > 0,
    "layer norm": lambda x: torch.nn.functional.layer_norm(x, [4]),
    "var_mean": lambda x: torch.var_mean(x),
    "whole numbers divided": lambda _: torch.arange(4) / 2,
}


@pytest.mark.parametrize("case", FLOATS)
def test_the_watch_sees_what_gives_several_tensors_or_whole_numbers(case):
    x = torch.ones(4, 4)
    with LaunchesOnly(), pytest.raises(AssertionError, match="PyTorch computes"):
        FLOATS[case](x)


def test_the_watch_lets_whole_numbers_and_layouts_pass():
    x = torch.ones(4, 4)
    with LaunchesOnly():
        torch.arange(4).cumsum(0).sort()
        x.t().contiguous().to(torch.float16)[1:].clone().copy_(x[1:])


@pytest.mark.parametrize("lost", [(0,), (1,), (0, 1)], ids=str)
def test_the_comparison_sees_outputs_that_lost_their_gradients(lost):
    def broken(x, weight, backend):
        outputs = short_conv(x, weight, backend=backend)
        return [y.detach() if backend == "triton" and i in lost else y for i, y in enumerate(outputs)]

    inputs = {"x": normal(1, 5, 4), "weight": normal(4, 3)}
    with pytest.raises(AssertionError, match=f"no gradient through o{lost[0]}"):
        assert_kernel_agrees(broken, inputs, torch.float32)
