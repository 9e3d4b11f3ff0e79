"""memory_mixture's Triton kernels against the recurrence: routes, states, packing, and one token."""

import itertools
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from support.kernel_cases import normal, packed
from support.triton_cases import DEVICE, HALF, assert_kernel_agrees, kernels_only

from kernels import memory_mixture
from kernels.ops.memory_mixture import OPERATION, work


def inputs(batch, time, memories=3, slots=2, states=None, heads=1, width=20, value_width=24):
    """All arguments; the last memory of several is hardly ever named."""
    scores = normal(batch, time, memories, seed=7)
    scores[..., -1] -= 2
    return {
        "q": normal(batch, time, heads, width, seed=1),
        "k": F.normalize(normal(batch, time, memories, heads, width, seed=2), dim=-1),
        "v": normal(batch, time, memories, heads, value_width, seed=3),
        "g": -0.1 * normal(batch, time, memories, heads, seed=4).abs(),
        "beta": 2 * normal(batch, time, memories, heads, seed=5).sigmoid(),
        "routes": scores.topk(slots, -1).indices,
        "weights": normal(batch, time, slots, seed=8).sigmoid(),
        "initial_state": normal(states or batch, memories, heads, width, value_width, seed=6),
    }


def compare(given, dtype=torch.float32, **options):
    options = {name: x.to(DEVICE) if isinstance(x, torch.Tensor) else x for name, x in options.items()}
    call = partial(memory_mixture, output_final_state=True, **options)
    keep = ("g", "weights", "initial_state")
    assert_kernel_agrees(call, given, dtype, keep=keep, gates=("g",))


@pytest.mark.slow
def test_a_short_sequence():
    compare(inputs(1, 30))


@pytest.mark.slow
def test_a_batch_and_two_heads():
    compare(inputs(2, 9, memories=2, slots=1, heads=2))


@pytest.mark.slow
def test_heads_wider_than_a_tile():
    """H·V = 80 numbers a token, in tiles of 64: gradients of weights are sums over both."""
    compare(inputs(1, 4, memories=2, slots=2, heads=2, width=8, value_width=40))


@pytest.mark.slow
def test_packed_sequences():
    """With an empty one: its memories keep their states."""
    compare(inputs(1, 70, memories=2, slots=2, states=3), cu_seqlens=packed(66, 0, 4), scale=0.5)


@pytest.mark.slow
@HALF
def test_half_precision(dtype):
    compare(inputs(1, 40, width=32), dtype)


@pytest.mark.parametrize("slots", [1, 2, 3, 4])
@pytest.mark.slow
def test_one_token(slots):
    """Decoding: a kernel of its own. Every choice of memories; what is not named is copied, bit for bit."""
    named = torch.tensor(list(itertools.combinations(range(4), slots)))
    given = inputs(len(named), 1, memories=4, slots=slots, heads=2) | {"routes": named[:, None]}
    given = {name: x.to(DEVICE) if name == "routes" else x.float().to(DEVICE) for name, x in given.items()}
    with kernels_only(), torch.no_grad():
        got = memory_mixture(**given, output_final_state=True, backend="triton")
    wanted = memory_mixture(**given, output_final_state=True, backend="reference")
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    passed = F.one_hot(given["routes"][:, 0], 4).sum(1) == 0
    assert torch.equal(got[1][passed], given["initial_state"][passed])


@pytest.mark.parametrize("name", ["q", "k", "v", "g", "beta", "weights", "initial_state"])
def test_one_token_has_gradients_for_whichever_input_alone_asks_for_them(name):
    given = inputs(1, 1, memories=2, slots=1, width=16, value_width=16)
    given = {name: x.to(DEVICE) if name == "routes" else x.float().to(DEVICE) for name, x in given.items()}
    given[name].requires_grad_()
    o, _ = memory_mixture(**given, backend="triton")
    assert o.requires_grad


def test_a_memory_that_no_token_names_keeps_its_bits():
    given = inputs(1, 12, memories=3, slots=1)
    given["routes"] = torch.where(given["routes"] == 1, 2, given["routes"])
    given = {name: x.to(DEVICE) if name == "routes" else x.float().to(DEVICE) for name, x in given.items()}
    _, state = memory_mixture(**given, output_final_state=True, backend="triton")
    assert torch.equal(state[:, 1], given["initial_state"][:, 1])


def test_a_single_token_on_a_cpu_is_the_recurrence():
    assert OPERATION.backends[0] == "triton"
    for time, name in ((1, "reference"), (2, "torch")):
        given = inputs(2, time)
        options = {"initial_state": given.pop("initial_state")}
        assert OPERATION.choose("auto", *given.values(), **options).name == name


def test_work_follows_the_routes_and_needs_no_data():
    def flops(memories: int, slots: int):
        given = {name: x.to("meta") for name, x in inputs(1, 1024, memories, slots).items()}
        return [x.flops for x in work(**given)]

    assert flops(4, 2) == flops(8, 2)
    assert flops(4, 4) == [2 * n for n in flops(4, 2)]


@pytest.mark.parametrize("slots", [1, 2, 4])
def test_work_reads_of_keys_values_and_gates_what_the_routes_name(slots):
    """Of 4 memories; the rest once, and backward two gradients more to read and one of every input to write."""
    tokens, heads, state = 2 * 30, 2, 2 * 4 * 2 * 20 * 24
    given = {name: x.to("meta") for name, x in inputs(2, 30, 4, slots, heads=heads).items()}
    visited = 8 * tokens * slots * heads * (20 + 24 + 1 + 1)
    shared = 8 * (tokens * heads * 20 + 2 * tokens * slots + state)  # q; routes and weights; initial states
    arriving = 8 * tokens * heads * 24 + 4 * state  # of o and of the final states, which are fp32
    written = sum(8 * x.numel() for name, x in given.items() if name != "routes")
    forward, backward = work(**given, output_final_state=True)
    assert forward.bytes == visited + shared + arriving
    assert backward.bytes == forward.bytes + written
