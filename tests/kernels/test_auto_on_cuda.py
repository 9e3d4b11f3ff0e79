"""What `auto` takes on a GPU, asked of tensors that say they are on one and have no data."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from experiments.bench.cases import CASES
from experiments.bench.cases.attention import sparse
from experiments.bench.inputs import InputFactory
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
    wanted = ["torch" if few_keys(call) else "triton" for call in calls]
    assert asked(calls, monkeypatch) == wanted


def few_keys(call) -> bool:
    """Whether a call is of the sparse attention that selects all of its 128 keys, for three query heads to one."""
    return call.operation == "sparse_attention" and call.arguments[0].shape[2] == 12


@pytest.mark.parametrize(
    ("length", "heads", "wanted"), [(16_384, 12, "torch"), (16_448, 12, "triton"), (2048, 64, "triton")]
)
def test_sparse_attention_takes_its_kernel_where_keys_are_many_to_those_selected(
    length, heads, wanted, monkeypatch
):
    """2,048 keys of so many, 12 query heads to four KV heads or 64 to one."""
    sizes = (12, 4, 64) if heads == 12 else (64, 1, 128)
    calls = sparse(InputFactory(1, length, torch.device("meta"), torch.bfloat16), *sizes)
    assert asked(calls, monkeypatch) == [wanted]
