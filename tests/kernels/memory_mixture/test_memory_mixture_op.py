"""memory_mixture: the sorted form against the recurrence, its identities, its cost and its errors."""

import itertools
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from support.kernel_cases import normal, packed, value_and_gradients
from support.margins import below
from support.triton_cases import DEVICE, HALF, assert_kernel_agrees, kernels_only

from kernels import delta_rule, memory_mixture
from kernels.autograd import flop_counter
from kernels.ops.memory_mixture import OPERATION, work

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}
SHAPES = {
    "batch": (2, 45, 3, 2, None),
    "chunks": (1, 100, 2, 2, None),
    "one token": (3, 1, 3, 2, None),
    "packed": (1, 60, 3, 2, packed(30, 0, 3, 1, 26)),
    "one memory": (2, 9, 1, 1, None),
    "every memory": (2, 20, 3, 3, None),
}
GATES = {"random": lambda x: -x.exp(), "zero": torch.zeros_like, "-30": lambda x: torch.full_like(x, -30.0)}
backends = pytest.mark.parametrize("backend", ["torch", "reference"])


def inputs(batch, time, memories=4, slots=2, gate="random", sequences=None, heads=2, width=6, value_width=5):
    """q, k, v, g, beta, weights and initial states; routes. The last memory of several is hardly ever named."""
    q = normal(batch, time, heads, width, seed=1)
    k = F.normalize(normal(batch, time, memories, heads, width, seed=2), dim=-1)
    v = normal(batch, time, memories, heads, value_width, seed=3)
    g = GATES[gate](normal(batch, time, memories, heads, seed=4))
    beta = 2 * normal(batch, time, memories, heads, seed=5).sigmoid()
    scores = normal(batch, time, memories, seed=6)
    scores[..., -1] -= 2
    routes = scores.topk(slots, -1).indices
    weights = normal(batch, time, slots, seed=7).sigmoid()
    state = normal(sequences or batch, memories, heads, width, value_width, seed=8)
    return [q, k, v, g, beta, weights, state], routes


def everything(backend, routes, cu_seqlens=None, update="gated_delta"):
    """Output and final states as one vector, so that both have gradients."""

    def call(q, k, v, g, beta, weights, state):
        options = {"initial_state": state, "output_final_state": True, "cu_seqlens": cu_seqlens}
        options |= {"update": update}
        o, final = memory_mixture(q, k, v, g, beta, routes, weights, backend=backend, **options)
        return torch.cat([o.flatten(), final.flatten()])

    return call


@pytest.mark.parametrize("dtype", TOLERANCE, ids=["fp64", "fp32"])
@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("shape", SHAPES)
def test_sorted_equals_recurrence(shape, gate, dtype):
    """Outputs, final states and all seven gradients, relative to the largest value of each."""
    batch, time, memories, slots, cu = SHAPES[shape]
    given, routes = inputs(batch, time, memories, slots, gate, None if cu is None else len(cu) - 1)
    given = [x.to(dtype) for x in given]
    results = [value_and_gradients(everything(b, routes, cu), given) for b in ("torch", "reference")]
    for index, (x, y) in enumerate(zip(*results, strict=True)):
        error = (x - y).abs().max() / y.abs().max()
        below(error, TOLERANCE[dtype], f"{index}")


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("shape", SHAPES)
def test_sorted_equals_recurrence_without_the_delta_term(shape, gate):
    batch, time, memories, slots, cu = SHAPES[shape]
    given, routes = inputs(batch, time, memories, slots, gate, None if cu is None else len(cu) - 1)
    torch_form, reference = (
        value_and_gradients(everything(b, routes, cu, "gated_linear"), given) for b in ("torch", "reference")
    )
    for x, y in zip(torch_form, reference, strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=1e-9 * float(y.abs().max()))


@backends
def test_without_the_delta_term_it_is_gated_linear_attention(backend):
    """o_t = scale·Σ_{s ≤ t} exp(g_{s+1} + … + g_t)·β_s·(q_t·k_s)·v_s over a memory's tokens, summed pair by pair."""
    (q, k, v, g, beta, *_), _ = inputs(2, 40, memories=1, slots=1)
    routes, weights = torch.zeros(2, 40, 1, dtype=torch.int64), torch.ones(2, 40, 1, dtype=torch.float64)
    options = {"scale": 0.7, "update": "gated_linear", "output_final_state": True, "backend": backend}
    o, state = memory_mixture(q, k, v, g, beta, routes, weights, **options)
    k, v, g, beta = (x.squeeze(2) for x in (k, v, g, beta))
    total = g.cumsum(1).transpose(1, 2)  # [B, H, T]
    decay = (total[..., :, None] - total[..., None, :]).exp().tril()
    pairs = torch.einsum("bthk,bshk->bhts", q, k) * decay * beta.transpose(1, 2)[:, :, None]
    wanted = 0.7 * torch.einsum("bhts,bshv->bthv", pairs, v)
    torch.testing.assert_close(o, wanted, rtol=0, atol=1e-12)
    last = decay[:, :, -1].transpose(1, 2) * beta
    torch.testing.assert_close(
        state[:, 0], torch.einsum("bsh,bshk,bshv->bhkv", last, k, v), rtol=0, atol=1e-12
    )


def test_triton_refuses_what_is_not_the_delta_rule_and_auto_passes_it_by():
    (*given, weights, _), routes = inputs(2, 5)
    refusals = OPERATION.refusals(*given, routes, weights, update="gated_linear")
    assert refusals["triton"] == "computes update='gated_delta' only, got 'gated_linear'"
    assert refusals["torch"] is refusals["reference"] is None
    with pytest.raises(ValueError, match="update must be one of gated_delta, gated_linear, not 'hebbian'"):
        memory_mixture(*given, routes, weights, update="hebbian")


@backends
def test_an_unselected_memory_is_bit_identical_after_the_step(backend):
    """Neither decay nor write, whether a token or a whole sequence passes it by."""
    for time in (1, 40):
        (*given, weights, state), routes = inputs(2, time, gate="-30")
        routes = torch.where(routes == 2, 3, routes)[..., :1]
        routes[1] = 0
        call = {"initial_state": state, "output_final_state": True, "backend": backend}
        _, after = memory_mixture(*given, routes, weights[..., :1], **call)
        named = F.one_hot(routes, 4).sum((1, 2)) > 0  # [B, M]
        assert not named[:, 2].any()
        assert torch.equal(after[~named], state[~named])
        assert (after[named] != state[named]).flatten(1).any(1).all()


@backends
def test_one_memory_without_the_shared_one_is_the_gated_delta_rule(backend):
    (q, k, v, g, beta, _, state), _ = inputs(2, 37, memories=1, slots=1)
    routes, weights = torch.zeros(2, 37, 1, dtype=torch.int64), torch.ones(2, 37, 1, dtype=torch.float64)
    call = {"output_final_state": True, "backend": backend}
    o, after = memory_mixture(q, k, v, g, beta, routes, weights, initial_state=state, **call)
    one = (x.squeeze(2) for x in (k, v, g, beta))
    wanted, state = delta_rule(q, *one, initial_state=state.squeeze(1), **call)
    torch.testing.assert_close(o, wanted, rtol=0, atol=1e-12)
    torch.testing.assert_close(after.squeeze(1), state, rtol=0, atol=1e-12)


@backends
def test_a_memory_is_the_delta_rule_over_its_own_tokens(backend):
    (q, k, v, g, beta, weights, state), routes = inputs(1, 50)
    call = {"output_final_state": True, "scale": 0.7}
    o, after = memory_mixture(q, k, v, g, beta, routes, weights, initial_state=state, backend=backend, **call)
    wanted = torch.zeros_like(o)
    for m in range(4):
        token, slot = (routes[0] == m).nonzero(as_tuple=True)
        own = (x[:, token, m] for x in (k, v, g, beta))
        answer, final = delta_rule(q[:, token], *own, initial_state=state[:, m], backend="reference", **call)
        wanted[0].index_add_(0, token, weights[0, token, slot, None, None] * answer[0])
        torch.testing.assert_close(after[:, m], final, rtol=0, atol=1e-12)
    torch.testing.assert_close(o, wanted, rtol=0, atol=1e-12)


@backends
def test_the_order_of_routes_does_not_matter(backend):
    (*given, weights, _), routes = inputs(2, 20, slots=3)
    o, _ = memory_mixture(*given, routes, weights, backend=backend)
    turned, _ = memory_mixture(*given, routes.flip(-1), weights.flip(-1), backend=backend)
    torch.testing.assert_close(turned, o, rtol=0, atol=1e-13)


def test_on_the_meta_device_work_follows_the_routes_not_the_memories():
    def flops(memories: int, slots: int, update: str = "gated_delta") -> list[int]:
        (*given, weights, _), routes = inputs(1, 1024, memories, slots)
        given = [x.to("meta").requires_grad_() for x in (*given, weights)]
        with flop_counter() as forward:
            o, _ = memory_mixture(*given[:5], routes.to("meta"), given[5], update=update)
        assert o.shape == (1, 1024, 2, 5)
        with flop_counter() as backward:
            o.sum().backward()
        assert [x.grad.shape for x in given] == [x.shape for x in given]
        return [forward.get_total_flops(), backward.get_total_flops()]

    two = flops(4, 2)
    assert two == flops(8, 2)
    assert flops(4, 4) == [2 * n for n in two]
    # 64 chunks of 32 tokens in 2 heads: no solve, and no reads, which were 2·C²·(K + V) and 2·C·K·V.
    saved = 2 * 64 * (32**3 + 2 * 32**2 * (6 + 5) + 2 * 32 * 6 * 5)
    assert flops(4, 2, "gated_linear") == [two[0] - saved, two[1] - 2 * saved]


def test_bf16_inputs_keep_wide_states():
    (*given, weights, _), routes = inputs(1, 20)
    given = [x.bfloat16() if i < 3 else x.float() for i, x in enumerate((*given, weights))]
    o, state = memory_mixture(*given[:5], routes, given[5], output_final_state=True)
    wanted, _ = memory_mixture(*(x.float() for x in given[:5]), routes, given[5], backend="reference")
    assert (o.dtype, state.dtype) == (torch.bfloat16, torch.float32)
    torch.testing.assert_close(o.float(), wanted, rtol=1e-2, atol=1e-2)


def test_the_reference_takes_exactly_the_routes_to_different_memories_there_are():
    """All pairs of numbers from −1 to M = 3, in the first and in the last token of the second sequence."""
    (*given, weights, _), named = inputs(2, 3, memories=3)
    for (first, second), at in itertools.product(itertools.product(range(-1, 4), repeat=2), (0, 2)):
        routes = named.clone()
        routes[1, at] = torch.tensor([first, second])
        if first != second and {first, second} <= {0, 1, 2}:
            memory_mixture(*given, routes, weights, backend="reference")
        else:
            with pytest.raises(ValueError, match=r"routes must be different memories in \[0, 3\)"):
                memory_mixture(*given, routes, weights, backend="reference")


def named_inputs(batch, time, memories=3, slots=2, states=None, heads=1, width=20, value_width=24):
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
    compare(named_inputs(1, 30))


@pytest.mark.slow
def test_a_batch_and_two_heads():
    compare(named_inputs(2, 9, memories=2, slots=1, heads=2))


@pytest.mark.slow
def test_heads_wider_than_a_tile():
    """H·V = 80 numbers a token, in tiles of 64: gradients of weights are sums over both."""
    compare(named_inputs(1, 4, memories=2, slots=2, heads=2, width=8, value_width=40))


@pytest.mark.slow
def test_packed_sequences():
    """With an empty one: its memories keep their states."""
    compare(named_inputs(1, 70, memories=2, slots=2, states=3), cu_seqlens=packed(66, 0, 4), scale=0.5)


@pytest.mark.slow
@HALF
def test_half_precision(dtype):
    compare(named_inputs(1, 40, width=32), dtype)


@pytest.mark.parametrize("slots", [1, 2, 3, 4])
@pytest.mark.slow
def test_one_token(slots):
    """Decoding: a kernel of its own. Every choice of memories; what is not named is copied, bit for bit."""
    named = torch.tensor(list(itertools.combinations(range(4), slots)))
    given = named_inputs(len(named), 1, memories=4, slots=slots, heads=2) | {"routes": named[:, None]}
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
    given = named_inputs(1, 1, memories=2, slots=1, width=16, value_width=16)
    given = {name: x.to(DEVICE) if name == "routes" else x.float().to(DEVICE) for name, x in given.items()}
    given[name].requires_grad_()
    o, _ = memory_mixture(**given, backend="triton")
    assert o.requires_grad


def test_a_memory_that_no_token_names_keeps_its_bits():
    given = named_inputs(1, 12, memories=3, slots=1)
    given["routes"] = torch.where(given["routes"] == 1, 2, given["routes"])
    given = {name: x.to(DEVICE) if name == "routes" else x.float().to(DEVICE) for name, x in given.items()}
    _, state = memory_mixture(**given, output_final_state=True, backend="triton")
    assert torch.equal(state[:, 1], given["initial_state"][:, 1])


def test_work_follows_the_routes_and_needs_no_data():
    def flops(memories: int, slots: int):
        given = {name: x.to("meta") for name, x in named_inputs(1, 1024, memories, slots).items()}
        return [x.flops for x in work(**given)]

    assert flops(4, 2) == flops(8, 2)
    assert flops(4, 4) == [2 * n for n in flops(4, 2)]


@pytest.mark.parametrize("slots", [1, 2, 4])
def test_work_reads_of_keys_values_and_gates_what_the_routes_name(slots):
    """Of 4 memories; the rest once, and backward two gradients more to read and one of every input to write."""
    tokens, heads, state = 2 * 30, 2, 2 * 4 * 2 * 20 * 24
    given = {name: x.to("meta") for name, x in named_inputs(2, 30, 4, slots, heads=heads).items()}
    visited = 8 * tokens * slots * heads * (20 + 24 + 1 + 1)
    shared = 8 * (tokens * heads * 20 + 2 * tokens * slots + state)  # q; routes and weights; initial states
    arriving = 8 * tokens * heads * 24 + 4 * state  # of o and of the final states, which are fp32
    written = sum(8 * x.numel() for name, x in given.items() if name != "routes")
    forward, backward = work(**given, output_final_state=True)
    assert forward.bytes == visited + shared + arriving
    assert backward.bytes == forward.bytes + written
