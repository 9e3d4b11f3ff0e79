"""The choice of a backend, also on a GPU, and the sentences that refuse one."""

import contextlib
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from support.kernel_cases import packed, qkv
from torch._subclasses.fake_tensor import FakeTensorMode

from experiments.bench.cases import CASES
from kernels import attention, timeline_attention
from kernels.dispatch import Operation, constant_when_traced, never, only_when_named
from kernels.ops.attention import register_plugin


def two_backends() -> Operation:
    operation = Operation("double")
    operation.register(
        "even", lambda x: 2 * x, refuses=lambda x: "needs an even length" if len(x) % 2 else None
    )
    operation.register("plain", lambda x: x + x)
    operation.register("truth", lambda x: x * 2, suits=only_when_named)
    return operation


def test_auto_takes_the_first_that_serves():
    operation = two_backends()
    assert operation.choose("auto", torch.ones(2)).name == "even"
    assert operation.choose("auto", torch.ones(3)).name == "plain"
    assert operation.choose("truth", torch.ones(2)).name == "truth"
    assert operation(torch.ones(3)).tolist() == [2, 2, 2]


def test_a_named_backend_that_cannot_serve_says_why_and_who_can():
    with pytest.raises(
        ValueError, match=r"'even' cannot serve this call: needs an even length.*plain, truth"
    ):
        two_backends()(torch.ones(3), backend="even")


def test_auto_without_a_willing_backend_gives_every_reason():
    operation = Operation("nothing")
    operation.register("broken", torch.clone, refuses=lambda x: "is broken")
    operation.register("shy", torch.clone, suits=only_when_named)
    with pytest.raises(ValueError, match="broken: is broken; shy: runs only when named"):
        operation(torch.ones(1))


def test_an_unknown_backend_gets_a_suggestion():
    with pytest.raises(ValueError, match=r"unknown backend 'tourch'; did you mean 'torch'\? Known: auto"):
        attention(*qkv(1, 3), backend="tourch")


def test_a_form_that_others_have_is_no_misspelling():
    with pytest.raises(
        ValueError, match=r"attention has no backend 'triton'; with 'auto' every operation takes"
    ):
        attention(*qkv(1, 3), backend="triton")


def test_a_name_is_registered_once():
    with pytest.raises(ValueError, match="'even' is registered twice"):
        two_backends().register("even", torch.clone)


def leave_by_an_error(operation: Operation) -> None:
    odd = torch.ones(3)
    with operation.override("even", refuses=never, run=lambda x: 3 * x):
        assert operation.choose("even", odd).name == "even"
        assert operation(odd).tolist() == [3, 3, 3]
        raise RuntimeError("left")


def test_an_override_lasts_as_long_as_its_block():
    operation, odd = two_backends(), torch.ones(3)
    with pytest.raises(RuntimeError, match="left"):
        leave_by_an_error(operation)
    assert operation.choose("auto", odd).name == "plain"
    assert operation(torch.ones(2)).tolist() == [2, 2]
    assert operation.backends == ("even", "plain", "truth")
    with (
        pytest.raises(ValueError, match="unknown backend 'evem'; did you mean 'even'"),
        operation.override("evem"),
    ):
        pass


@pytest.mark.parametrize("backend", ["varlen", "flash_attn"])
def test_gpu_libraries_refuse_cpu_tensors(backend):
    q, k, v = qkv(1, 4)
    assignment = torch.zeros(1, 4, 4, dtype=torch.long)
    for call in (
        lambda: attention(q, k, v, backend=backend),
        lambda: timeline_attention(q, k, v, assignment, n_timelines=2, backend=backend),
    ):
        with pytest.raises(ValueError, match=r"cannot serve this call: .*(CUDA|not installed).*reference"):
            call()


@pytest.mark.parametrize(("asked", "wanted"), [(0.7, 0.7), (None, 0.5)])
@pytest.mark.parametrize("window", [None, 3])
def test_libraries_for_packed_sequences_are_given_every_option(asked, wanted, window):
    """They need a GPU, so one that is made up stands in; without a scale it is K^-1/2, here of K = 4."""
    seen = []

    def packed_attention(q, k, v, *sizes, **options):
        seen.append((*(x.tolist() if isinstance(x, torch.Tensor) else x for x in sizes), options))
        return q

    operation = Operation("made up")
    plugin = SimpleNamespace(packed_attention=packed_attention, refuses=lambda *_: None)
    register_plugin(operation, "made up", plugin, suits=lambda *_, **__: True)
    q, k, v = qkv(2, 5, width=4, queries=3)
    out = operation(q, k, v, causal=True, window=window, scale=asked, cu_seqlens=None)
    assert torch.equal(out, q)
    assert seen == [([0, 3, 6], [0, 5, 10], 3, 5, {"causal": True, "window": window, "scale": wanted})]


def test_every_call_on_a_cpu_has_a_backend():
    q, k, v = qkv(1, 5)
    for options in ({}, {"window": 2}, {"cu_seqlens": packed(2, 3)}):
        assert torch.equal(attention(q, k, v, **options), attention(q, k, v, backend="torch", **options))


def test_a_constant_of_traced_calls_is_marked_as_the_compiler_marks_one():
    def marked_by_torch():
        return 1

    def marked_here():
        return 1

    assert vars(torch.compiler.assume_constant_result(marked_by_torch)) == vars(
        constant_when_traced(marked_here)
    )


class Chosen(Exception):
    """Raised in place of running the backend."""


def on_cuda(value):
    """The argument of a call with its tensors, shapes so far, as fake tensors of a GPU."""
    if isinstance(value, tuple):
        return tuple(on_cuda(x) for x in value)
    return torch.empty_like(value, device="cuda") if isinstance(value, torch.Tensor) else value


def taken(name: str) -> Callable:
    def run(*_, **__):
        raise Chosen(name)

    return run


def asked(calls) -> list[str]:
    """The backends that `auto` takes for calls on the meta device, were they on a GPU."""
    found = []
    with FakeTensorMode(allow_non_fake_inputs=True), contextlib.ExitStack() as stack:
        for operation in Operation.every:
            for name in operation.backends:
                stack.enter_context(operation.override(name, run=taken(name)))
        for call in calls:
            arguments = on_cuda(call.arguments)
            options = {name: on_cuda(value) for name, value in call.options.items()}
            with pytest.raises(Chosen) as name:
                type(call)(call.operation, arguments, options).run("auto")
            found.append(str(name.value))
    return found


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
# Angles are computed before a form is chosen for rotary positions, which a GPU that is not there cannot.
@pytest.mark.parametrize(
    "case", [CASES[name] for name in CASES if name != "rope"], ids=lambda case: case.name
)
def test_auto_takes_the_kernels(case, dtype):
    calls = case.calls(case.length or 128, 256, torch.device("meta"), dtype)
    assert asked(calls) == ["triton"] * len(calls)
