"""What the tests of Triton kernels share: the comparison with the definition, and the watch over how it came about.

Without a GPU the kernels run in Triton's interpreter (see conftest.py), in fp32 and fp16; on one, in bf16 too.
"""

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from kernels.dispatch import Operation
from support.kernel_cases import normal, rmse_ratio
from support.margins import below

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HALF = pytest.mark.parametrize(
    "dtype",
    [torch.float16, *([torch.bfloat16] if torch.cuda.is_available() else [])],
    ids=lambda dtype: str(dtype).removeprefix("torch."),
)

# The field's criterion: rmse(got − wanted) / rmse(wanted), against the definition in a wider type.
OUTPUT_LIMIT, GRADIENT_LIMIT, GATE_LIMIT = 0.005, 0.008, 0.02
EXACT_LIMIT = 1e-5  # in fp32, of everything

# What PyTorch may do around a kernel: allocate, look at a tensor in another way, copy, and count whole numbers.
_LAYOUT = {
    "alias", "arange", "as_strided", "clone", "copy_", "detach", "empty", "empty_like", "empty_strided", "expand",
    "fill_", "full", "full_like", "lift_fresh", "new_empty", "new_full", "new_zeros", "ones", "permute", "select",
    "slice", "split", "split_with_sizes", "squeeze", "t", "transpose", "unbind", "unsqueeze", "view", "_to_copy",
    "_unsafe_view", "zero_", "zeros", "zeros_like", "_reshape_alias", "set_", "_local_scalar_dense", "unfold",
}  # fmt: skip
_EMPTY = {"empty", "empty_like", "empty_strided", "new_empty"}


class LaunchesOnly(TorchDispatchMode):
    """Fails when PyTorch computes from or to floating-point numbers, and fills fresh memory with NaN.

    So a kernel that leaves work to PyTorch is found, and an element that nobody writes shows.
    """

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        takes = any(_floating(x) for x in tree_leaves((args, kwargs)))  # a sort or a comparison gives none
        result = function(*args, **(kwargs or {}))
        if name in _EMPTY and result.is_floating_point():
            result.fill_(float("nan"))
        elif name in _EMPTY and result.dtype in (torch.int32, torch.int64):
            result.fill_(-(2**30))
        elif name not in _LAYOUT and (takes or any(_floating(x) for x in tree_leaves(result))):
            raise AssertionError(f"PyTorch computes {name} beside the kernel")
        return result


def _floating(x: object) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point()


def unwatched() -> contextlib.AbstractContextManager:
    """While inside, a test may look at numbers in the midst of a call that is watched."""
    return _disable_current_modes()


@contextlib.contextmanager
def kernels_only() -> Iterator[None]:
    """While inside, the torch and reference forms of every operation are refused, and PyTorch only allocates."""
    with contextlib.ExitStack() as stack:
        for operation in Operation.every:
            for name in {"torch", "reference"}.intersection(operation.backends):
                stack.enter_context(
                    operation.override(name, refuses=lambda *_, **__: "only kernels may run here")
                )
        stack.enter_context(LaunchesOnly())
        yield


@contextlib.contextmanager
def tensor_cores() -> Iterator[None]:
    """While inside, the interpreter multiplies as tensor cores do: TF32 keeps 10 bits of a fraction, bf16 is right."""
    import numpy as np
    import triton.language as tl
    from triton._C.libtriton.ir import INPUT_PRECISION
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    plain = InterpreterBuilder.create_dot

    def cut(x: TensorHandle) -> TensorHandle:
        return TensorHandle((x.data.view(np.int32) & -(2**13)).view(np.float32), x.dtype)

    def widened(x: TensorHandle) -> TensorHandle:
        return TensorHandle((x.data.astype(np.uint32) << 16).view(np.float32), tl.float32)

    def create_dot(builder, a, b, d, input_precision, *rest):
        if a.dtype.scalar == tl.bfloat16:
            a, b = widened(a), widened(b)
        elif a.dtype.scalar == tl.float32 and input_precision == INPUT_PRECISION.TF32:
            a, b = cut(a), cut(b)
        return plain(builder, a, b, d, input_precision, *rest)

    with mock.patch.object(InterpreterBuilder, "create_dot", create_dot):
        yield


@contextlib.contextmanager
def maxima_of_a_gpu() -> Iterator[None]:
    """While inside, the interpreter's maxima and minima drop a NaN unless they are told to keep it, as a GPU's do.

    What a GPU makes of a NaN otherwise, a place among numbers or a whole number, is anything: AssertionError.
    """
    if DEVICE == "cuda":
        yield
        return
    import numpy as np
    from triton._C.libtriton.ir import PROPAGATE_NAN
    from triton.runtime.interpreter import InterpreterBuilder, ReduceOps

    plain_clamp, plain_extreme = InterpreterBuilder.create_clampf, ReduceOps.min_max

    def clamp(builder, x, low, high, propagate_nan):
        if propagate_nan == PROPAGATE_NAN.ALL:
            return plain_clamp(builder, x, low, high, propagate_nan)
        return builder.binary_op(builder.binary_op(x, low, np.fmax), high, np.fmin)

    def extreme(reduction, x, val_reduce_op, idx_reduce_op=None):
        assert idx_reduce_op is None or not np.isnan((x[0] if isinstance(x, tuple) else x).handle.data).any()
        with np.errstate(invalid="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of nothing but NaN
            return plain_extreme(reduction, x, val_reduce_op, idx_reduce_op)

    def whole(plain):
        def convert(builder, x, to):
            assert not np.isnan(x.data).any(), "a NaN is made a whole number"
            return plain(builder, x, to)

        return convert

    with contextlib.ExitStack() as stack:
        for name, function in (
            ("create_maxnumf", lambda builder, a, b: builder.binary_op(a, b, np.fmax)),
            ("create_minnumf", lambda builder, a, b: builder.binary_op(a, b, np.fmin)),
            ("create_clampf", clamp),
            ("create_fp_to_si", whole(InterpreterBuilder.create_fp_to_si)),
            ("create_fp_to_ui", whole(InterpreterBuilder.create_fp_to_ui)),
        ):
            stack.enter_context(mock.patch.object(InterpreterBuilder, name, function))
        stack.enter_context(mock.patch.object(ReduceOps, "min_max", extreme))
        yield


def assert_kernel_agrees(
    call: Callable[..., Tensor | Sequence[Tensor | None]],
    inputs: dict[str, Tensor],
    dtype: torch.dtype,
    *,
    keep: Sequence[str] = (),
    gates: Sequence[str] = (),
    fixed: Sequence[str] = (),
    limits: dict[str, float] | None = None,
    exact: float = EXACT_LIMIT,
) -> None:
    """Outputs, states and every gradient of `call(backend="triton", **inputs)` against backend="reference".

    inputs  by name; the reference gets in fp64 the very numbers that the kernel gets in `dtype`
    keep    names that stay fp32 (gates, states)
    gates   names whose gradients have the wider limit
    fixed   names without a gradient
    limits  other limits, by input name or "o0", "o1", … of an output
    exact   the limit of all others in fp32; `of_equal_keys` where a case is badly conditioned

    In fp32 every error must stay below 1e-5 of the size (rmse over rmse), in 16 bit below the field's criterion.
    """
    given = {
        name: x if not x.is_floating_point() else x.to(torch.float32 if name in keep else dtype)
        for name, x in inputs.items()
    }
    precise = {name: x.double() if x.is_floating_point() else x for name, x in given.items()}
    wanted, moving, wanted_gradients = _run(call, precise, "reference", fixed)
    got, _, got_gradients = _run(call, given, "triton", fixed, moving)
    named = {f"o{i}": pair for i, pair in enumerate(zip(got, wanted, strict=True))}
    named |= {name: (got_gradients[name], x) for name, x in wanted_gradients.items()}
    for name, (a, b) in named.items():
        half = (
            OUTPUT_LIMIT
            if name in list(named)[: len(got)]
            else GATE_LIMIT
            if name in gates
            else GRADIENT_LIMIT
        )
        limit = (limits or {}).get(name, exact if dtype == torch.float32 else half)
        assert a.shape == b.shape, name
        assert a.isfinite().all(), f"{name} is not finite"
        error = rmse_ratio(a, b) if b.any() else a.abs().sum()
        below(error, limit, name)


def of_equal_keys(beta: float, tokens: int) -> float:
    """The limit in fp32 where a block of tokens with one key and one β solves with I + β·tril(1, −1).

    A solve in fp32 may lose the matrix's condition times 2^−24 of its result, and a gradient takes two. (Powers of
    the triangle instead of its inverse reach 10⁷ and more times the result: an error near 1.)
    """
    matrix = torch.eye(tokens, dtype=torch.float64) + beta * torch.ones(tokens, tokens).double().tril(-1)
    return 2 * float(torch.linalg.cond(matrix)) * 2.0**-24


def _run(
    call, inputs: dict[str, Tensor], backend: str, fixed: Sequence[str], moving: list[bool] | None = None
) -> tuple[list[Tensor], list[bool], dict[str, Tensor]]:
    """Outputs, which of them have gradients, and gradients by name under fixed output gradients.

    moving: which outputs must have gradients; None: those that do
    """
    leaves = {
        name: x.detach().clone().to(DEVICE).requires_grad_(x.is_floating_point() and name not in fixed)
        for name, x in inputs.items()
    }
    with kernels_only() if backend == "triton" else contextlib.nullcontext():
        outputs = call(**leaves, backend=backend)
    outputs = [x for x in ([outputs] if isinstance(outputs, Tensor) else outputs) if x is not None]
    moving = [x.requires_grad for x in outputs] if moving is None else moving
    sources = [x for x, moves in zip(outputs, moving, strict=True) if moves]
    lost = [f"o{i}" for i, x in enumerate(outputs) if moving[i] and not x.requires_grad]
    assert not lost, f"no gradient through {', '.join(lost)}"
    if not sources:
        return [x.detach() for x in outputs], moving, {}
    gradients = [normal(*x.shape, seed=90 + i).to(x) for i, x in enumerate(sources)]
    wanted = {name: x for name, x in leaves.items() if x.requires_grad}
    with kernels_only() if backend == "triton" else contextlib.nullcontext():
        found = torch.autograd.grad(sources, list(wanted.values()), gradients)
    return [x.detach() for x in outputs], moving, dict(zip(wanted, found, strict=True))
