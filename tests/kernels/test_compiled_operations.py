"""Every operation compiles into one graph that computes the same, of batches and of packed sequences."""

import dataclasses

import pytest
import torch
from support import operation_cases as cases
from support.operation_cases import Call, run

FIRST = {(call.operation, "cu_seqlens" in call.options): call for call in reversed(cases.calls())}


@pytest.mark.slow
@pytest.mark.parametrize("call", FIRST.values(), ids=lambda call: call.title)
def test_an_operation_is_one_graph(call: Call):
    compiled = torch.compile(call.operation, fullgraph=True, backend="aot_eager")
    found, wanted = run(dataclasses.replace(call, operation=compiled), None), run(call, None)
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-10)
