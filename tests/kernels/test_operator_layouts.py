"""Operators return what compilers were told, and every operation is one graph."""

import dataclasses
import importlib
import pkgutil
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support import operation_cases
from support import operation_cases as cases
from support.kernel_cases import normal
from support.operation_cases import Call, run
from torch import Tensor
from torch._library.custom_ops import CustomOpDef
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

import kernels
from kernels import ops
from kernels.ops.sparse_attention.torch_form import sparse_attention_op


def layout(x: Tensor) -> tuple:
    """What is promised of x; strides of axes of one place, or of no numbers, mean nothing."""
    strides = [stride for size, stride in zip(x.shape, x.stride(), strict=True) if size > 1 and x.numel()]
    return x.shape, x.dtype, strides


class Promises(TorchDispatchMode):
    """Compares the results of our operators with what they say of them without computing."""

    def __init__(self) -> None:
        super().__init__()
        self.seen, self.broken = set(), {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if func.namespace == "archzoo":
            self.seen.add(func._schema.name)
            with FakeTensorMode() as mode:
                promised = func(*tree_map_only(Tensor, mode.from_tensor, args), **(kwargs or {}))
            pairs = zip(tree_leaves(promised), tree_leaves(out), strict=True)
            if wrong := [(layout(a), layout(b)) for a, b in pairs if layout(a) != layout(b)]:
                self.broken[func._schema.name] = wrong
        return out


def operators() -> set[str]:
    """The names of all operators that PyTorch's forms define."""
    modules = (m.name for m in pkgutil.walk_packages(ops.__path__, "kernels.ops.") if "triton" not in m.name)
    found = (x for name in modules for x in vars(importlib.import_module(name)).values())
    return {x._qualname for x in found if isinstance(x, CustomOpDef)}


ELSEWHERE = {
    "archzoo::sparse_attention",  # differentiates by torch.func, which no dispatch mode sees through
    "archzoo::sparse_attention_backward",
    "archzoo::segment_attention",  # these three run on sizes alone
    "archzoo::segment_attention_backward",
    "archzoo::lightning_topk",
    "archzoo::ranged_attention",  # of Numba's form, which has tests of its own
    "archzoo::ranged_attention_backward",
    "archzoo::nsa_chosen_blocks",
}


def apart(x: Tensor) -> Tensor:
    """x as a part of a longer tensor."""
    return torch.cat([x, x[:, :1]], 1)[:, : x.shape[1]]


def swapped(first: int, second: int) -> Callable[[Tensor], Tensor]:
    """x in memory in which two axes have changed places, as a transposed product of a layer has."""

    def change(x: Tensor) -> Tensor:
        return x.transpose(first, second).contiguous().transpose(first, second) if x.dim() > second else x

    return change


def of_all(change: Callable[[Tensor], Tensor]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """The change of all tensors of a call that have two axes or more."""
    return lambda tensors: tree_map_only(Tensor, lambda x: change(x) if x.dim() > 1 else x, tensors)


OTHERWISE = [of_all(apart), of_all(swapped(1, 2)), of_all(swapped(-1, -2))]


def test_results_lie_as_promised_also_where_inputs_lie_otherwise():
    calls = [call for call in operation_cases.calls() if not gathers(call)]
    calls += [
        dataclasses.replace(call, tensors=changed(call.tensors)) for call in calls for changed in OTHERWISE
    ]
    with Promises() as promises:
        for call in calls:
            operation_cases.run(call, "torch")
    assert not promises.broken
    assert promises.seen == operators() - ELSEWHERE


def gathers(call: operation_cases.Call) -> bool:
    """Whether a call goes by way of `sparse_attention`."""
    if call.operation is not kernels.indexed_attention:
        return call.operation is kernels.sparse_attention
    return "cu_seqlens" in call.options or call.tensors["q"].shape[1] != call.tensors["k"].shape[1]


def test_sparse_attention_keeps_what_it_promises_to_pytorch():
    q, k, v = (normal(1, 12, heads, width).requires_grad_() for heads, width in ((4, 8), (2, 8), (2, 6)))
    indices = torch.arange(3, dtype=torch.int32).expand(1, 12, 3).contiguous()
    torch.library.opcheck(sparse_attention_op, (q, k, v, indices, 0.3))


FIRST = {(call.operation, "cu_seqlens" in call.options): call for call in reversed(cases.calls())}


@pytest.mark.slow
@pytest.mark.parametrize("call", FIRST.values(), ids=lambda call: call.title)
def test_an_operation_is_one_graph(call: Call):
    compiled = torch.compile(call.operation, fullgraph=True, backend="aot_eager")
    found, wanted = run(dataclasses.replace(call, operation=compiled), None), run(call, None)
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-10)
