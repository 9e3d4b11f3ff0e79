"""What `auto` takes on a GPU, asked of tensors that say they are on one and have no data."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from experiments.bench.cases import CASES
from kernels.dispatch import Operation


class Chosen(Exception):
    """Raised in place of running the backend."""


def on_cuda(value):
    """The argument of a call with its tensors, shapes so far, as fake tensors of a GPU."""
    if isinstance(value, tuple):
        return tuple(on_cuda(x) for x in value)
    return torch.empty_like(value, device="cuda") if isinstance(value, torch.Tensor) else value


def asked(calls, monkeypatch) -> list[str]:
    """The backends that `auto` takes for calls on the meta device, were they on a GPU."""
    choose, found = Operation.choose, []

    def chosen(self, *args, **options):
        raise Chosen(choose(self, *args, **options).name)

    monkeypatch.setattr(Operation, "choose", chosen)
    with FakeTensorMode(allow_non_fake_inputs=True):
        for call in calls:
            arguments = on_cuda(call.arguments)
            options = {name: on_cuda(value) for name, value in call.options.items()}
            with pytest.raises(Chosen) as name:
                type(call)(call.operation, arguments, options).run("auto")
            found.append(str(name.value))
    return found


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("case", CASES.values(), ids=lambda case: case.name)
def test_auto_takes_the_kernels(case, dtype, monkeypatch):
    calls = case.calls(case.length or 128, 256, torch.device("meta"), dtype)
    assert asked(calls, monkeypatch) == ["triton"] * len(calls)
