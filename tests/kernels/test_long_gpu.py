"""On a GPU every kernel at 131,072 tokens in bf16: finite, the same bits at a second run, memory linear in T."""

import gc
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from experiments.bench import timing
from experiments.bench.cases import CASES, Call, Case

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

LENGTH = 131_072

MATRICES = {"delta_rule, KDA": 2, "delta_rule, a gate a head": 2}
"""How many bf16 matrices T × T the peak stays below, where it is not one: with 96 and 64 heads of 128 channels a few
tensors [T, H, 128] and their gradients are more than that. By their sizes 61 and 42 GB, beside 16 and 3 of inputs."""

REPEATS_IF_ASKED = {"timeline_attention"}
"""Cases with query gradients that PyTorch's flash attention adds atomically, but in deterministic algorithms."""

SWEPT = [name for name, case in CASES.items() if case.length is None]


def drawn(case: Case, length: int, device: torch.device, dtype: torch.dtype) -> list[Call]:
    """The case's calls on one sequence."""
    torch.manual_seed(0)
    return case.calls(length, length, device, dtype)


def results(case: Case, calls: list[Call]) -> list[Tensor]:
    """Outputs and gradients of the calls' Triton forms; without a backward outputs and the inputs after it."""
    if not case.backward:
        with torch.no_grad():
            outputs = [call.run("triton") for call in calls]
        return [
            x for x in tree_leaves((outputs, [call.arguments for call in calls])) if isinstance(x, Tensor)
        ]
    leaves = [x for call in calls for x in call.tensors() if x.requires_grad]
    outputs = [x for x in tree_leaves([call.run("triton") for call in calls]) if isinstance(x, Tensor)]
    moving = [x for x in outputs if x.requires_grad]
    torch.manual_seed(1)
    gradients = torch.autograd.grad(moving, leaves, [torch.randn_like(x) for x in moving], allow_unused=True)
    return [x.detach() for x in outputs] + [x for x in gradients if x is not None]


def fresh(case: Case, calls: list[Call]) -> list[Call]:
    """The calls; where there is no backward with copies of their tensors, for a step writes into its cache."""
    if case.backward:
        return calls
    copy = lambda x: x.detach().clone() if isinstance(x, Tensor) else x  # noqa: E731
    return [Call(call.operation, tree_map(copy, call.arguments), call.options) for call in calls]


def twice(case: Case, calls: list[Call], device: torch.device) -> tuple[list[Tensor], list[Tensor], int]:
    """Results of two runs, in main memory, and the peak bytes of the second: the first may measure configurations."""
    first = [x.cpu() for x in results(case, fresh(case, calls))]
    copies, second = fresh(case, calls), []
    peak = timing.peak_memory(kept(second, lambda: results(case, copies)), device)
    return first, [x.cpu() for x in second], peak


def kept(where: list[Tensor], call: Callable[[], list[Tensor]]) -> Callable[[], None]:
    return lambda: where.extend(call())


@pytest.fixture
def repeating(request) -> Iterator[str]:
    """The name of a case, with deterministic algorithms where its bits repeat by them alone."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(before or request.param in REPEATS_IF_ASKED)
    yield request.param
    torch.use_deterministic_algorithms(before)


@pytest.mark.parametrize("repeating", SWEPT, indirect=True)
def test_long_sequences(repeating):
    name = repeating
    case, device = CASES[name], torch.device("cuda")
    peaks = {}
    for length in (LENGTH // 2, LENGTH):
        first, second, peaks[length] = twice(case, drawn(case, length, device, torch.bfloat16), device)
        gc.collect()
        torch.cuda.empty_cache()
    assert all(x.isfinite().all() for x in first)
    assert [torch.equal(a, b) for a, b in zip(first, second, strict=True)] == [True] * len(first)
    assert peaks[LENGTH] <= 2.2 * peaks[LENGTH // 2]
    assert peaks[LENGTH] < MATRICES.get(name, 1) * 2 * LENGTH**2
