"""Kernels in tiles of 16: several tiles in every axis at sizes that the interpreter runs in a second.

A tile that is dropped, taken twice or added to the wrong sum shows; with the tiles of a GPU such calls would be long.
"""

import pytest
import torch
import triton
from support import operation_cases as cases
from support import tile_cases
from support.margins import below
from support.operation_cases import Call, apart, as_dtype, run, tensors_of, without_state

import kernels
from kernels.triton_common import interpreted
from kernels.triton_common.tuning import Tuned

TILE = 16
LIMIT = 2e-5
FIXED = ("delta_rule._keys_and_gates", "delta_rule._values", "delta_rule._prepare", "delta_rule._operands")
"""Kernels whose tiles of channels follow from how they cut a chunk."""


def small(tuned: Tuned, _args: tuple, _options: dict) -> triton.Config:
    """The safest configuration with tiles of at most 16."""
    safest = tuned.configs[0]
    sizes = {
        name: size if tuned.name in FIXED and name != "BV" else min(size, TILE)
        for name, size in safest.kwargs.items()
        if name.startswith(("B", "R"))
    }
    sizes = {**safest.kwargs, **{name: size for name, size in sizes.items() if name != "RUN"}}
    if "SPLIT" in sizes:  # programs that divide the rows of a block
        sizes["SPLIT"] = max(2, sizes["SPLIT"])
    return triton.Config(sizes, num_warps=safest.num_warps, num_stages=safest.num_stages)


def of_each_operation(calls) -> list:
    """The calls, of which the first of each operation is for every day and the others are long."""
    found, known = [], set()
    for call in calls:
        found.append(
            pytest.param(
                call, id=call.title, marks=[pytest.mark.long] if call.operation.__name__ in known else []
            )
        )
        known.add(call.operation.__name__)
    return found


@pytest.mark.slow
@pytest.mark.skipif(not interpreted(), reason="compilers have a smallest tile of their own")
@pytest.mark.parametrize("call", of_each_operation(tile_cases.calls()))
def test_several_tiles_in_every_axis(call, monkeypatch):
    monkeypatch.setattr(Tuned, "_known", small)
    narrow = as_dtype(call, torch.float32)
    narrow = Call(call.name, call.operation, narrow.tensors, narrow.options, call.learned)
    found, wanted = run(narrow, "triton"), run(call, "reference")
    for name, right in wanted.items():
        if right.is_floating_point():
            size = right.norm().clamp_min(1e-3)
            below((found[name].double() - right).norm() / size, LIMIT, name)
        else:
            assert torch.equal(found[name], right), name


WITHOUT_KERNELS = (kernels.attention, kernels.grouped_linear, kernels.sparse_step, cases.path_extend)
FIRST = {call.operation: call for call in reversed(cases.calls())}
STATES = [call for family in cases.WITH_STATES for call in family() if "update" not in call.options]
FROM_STATES = [call for call in STATES if "initial_state" in {**call.tensors, **call.options}]
APART = [*(call for operation, call in FIRST.items() if operation not in WITHOUT_KERNELS), *FROM_STATES]


@pytest.mark.slow
@pytest.mark.skipif(not interpreted(), reason="on a GPU kernels are compiled")
@pytest.mark.parametrize("call", of_each_operation(APART))
def test_tensors_may_be_parts_of_longer_ones_in_kernels_too(call):
    narrow = apart(as_dtype(call, torch.float32))
    with torch.no_grad():
        found, wanted = tensors_of(narrow("triton")), tensors_of(call("reference"))
    for x, right in zip(found, wanted, strict=True):
        right = right.double()
        below((x.double() - right).norm() / right.norm().clamp_min(1e-3), LIMIT)


@pytest.mark.skipif(not interpreted(), reason="on a GPU kernels are compiled")
@pytest.mark.parametrize("call", FROM_STATES, ids=lambda call: call.title)
def test_kernels_return_no_state_where_none_is_asked_for(call):
    narrow = as_dtype(call, torch.float32)
    with torch.no_grad():
        (o, state), (alone, none) = narrow("triton"), without_state(narrow)("triton")
    assert none is None
    assert state is not None
    assert torch.equal(alone, o)
