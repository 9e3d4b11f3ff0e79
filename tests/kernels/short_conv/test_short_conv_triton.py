"""short_conv's Triton kernels against the definition: taps, states, packing, activation, odd widths."""

from functools import partial

import pytest
import torch
from support.kernel_cases import normal, packed, rmse_ratio
from support.margins import below
from support.triton_cases import DEVICE, EXACT_LIMIT, HALF, OUTPUT_LIMIT, assert_kernel_agrees, kernels_only
from torch.utils._python_dispatch import TorchDispatchMode

from kernels import short_conv, short_conv_heads

# batch, time, width, taps, whether a state comes in, options; a chunk has 64 tokens in rows of 8, a tile 64 channels.
# The interpreter's time goes by the number of programs: few sequences, few chunks.
CALLS = {
    "plain": (1, 70, 70, 4, False, {}),
    "one token": (2, 1, 16, 4, True, {"activation": "silu"}),
    "fewer tokens than taps": (1, 2, 5, 4, True, {"activation": "silu"}),
    "two sequences": (2, 66, 5, 3, True, {}),
    "one tap": (2, 7, 5, 1, False, {"activation": "silu"}),
    "packed": (1, 70, 17, 3, True, {"cu_seqlens": packed(65, 0, 1, 4), "activation": "silu"}),
}


@pytest.mark.parametrize("case", CALLS)
def test_kernels_equal_the_definition(case):
    compare(case, torch.float32)


@pytest.mark.parametrize("asked", [0, 1], ids=["outputs", "states"])
def test_gradients_of_either_output_alone(asked):
    """The other's gradient is then no tensor of zeros, but none."""
    given = [normal(1, 9, 5, seed=1), normal(5, 3, seed=2), normal(1, 5, 2, seed=3)]
    found, wanted = [], []
    for backend, gradients in (("triton", found), ("torch", wanted)):
        x, weight, state = leaves = [y.float().to(DEVICE).requires_grad_() for y in given]
        out = short_conv(x, weight, state=state, activation="silu", backend=backend)[asked]
        gradients += torch.autograd.grad((out * out).sum(), leaves, allow_unused=True, materialize_grads=True)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@HALF
@pytest.mark.slow
def test_half_precision(dtype):
    compare("packed", dtype)


class AllocatesOnly(TorchDispatchMode):
    """Fails when PyTorch does anything but make room, and what the interpreter does to launch a kernel."""

    ALLOWED = frozenset({"empty", "detach", "alias", "new_empty", "set_", "copy_"})

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        assert function.overloadpacket.__name__ in self.ALLOWED, function
        return function(*args, **(kwargs or {}))


# The states of 40 taps do not fill their tile, those of 1 are empty; 70 channels are more than a tile.
@pytest.mark.parametrize("activation", [None, "silu"])
@pytest.mark.parametrize("with_state", [True, False], ids=["state", "start"])
@pytest.mark.parametrize("taps", [1, 2, 3, 4, 5, 17, 40])
def test_one_token(taps, with_state, activation):
    compare_step(taps, with_state, activation, torch.float32)


@HALF
def test_one_token_in_half_precision(dtype):
    compare_step(4, True, "silu", dtype)


def compare_step(taps: int, with_state: bool, activation: str | None, dtype: torch.dtype) -> None:
    x, weight = normal(2, 1, 70, seed=1).to(DEVICE, dtype), normal(70, taps, seed=2).to(DEVICE, dtype)
    state = normal(2, 70, taps - 1, seed=3).to(DEVICE, dtype) if with_state else None
    options = {"activation": activation, "state": state}
    with kernels_only():
        y, after = short_conv(x, weight, backend="triton", **options)
    options["state"] = state if state is None else state.double()
    wanted, moved = short_conv(x.double(), weight.double(), backend="reference", **options)
    assert y.dtype == after.dtype == dtype
    assert y.shape == wanted.shape
    below(rmse_ratio(y, wanted), EXACT_LIMIT if dtype == torch.float32 else OUTPUT_LIMIT)
    assert torch.equal(after.double(), moved)


def test_a_step_is_one_kernel_and_nothing_else():
    """A part of a wider projection, the weight a parameter, the state in another dtype: nothing is copied."""
    x = normal(2, 1, 48, dtype=torch.float32).to(DEVICE)[..., 16:32]
    weight = torch.nn.Parameter(normal(16, 4, dtype=torch.float32, seed=1).to(DEVICE))
    state = normal(2, 16, 3, dtype=torch.float32, seed=2).to(DEVICE).half()
    with torch.no_grad(), AllocatesOnly():
        y, after = short_conv(x, weight, state=state, backend="triton")
    wanted, moved = short_conv(x, weight, state=state, backend="reference")
    torch.testing.assert_close(y, wanted, rtol=1e-5, atol=1e-6)
    assert torch.equal(after, moved)


@pytest.mark.parametrize("name", ["x", "weight", "state"])
def test_a_step_has_gradients_for_whichever_input_alone_asks_for_them(name):
    given = {"x": normal(2, 1, 16), "weight": normal(16, 4), "state": normal(2, 16, 3)}
    given = {name: x.float().to(DEVICE) for name, x in given.items()}
    given[name].requires_grad_()
    y, _ = short_conv(**given, backend="triton")
    assert y.requires_grad


def compare(case: str, dtype: torch.dtype) -> None:
    batch, time, width, taps, with_state, options = CALLS[case]
    cu_seqlens = options.get("cu_seqlens")
    inputs = {"x": normal(batch, time, width, seed=1), "weight": normal(width, taps, seed=2)}
    if with_state:
        sequences = batch if cu_seqlens is None else len(cu_seqlens) - 1
        inputs["state"] = normal(sequences, width, taps - 1, seed=3)
    options = {name: x.to(DEVICE) if isinstance(x, torch.Tensor) else x for name, x in options.items()}
    assert_kernel_agrees(partial(short_conv, **options), inputs, dtype)


# batch, time, heads, their width, taps or None, whether a state comes in, options
HEADS = {
    "a batch": (2, 66, (2, 1, 1), 5, 4, False, {}),
    "packed, states": (1, 70, (1, 1, 2), 17, 3, True, {"cu_seqlens": packed(65, 0, 1, 4)}),
    "no convolution": (2, 9, (1, 2, 2), 4, None, False, {}),
}


@pytest.mark.parametrize("case", HEADS)
def test_kernels_of_heads_equal_the_definition(case):
    compare_heads(case, torch.float32)


@HALF
def test_heads_in_half_precision(dtype):
    compare_heads("a batch", dtype)


def compare_heads(case: str, dtype: torch.dtype) -> None:
    batch, time, heads, width, taps, with_state, options = HEADS[case]
    cu_seqlens, total = options.get("cu_seqlens"), sum(heads) * width
    inputs = {"x": normal(batch, time, total, seed=1)}
    if taps:
        inputs["weight"] = normal(total, taps, seed=2)
    if with_state:
        inputs["state"] = normal(
            batch if cu_seqlens is None else len(cu_seqlens) - 1, total, taps - 1, seed=3
        )
    options = {name: x.to(DEVICE) for name, x in options.items()}
    assert_kernel_agrees(partial(short_conv_heads, **{"weight": None, **options}, heads=heads), inputs, dtype)


def test_heads_of_a_part_of_a_product_are_read_where_they_stand():
    joint = normal(2, 5, 23, dtype=torch.float32).to(DEVICE).requires_grad_()
    weight, found = normal(20, 4, dtype=torch.float32, seed=1).to(DEVICE), []
    for name in ("triton", "reference"):
        q, k, v = short_conv_heads(joint[..., :20], weight, heads=(2, 1, 1), backend=name)
        found.append((q, k, v, *torch.autograd.grad((q + k * v).square().sum(), joint)))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize(
    ("heads", "state", "says"),
    [
        ((1, 1), None, "three numbers"),
        ((1, 1, 2), None, "D divides"),
        ((1, 1, 1), (1, 6, 1), "no state without"),
    ],
)
def test_heads_that_do_not_fit_are_refused(heads, state, says):
    state = state and torch.zeros(state)
    with pytest.raises(ValueError, match=says):
        short_conv_heads(torch.zeros(1, 2, 6), None, heads=heads, state=state)
