"""delta_rule: the chunked form against the recurrence, its identities, its memory and its errors."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from support.kernel_cases import normal, packed, value_and_gradients
from support.margins import below
from support.triton_cases import DEVICE, tensor_cores

from kernels import delta_rule
from kernels.autograd import flop_counter
from kernels.ops.delta_rule import torch_form
from kernels.ops.delta_rule.torch_form import Chunks
from kernels.ops.delta_rule.triton_forward import CHUNK, LEAST_GATE, sum_gates, sum_tokens

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}
SHAPES = {
    "one chunk": (2, 5, {}),
    "chunks": (2, 64, {}),
    "not a multiple": (2, 75, {}),
    "one token": (3, 1, {}),
    "packed": (1, 90, {"cu_seqlens": packed(40, 0, 3, 1, 46)}),
    "packed, one": (1, 37, {"cu_seqlens": packed(37)}),
    "packed, short": (1, 23, {"cu_seqlens": packed(*[2] * 10, 3)}),
}
GATES = ("random", "zero", "all -30", "some -30")


def gates(kind: str, *shape: int) -> torch.Tensor:
    if kind == "random":
        return -normal(*shape, seed=4).exp()
    if kind == "zero":
        return torch.zeros(*shape, dtype=torch.float64)
    full = torch.full(shape, -30.0, dtype=torch.float64)
    return full if kind == "all -30" else full * (normal(*shape, seed=5) > 0.5)


def inputs(batch, time, gate="random", per_channel=True, heads=2, width=8, value_width=6, sequences=None):
    """q, k, v, g, beta and initial states; β up to 2."""
    q, k = (normal(batch, time, heads, width, seed=s) for s in (1, 2))
    v = normal(batch, time, heads, value_width, seed=3)
    g = gates(gate, batch, time, heads, *([width] if per_channel else []))
    beta = 2 * normal(batch, time, heads, seed=6).sigmoid()
    state = normal(sequences or batch, heads, width, value_width, seed=7)
    return [q, F.normalize(k, dim=-1), v, g, beta, state]


def everything(backend, **options):
    """Output and final state as one vector, so that both have gradients."""

    def call(q, k, v, g, beta, state):
        o, final = delta_rule(
            q, k, v, g, beta, initial_state=state, output_final_state=True, backend=backend, **options
        )
        return torch.cat([o.flatten(), final.flatten()])

    return call


def assert_close(got, wanted, limit, least=1e-30):
    """Relative to the largest value of each tensor, however small that is (but not below `least`)."""
    for index, (x, y) in enumerate(zip(got, wanted, strict=True)):
        assert x.isfinite().all()
        error = (x - y).abs().max() / y.abs().max().clamp_min(least)
        below(error, limit, f"{index}")


@pytest.mark.parametrize("dtype", TOLERANCE, ids=["fp64", "fp32"])
@pytest.mark.parametrize("per_channel", [False, True], ids=["head", "channel"])
@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("shape", SHAPES)
def test_chunked_equals_recurrence(shape, gate, per_channel, dtype):
    """Output, final states and all six gradients."""
    batch, time, options = SHAPES[shape]
    cu = options.get("cu_seqlens")
    sequences = batch if cu is None else len(cu) - 1
    given = [x.to(dtype) for x in inputs(batch, time, gate, per_channel, sequences=sequences)]
    results = [value_and_gradients(everything(b, **options), given) for b in ("torch", "reference")]
    assert_close(*results, TOLERANCE[dtype])


@pytest.mark.parametrize("gate", [-50.0, -1e4, float("-inf")])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=["fp64", "fp32"])
def test_a_gate_may_forget_everything(gate, dtype):
    given = [x.to(dtype) for x in inputs(1, 70)]
    given[3][:, ::3] = gate
    results = [value_and_gradients(everything(b), given) for b in ("torch", "reference")]
    # Of the initial state and of such a gate there is nothing left: the torch form calls less than e⁻⁴⁰ zero.
    assert_close(results[0], results[1], TOLERANCE[dtype], least=1e-3)


@pytest.mark.parametrize("backend", ["torch", "reference"])
def test_kda_with_equal_channels_is_the_gated_delta_rule(backend):
    q, k, v, g, beta, state = inputs(2, 70, per_channel=False)
    call = partial(delta_rule, backend=backend, output_final_state=True, initial_state=state)
    one, per_channel = call(q, k, v, g, beta), call(q, k, v, g[..., None].expand_as(k), beta)
    for a, b in zip(one, per_channel, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("backend", ["torch", "reference"])
def test_without_gate_and_with_full_writes_an_orthonormal_key_returns_its_value(backend):
    """β = 1, g = 0: the state is an exact dictionary, and writing a key again replaces its value."""
    keys = torch.eye(8, dtype=torch.float64)
    k = torch.cat([keys, keys[:4]])[None, :, None]
    v = normal(1, 12, 1, 5)
    gate, beta = torch.zeros(1, 12, 1, dtype=torch.float64), torch.ones(1, 12, 1, dtype=torch.float64)
    _, state = delta_rule(k, k, v, gate, beta, output_final_state=True, backend=backend)
    wanted = torch.cat([v[0, 8:, 0], v[0, 4:8, 0]])
    torch.testing.assert_close(state[0, 0], wanted)


@pytest.mark.parametrize(("beta", "smallest"), [(0.999, 0.0), (1.8, -0.81)])
def test_beta_in_0_1_has_no_negative_eigenvalue_and_twice_sigma_does(beta, smallest):
    """The transition of one token, read off by starting from the identity."""
    k = F.normalize(normal(1, 1, 1, 6), dim=-1)
    g = torch.zeros(1, 1, 1, dtype=torch.float64)
    identity = torch.eye(6, dtype=torch.float64)[None, None]
    v = torch.zeros(1, 1, 1, 6, dtype=torch.float64)
    _, state = delta_rule(
        k, k, v, g, torch.full_like(g, beta), initial_state=identity, output_final_state=True, backend="torch"
    )
    eigenvalues = torch.linalg.eigvalsh(state[0, 0])
    assert (eigenvalues.min() >= 0) == (smallest == 0.0)
    torch.testing.assert_close(eigenvalues.min(), torch.tensor(1 - beta, dtype=torch.float64))


def test_a_sequence_may_be_continued():
    given = inputs(2, 71)
    whole, final = delta_rule(*given[:5], initial_state=given[5], output_final_state=True)
    state, parts = given[5], []
    for a, b in ((0, 33), (33, 34), (34, 71)):
        part, state = delta_rule(
            *(x[:, a:b] for x in given[:5]), initial_state=state, output_final_state=True
        )
        parts.append(part)
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(state, final, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("backend", ["torch", "reference"])
def test_fewer_heads_are_shared(backend):
    q, k, v, g, beta, state = inputs(2, 9, heads=4)
    q, k = q[:, :, :2], k[:, :, :1]
    got, _ = delta_rule(q, k, v, g, beta, initial_state=state, backend=backend)
    full = q.repeat_interleave(2, 2), k.expand(-1, -1, 4, -1)
    wanted, _ = delta_rule(*full, v, g, beta, initial_state=state, backend="reference")
    torch.testing.assert_close(got, wanted)


def test_bf16_inputs_keep_a_wide_state():
    given = [x.to(torch.bfloat16) for x in inputs(1, 40)[:3]] + [x.float() for x in inputs(1, 40)[3:5]]
    o, state = delta_rule(*given, output_final_state=True)
    wanted, _ = delta_rule(*(x.float() for x in given), backend="reference")
    assert (o.dtype, state.dtype) == (torch.bfloat16, torch.float32)
    torch.testing.assert_close(o.float(), wanted, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("per_channel", [False, True], ids=["head", "channel"])
def test_what_is_kept_is_linear_in_time(per_channel):
    """Numbers that the forward leaves to the backward, beyond its arguments: no T × T, no [T, C, K]."""

    def kept(time: int) -> int:
        sizes = {}

        def pack(x):
            sizes[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
            return x

        given = [
            x.float().requires_grad_()
            for x in inputs(1, time, per_channel=per_channel, width=64, value_width=64)
        ]
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            delta_rule(*given[:5])
        return sum(sizes.values())

    assert abs(kept(2048) / kept(1024) - 2) < 0.1
    assert kept(1024) < 4 * (1024 * 2 * 64 * 4) * 4  # four times q, k, v and g of a channel-wise gate


def test_flops_are_those_of_the_products():
    """Against PyTorch's own count of what the operator runs, which knows neither solves nor in-place products."""
    q, k, v, g, beta, state = inputs(2, 128, per_channel=False, width=64, value_width=64)
    meta = [x.to("meta").requires_grad_() for x in (q, k, v, g, beta)]
    with flop_counter() as formula:
        o, _ = delta_rule(*meta)
    forward = formula.get_total_flops()
    with flop_counter() as formula:
        o.sum().backward()
    assert formula.get_total_flops() == 2 * forward
    flat = torch_form._flat(q, k, v, g.unsqueeze(-1), beta.unsqueeze(-1))
    with flop_counter() as counted:
        torch_form.forward(flat, state.flatten(0, 1), Chunks.of(torch.full((2,), 128), 2), 1.0, None)
    scan, weighted, solve = 4 * 32 * 64 * 64, 2 * 32 * 32 * 64, 32**3
    sums_of_gates, chunks = 2 * 32 * 32 * 33, 2 * 2 * 128 // 32
    counted_too = chunks * (scan + weighted + solve - sums_of_gates)
    assert forward == counted.get_total_flops() + counted_too


@pytest.mark.parametrize("time", [3, 31, 33, 40, 65])
def test_flops_of_three_sequences_are_three_times_those_of_one(time):
    """In a batch and packed: every sequence has chunks of its own, the last one filled or not."""

    def flops(sequences: int, cu_seqlens=None) -> list[int]:
        shape = (sequences, time) if cu_seqlens is None else (1, sequences * time)
        given = [x.to("meta").requires_grad_() for x in inputs(*shape, per_channel=False)[:5]]
        with flop_counter() as forward:
            o, _ = delta_rule(*given, cu_seqlens=cu_seqlens, backend="torch")
        with flop_counter() as backward:
            o.sum().backward()
        return [forward.get_total_flops(), backward.get_total_flops()]

    wanted = [3 * n for n in flops(1)]
    assert flops(3) == flops(3, packed(time, time, time).to("meta")) == wanted
    assert wanted[0] > 0


WIDTH = 16


@triton.jit
def _sums(x, by_gate, by_token, C: tl.constexpr, W: tl.constexpr):
    row, column = tl.arange(0, C), tl.arange(0, W)
    place = row[:, None] * W + column[None]
    tile = tl.load(x + place).to(tl.float32)
    earlier = row[None] < row[:, None]
    tl.store(by_gate + place, sum_gates(earlier, tile, x.dtype.element_ty))
    tl.store(by_token + place, sum_tokens(earlier, tile))


def sums(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What the two functions make of the sums of earlier rows of x, and the sums themselves in fp64."""
    by_gate, by_token = (torch.full(x.shape, torch.nan, device=DEVICE) for _ in range(2))
    with tensor_cores():
        _sums[(1,)](x.to(DEVICE), by_gate, by_token, C=CHUNK, W=WIDTH)
    strictly = torch.ones(CHUNK, CHUNK, dtype=torch.float64).tril(-1)
    return by_gate.cpu().double(), by_token.cpu().double(), strictly @ x.double()


@pytest.mark.parametrize("size", [1e-6, 1e-3, 1.0, 30.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["fp32", "fp16"])
def test_sums_of_gates_of_any_size(size, dtype):
    gates = -size * normal(CHUNK, WIDTH, seed=3).abs().clamp(max=-LEAST_GATE.value / 30)
    by_gate, by_token, wanted = sums(gates.to(dtype))
    # Two parts hold 22 bits; 64 additions in fp32 round 2^-24 of the sum so far each; a gate's least part is 6e-11.
    limit = wanted.abs() * (2.0**-22 + 64 * 2.0**-24)
    assert ((by_gate - wanted).abs() <= limit + 64 * 6e-11).all()
    assert ((by_token - wanted).abs() <= limit).all()


def test_a_large_row_leaves_no_trace_in_sums_without_it():
    gates = torch.full((CHUNK, WIDTH), -1e-5)
    gates[-2] = LEAST_GATE.value
    for found in sums(gates)[:2]:
        torch.testing.assert_close(
            found[-2], torch.full((WIDTH,), -1e-5 * (CHUNK - 2)).double(), rtol=1e-5, atol=0
        )
        torch.testing.assert_close(found[-1], found[-2] + LEAST_GATE.value, rtol=1e-6, atol=0)
