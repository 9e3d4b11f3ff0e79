"""delta_rule's Triton kernels against the recurrence: gates, states, packing, grouped heads, wide and odd widths."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from support.kernel_cases import normal, packed
from support.triton_cases import (
    DEVICE,
    EXACT_LIMIT,
    HALF,
    assert_kernel_agrees,
    kernels_only,
    of_equal_keys,
    tensor_cores,
)

from kernels import delta_rule
from kernels.ops.delta_rule import work

GATES = {
    "random": lambda x: -x.exp(),
    "mild": lambda x: -0.1 * x.abs(),
    "zero": torch.zeros_like,
    "all -30": lambda x: torch.full_like(x, -30.0),
    "some -30": lambda x: torch.where(x > 0.8, -30.0, -0.1 * x.abs()),
    "forget": lambda x: torch.where(x > 0.8, float("-inf"), -0.1 * x.abs()),
}
# A chunk has 64 tokens; the interpreter's time goes by the number of chunks and heads, hardly by widths.
LENGTHS = packed(0, 65, 3)


def inputs(time, per_channel, gate="random", heads=1, width=20, value_width=24, shared=(), states=1, batch=1):
    """Heads of q, k and v may be fewer: `shared`."""
    hq, hk, hv = shared or (heads,) * 3
    return {
        "q": normal(batch, time, hq, width, seed=1),
        "k": F.normalize(normal(batch, time, hk, width, seed=2), dim=-1),
        "v": normal(batch, time, hv, value_width, seed=3),
        "g": GATES[gate](normal(batch, time, heads, *([width] if per_channel else []), seed=4)),
        "beta": 2 * normal(batch, time, heads, seed=5).sigmoid(),
        "initial_state": normal(states, heads, width, value_width, seed=6),
    }


def compare(given, dtype=torch.float32, exact=EXACT_LIMIT, **options):
    """Outputs, final states and all gradients; gates and states stay in fp32."""
    options = {name: x.to(DEVICE) if isinstance(x, torch.Tensor) else x for name, x in options.items()}
    call = partial(delta_rule, output_final_state=True, **options)
    assert_kernel_agrees(call, given, dtype, keep=("g", "initial_state"), gates=("g",), exact=exact)


channels = pytest.mark.parametrize("per_channel", [False, True], ids=["head", "channel"])


@channels
@pytest.mark.slow
def test_a_short_sequence(per_channel):
    compare(inputs(37, per_channel, "some -30", width=33))


@pytest.mark.slow
@channels
@pytest.mark.parametrize("gate", ["zero", "all -30", "forget"])
def test_gates(per_channel, gate):
    """A gradient is compared relative to its own size: that of a gate of −30 is about 1e-13."""
    compare(inputs(50, per_channel, gate, width=16, value_width=16))


@pytest.mark.slow
@channels
def test_packed_sequences_of_several_chunks(per_channel):
    compare(inputs(68, per_channel, "some -30", states=3), cu_seqlens=LENGTHS)


@pytest.mark.slow
@channels
def test_half_the_width_of_shared_heads(per_channel):
    compare(inputs(20, per_channel, heads=2, shared=(1, 2, 1)), scale=0.3)


@pytest.mark.slow
@channels
def test_wide_heads(per_channel):
    compare(inputs(17, per_channel, width=200, value_width=144))


@pytest.mark.slow
@HALF
@channels
def test_half_precision(per_channel, dtype):
    with tensor_cores():
        compare(inputs(70, per_channel, "mild", width=32), dtype)


@pytest.mark.slow
def test_equal_keys_and_a_beta_near_two():
    """Powers of the triangle would grow like binomials; doubling its inverse loses nothing."""
    given = inputs(64, False, "zero", width=16, value_width=16)
    given["k"] = F.normalize(torch.ones_like(given["k"]), dim=-1)
    given["beta"] = torch.full_like(given["beta"], 1.9)
    compare(given, exact=of_equal_keys(1.9, 64))


@channels
@pytest.mark.parametrize("shared", [(2, 1, 4), (4, 2, 1), (1, 4, 2)], ids=str)
def test_one_token(per_channel, shared):
    """Decoding: a kernel of its own, where nobody asks for gradients. shared: heads of q, k and v, of four."""
    given = inputs(1, per_channel, heads=4, shared=shared, states=2, batch=2)
    given = {name: x.float().to(DEVICE) for name, x in given.items()}
    with kernels_only(), torch.no_grad():
        got = delta_rule(**given, output_final_state=True, backend="triton")
    wanted = delta_rule(**given, output_final_state=True, backend="reference")
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["q", "k", "v", "g", "beta", "initial_state"])
def test_one_token_has_gradients_for_whichever_input_alone_asks_for_them(name):
    given = {name: x.float().to(DEVICE) for name, x in inputs(1, False, width=16, value_width=16).items()}
    given[name].requires_grad_()
    o, _ = delta_rule(**given, backend="triton")
    assert o.requires_grad


def test_gradients_of_the_results_may_have_any_strides():
    given = {name: x.float().to(DEVICE) for name, x in inputs(5, False, width=16, value_width=16).items()}
    leaves = [x.requires_grad_() for x in given.values()]
    results = delta_rule(**given, output_final_state=True, backend="triton")
    turned = [normal(1, 16, 1, 5, seed=7).transpose(1, 3), normal(1, 1, 16, 16, seed=8).mT]
    turned = [x.float().to(DEVICE) for x in turned]
    assert not any(x.is_contiguous() for x in turned)
    found = torch.autograd.grad(results, leaves, turned, retain_graph=True)
    wanted = torch.autograd.grad(results, leaves, [x.contiguous() for x in turned])
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


def test_work_is_linear_in_time_and_needs_no_data():
    def of(time: int):
        given = {name: x.to("meta") for name, x in inputs(time, True, width=64).items()}
        return work(**given, output_final_state=True)

    short, long = of(256), of(512)
    assert [x.way for x in short] == ["forward", "backward"]
    assert [b.flops / a.flops for a, b in zip(short, long, strict=True)] == [2, 2]
    assert all(a.bytes < b.bytes < 2 * a.bytes for a, b in zip(short, long, strict=True))


def test_work_counts_every_input_once_forward_and_twice_backward():
    """Backward reads the inputs and the gradients of both outputs, and writes a gradient for every input."""
    given = {name: x.float().to("meta") for name, x in inputs(64, True, width=16, value_width=8).items()}
    read = sum(4 * x.numel() for x in given.values())
    heads, state = given["beta"].shape[2], 4 * given["initial_state"].numel()
    o = 4 * 64 * heads * 8
    forward, backward = work(**given, output_final_state=True)
    assert (forward.bytes, backward.bytes) == (read + o + state, 2 * read + o + state)


def test_work_of_packed_sequences_is_that_of_a_batch():
    """Three sequences of 16 tokens, fewer than a chunk has, whichever way they come."""
    batch, one = inputs(16, True, batch=3, states=3), inputs(48, True, states=3)
    packed_work = work(**one, cu_seqlens=packed(16, 16, 16), output_final_state=True)
    assert packed_work == work(**batch, output_final_state=True)


@pytest.mark.gpu
@channels
def test_runs_are_equal_to_the_bit(per_channel):
    given = inputs(4096, per_channel, heads=2, width=64, value_width=64)
    leaves = {name: x.to("cuda", torch.float32).requires_grad_() for name, x in given.items()}

    def run():
        o, state = delta_rule(**leaves, output_final_state=True, backend="triton")
        return [o, state, *torch.autograd.grad(o.sum() + state.sum(), list(leaves.values()))]

    assert all(torch.equal(a, b) for a, b in zip(run(), run(), strict=True))
