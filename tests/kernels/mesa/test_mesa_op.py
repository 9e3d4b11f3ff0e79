"""mesa: the chunked form against the definition, exact solves and least squares; states, packing, errors."""

from collections.abc import Callable, Sequence
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from support.kernel_cases import TOLERANCE, normal, packed, rmse_ratio, value_and_gradients
from support.margins import above, below
from support.watch import Watch
from torch import Tensor

from kernels import mesa, mesa_residuals
from kernels.autograd import flop_counter
from kernels.ops.mesa import torch_form
from kernels.ops.mesa.torch_form import scan

BACKENDS = ["torch", "reference"]


def inputs(
    batch: int,
    time: int,
    heads: int = 2,
    width: int = 8,
    value_width: int | None = None,
    gates: str = "sigmoid",
    sequences: int | None = None,
) -> list[Tensor]:
    """q, k, v, g, beta, lamb and, with a number of sequences, states H (semi-definite) and G for them."""
    value_width = value_width or width
    shape = (batch, time, heads)
    q, k = (F.normalize(normal(*shape, width, seed=seed), dim=-1) for seed in (1, 2))
    lamb = 0.25 + F.softplus(normal(heads, width, seed=6))
    tensors = [q, k, normal(*shape, value_width, seed=3), log_gates(gates, shape)]
    tensors += [torch.sigmoid(normal(*shape, seed=5)), lamb]
    if sequences is not None:
        root = normal(sequences, heads, width, width, seed=7)
        tensors += [root @ root.mT / width, normal(sequences, heads, width, value_width, seed=8)]
    return tensors


def log_gates(kind: str, shape: tuple[int, ...]) -> Tensor:
    if kind == "mixed":  # nothing forgotten, all forgotten and everything between
        return (
            torch.tensor([0.0, -30.0, -1e-3, -1.0, -30.0, 0.0, 0.0])
            .repeat(99)[: shape[1], None]
            .expand(shape)
            .double()
            .contiguous()
        )
    return (
        F.logsigmoid(normal(*shape, seed=4) + 2)
        if kind == "sigmoid"
        else torch.full(shape, float(kind)).double()
    )


def call(*tensors: Tensor, **options) -> tuple[Tensor, Tensor, Tensor]:
    """Output and final states of `mesa`; a seventh and eighth tensor are the initial ones."""
    o, (h_kk, h_kv) = mesa(
        *tensors[:6], initial_state=tensors[6:] or None, output_final_state=True, **options
    )
    return o, h_kk, h_kv


def results(function: Callable, tensors: Sequence[Tensor]) -> dict[str, Tensor]:
    """Outputs, and the gradients of all inputs under one fixed cotangent for all outputs."""
    leaves = [x.detach().clone().requires_grad_() for x in tensors]
    outputs = function(*leaves)
    sum((x * normal(*x.shape, seed=9).to(x)).sum() for x in outputs).backward()
    names = ("q", "k", "v", "g", "beta", "lamb", "H", "G")
    found = {f"gradient of {name}": x.grad for name, x in zip(names, leaves, strict=False)}
    return {**dict(zip(("o", "H", "G"), (x.detach() for x in outputs), strict=True)), **found}


def assert_same(got: dict[str, Tensor], wanted: dict[str, Tensor], limit: float) -> None:
    """Every tensor relative to its own largest value (a true 0 absolutely)."""
    assert got.keys() == wanted.keys()
    for name, value in wanted.items():
        assert got[name].shape == value.shape
        error = (got[name] - value).abs().max() / value.abs().max().clamp_min(0.1)
        below(error, limit, name)


def states_of(q, k, v, g, beta, lamb) -> tuple[Tensor, Tensor]:
    """H [B, T, H, K, K] and G [B, T, H, K, V] at every token, by the sums ω_s = β_s·Π γ themselves."""
    sums = g.cumsum(1).movedim(1, -1)
    weights = (sums[..., :, None] - sums[..., None, :]).exp().tril() * beta.movedim(1, -1)[..., None, :]
    return tuple(torch.einsum("bhts,bshk,bshv->bthkv", weights, k, x) for x in (k, v))


def exact(q, k, v, g, beta, lamb) -> Tensor:
    """o_t = G_tᵀ·(H_t + Λ)⁻¹·q_t by factorisation."""
    h_kk, h_kv = states_of(q, k, v, g, beta, lamb)
    x = torch.linalg.solve(h_kk + torch.diag_embed(lamb), q)
    return torch.einsum("bthk,bthkv->bthv", x, h_kv)


# arguments of `inputs`, tokens a chunk, options
CALLS = {
    "plain": ({"batch": 2, "time": 21, "heads": 3, "value_width": 5}, 32, {}),
    "one token": ({"batch": 2, "time": 1}, 32, {}),
    "one token, state": ({"batch": 2, "time": 1, "sequences": 2}, 32, {}),
    "whole chunks": ({"batch": 1, "time": 16}, 8, {}),
    "many chunks": ({"batch": 1, "time": 37, "heads": 1, "sequences": 1, "gates": "0"}, 2, {}),
    "state": ({"batch": 2, "time": 37, "sequences": 2, "width": 16}, 8, {}),
    "gates 0": ({"batch": 1, "time": 37, "gates": "0"}, 16, {}),
    "gates -30": ({"batch": 1, "time": 37, "gates": "-30"}, 16, {}),
    "gates mixed": ({"batch": 1, "time": 37, "gates": "mixed", "sequences": 1}, 16, {}),
    "packed": ({"batch": 1, "time": 37}, 8, {"cu_seqlens": packed(8, 0, 4, 1, 24)}),
    "packed, state": ({"batch": 1, "time": 37, "sequences": 6}, 8, {"cu_seqlens": packed(0, 9, 4, 1, 23, 0)}),
    "packed, one chunk": (
        {"batch": 1, "time": 9, "sequences": 2, "gates": "0"},
        32,
        {"cu_seqlens": packed(4, 5)},
    ),
}


FP32 = ("plain", "gates mixed", "packed, state")  # the others in fp32 are in the slow subset


def dtypes_and_cases() -> list:
    slow = [pytest.mark.slow]
    pairs = [pytest.param(torch.float64, case, id=f"fp64-{case}") for case in CALLS]
    return pairs + [
        pytest.param(torch.float32, case, id=f"fp32-{case}", marks=[] if case in FP32 else slow)
        for case in CALLS
    ]


@pytest.mark.parametrize(("dtype", "case"), dtypes_and_cases())
def test_chunks_equal_the_recurrence(case, dtype, monkeypatch):
    """Outputs, final states and all gradients; the reference differentiates through every step."""
    shape, size, options = CALLS[case]
    monkeypatch.setattr(torch_form, "CHUNK", size)
    tensors = [x.to(dtype) for x in inputs(**shape)]
    got, wanted = (results(partial(call, backend=backend, **options), tensors) for backend in BACKENDS)
    assert_same(got, wanted, TOLERANCE[dtype])


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_few_steps_are_the_same_steps(steps):
    """Far from the solution too: at every number of steps both forms stand at the same point."""
    tensors = inputs(1, 50, width=32, gates="0")
    got, wanted = (call(*tensors, cg_steps=steps, backend=backend)[0] for backend in BACKENDS)
    above(rmse_ratio(exact(*tensors), wanted), 1e-6)
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
def test_cg_is_the_solve_is_weighted_regularised_least_squares(backend):
    """o = W·q with W = argmin ½Σ_{s≤t} ω_s‖v_s − W·k_s‖² + ½Tr(W·Λ·Wᵀ), found by lstsq on stacked rows."""
    tensors = inputs(1, 40, width=16, value_width=6)
    q, k, v, g, beta, lamb = tensors
    o, _ = mesa(*tensors, backend=backend)
    torch.testing.assert_close(o, exact(*tensors), rtol=0, atol=1e-12)
    for head in range(2):
        for t in (0, 1, 7, 20, 39):
            seen = slice(0, t + 1)
            left = torch.stack([g[0, s + 1 : t + 1, head].sum().exp() for s in range(t + 1)])
            root = (beta[0, seen, head] * left).sqrt()[:, None]
            rows = torch.cat([root * k[0, seen, head], torch.diag(lamb[head].sqrt())])
            values = torch.cat([root * v[0, seen, head], v.new_zeros(16, 6)])
            w = torch.linalg.lstsq(rows, values).solution.T
            torch.testing.assert_close(o[0, t, head], w @ q[0, t, head], rtol=0, atol=1e-11)


@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.slow
def test_thirty_steps_reach_the_exact_solve_at_default_lambda(width):
    """The hardest gates (nothing is forgotten), Λ = 1. The errors at 5 and 10 steps are printed only."""
    q, k, v, g, beta, _ = inputs(1, 256, heads=1, width=width, gates="0")
    tensors = q, k, v, g, beta, torch.ones(1, width, dtype=torch.float64)
    wanted = exact(*tensors)
    errors = {steps: rmse_ratio(mesa(*tensors, cg_steps=steps)[0], wanted) for steps in (5, 10, 30)}
    print(f"K = {width}, relative error by steps:", {n: f"{error:.1e}" for n, error in errors.items()})
    below(errors[30], 1e-9)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_are_those_of_the_exact_solve(backend):
    """The steps that 2e-10 needs are printed."""
    tensors = inputs(1, 20, width=16, gates="0")
    wanted = value_and_gradients(exact, tensors)
    for steps in range(6, 31, 2):
        got = value_and_gradients(lambda *x, n=steps: mesa(*x, cg_steps=n, backend=backend)[0], tensors)
        error = max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(got, wanted, strict=True))
        if error < 2e-10:
            break
    print(f"{backend}: {steps} steps, relative error {error:.1e}")
    below(error, 1e-9)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("pieces", [[5, 6], [1, 2, 8], [1] * 11], ids=str)
def test_a_state_continues_the_sequence(pieces, backend):
    """Pieces of one token are decoding."""
    tensors = inputs(2, 11)
    o, *final = call(*tensors, backend=backend)
    outputs, state = [], ()
    for *piece, lamb in zip(
        *(x.split(pieces, 1) for x in tensors[:5]), [tensors[5]] * len(pieces), strict=True
    ):
        part, *state = call(*piece, lamb, *state, backend=backend)
        outputs.append(part)
    torch.testing.assert_close(torch.cat(outputs, 1), o, rtol=0, atol=1e-12)
    torch.testing.assert_close(state, final, rtol=0, atol=1e-13)


@pytest.mark.parametrize("steps", [1, 3, 30])
@torch.no_grad()
def test_decoding_takes_the_same_steps_whether_they_converge_or_not(steps):
    """Keys that resemble each other, of which nothing is forgotten, need more than three steps."""
    q, k, v, g, beta, lamb, *_ = inputs(2, 40)
    k, g = F.normalize(k + 3, dim=-1), torch.zeros_like(g)
    wanted, _ = mesa(q, k, v, g, beta, lamb, cg_steps=steps)
    state = mesa(*(x[:, :1] for x in (q, k, v, g, beta)), lamb, output_final_state=True)[1]
    for t in range(1, 40):
        token = (x[:, t : t + 1] for x in (q, k, v, g, beta))
        o, state = mesa(*token, lamb, cg_steps=steps, initial_state=state, output_final_state=True)
        torch.testing.assert_close(o[:, 0], wanted[:, t], rtol=0, atol=1e-11)


@torch.no_grad()
def test_decoded_sequences_converge_each_by_itself():
    """A first token, whose matrix is diagonal but for itself, beside one after many keys that resemble each other."""
    q, k, v, g, beta, lamb, *_ = inputs(2, 40)
    k, g = F.normalize(k + 3, dim=-1), torch.zeros_like(g)
    before = mesa(*(x[:1, :-1] for x in (q, k, v, g, beta)), lamb, output_final_state=True)[1]
    state = [torch.cat((h, torch.zeros_like(h))) for h in before]
    token = [x[:, -1:] for x in (q, k, v, g, beta)]
    together, _ = mesa(*token, lamb, initial_state=state)
    alone = [
        mesa(*(x[i : i + 1] for x in token), lamb, initial_state=[h[i : i + 1] for h in state])[0]
        for i in range(2)
    ]
    torch.testing.assert_close(together, torch.cat(alone), rtol=0, atol=1e-12)


@pytest.mark.parametrize("size", [0.0, 1e-30, 1.0, 1e30])
@torch.no_grad()
def test_a_decoded_query_may_have_any_size(size):
    q, *others = (x.float() for x in inputs(1, 1, sequences=1))
    *token, lamb, h_kk, h_kv = others
    o, _ = mesa(size * q, *token, lamb, initial_state=(h_kk, h_kv))
    unit, _ = mesa(q, *token, lamb, initial_state=(h_kk, h_kv))
    torch.testing.assert_close(o, size * unit, rtol=1e-5, atol=0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_nothing_in_gives_nothing_out(backend):
    """q = 0, k = 0 and β = 0 are 0/0 in the conjugate gradient; an exhausted residual is too."""
    tensors = [x.float() for x in inputs(1, 12, width=4)]
    tensors[0][:, 3] = 0
    tensors[1][:, 5] = 0
    tensors[4][:, :2] = 0
    found = results(partial(call, backend=backend), tensors)
    assert all(x.isfinite().all() for x in found.values())
    assert not found["o"][:, 3].any()
    assert not found["o"][:, :2].any()


@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_gradients_of_any_size_survive_in_fp32(size):
    """Squares of the residual would underflow or overflow."""
    tensors = [x.float().requires_grad_() for x in inputs(1, 20)]
    grads = [torch.autograd.grad(mesa(*tensors)[0].sum() * s, tensors) for s in (1.0, size)]
    for normal_sized, small in zip(*grads, strict=True):
        torch.testing.assert_close(small / size, normal_sized, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_half_precision_is_computed_in_fp32(backend):
    tensors = [x.bfloat16() for x in inputs(1, 40)]
    wanted = exact(*(x.double() for x in tensors))
    with torch.autocast("cpu", torch.bfloat16):
        o, h_kk, h_kv = call(*tensors, backend=backend)
    assert (o.dtype, h_kk.dtype, h_kv.dtype) == (torch.bfloat16, torch.float32, torch.float32)
    # But for exact numbers that lie, for fp32, half-way between two.
    assert (o == wanted.bfloat16()).float().mean() > 0.98
    torch.testing.assert_close(o.double(), wanted, rtol=2**-6, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_in_bf16_are_summed_over_tokens_in_fp32(backend):
    """To bf16's own rounding; a sum over tokens in bf16 is wrong by percents."""
    given = [x.bfloat16() for x in inputs(1, 1000, heads=1, width=4)]

    def gradients(dtype: torch.dtype, backend: str) -> tuple[Tensor, ...]:
        leaves = [x.detach().to(dtype, copy=True).requires_grad_() for x in given]
        o = mesa(*leaves, cg_steps=6, backend=backend)[0]
        return torch.autograd.grad((o * normal(*o.shape, seed=9)).sum(), leaves)

    got, wanted = gradients(torch.bfloat16, backend), gradients(torch.float64, "torch")
    for name, a, b in zip(("q", "k", "v", "g", "beta", "lamb"), got, wanted, strict=True):
        below((a.double() - b).abs().max() / b.abs().max(), 2.0**-7, name)


def test_residuals_start_at_one_and_are_zero_for_a_query_of_zeros():
    """So that one such query makes no mean over tokens NaN."""
    q, k, _, g, beta, lamb = inputs(2, 5)
    q[1, 3, 0] = 0
    found = mesa_residuals(q, k, g, beta, lamb, cg_steps=4)
    assert found.shape == (5, 2, 5, 2)
    assert not found[:, 1, 3, 0].any()
    others = q.any(-1)
    torch.testing.assert_close(found[0][others], torch.ones_like(found[0][others]), rtol=0, atol=1e-14)
    assert (found[1, others] > 0).all()
    later, solved = found[1:, others], 1e-14  # two steps solve the first token's system
    assert ((later < 0.5 * found[:-1, others]) | (later < solved)).all()


@pytest.mark.parametrize("cu_seqlens", [None, packed(30, 40)], ids=["batch", "packed"])
def test_the_state_keeps_no_chunks_in_memory(cu_seqlens):
    _, *state = call(*inputs(1, 70), cu_seqlens=cu_seqlens)
    assert all(x.untyped_storage().nbytes() == x.nbytes for x in state)


@pytest.mark.parametrize("steps", [1, 16, 17, 300])
def test_scan_is_its_loop(steps):
    writes, gates, state = normal(2, steps, 3), -normal(2, steps).abs(), normal(2, 3, seed=1)
    gates[:, ::7] = -torch.inf  # forgets everything, exactly
    wanted = []
    for c in range(steps):
        state = gates[:, c, None].exp() * state + writes[:, c]
        wanted.append(state)
    torch.testing.assert_close(scan(writes, gates, normal(2, 3, seed=1)), torch.stack(wanted, 1))


@pytest.mark.parametrize("sequences", [None, 8], ids=["batch", "packed"])
def test_cost_on_meta_is_linear_in_time(sequences):
    """FLOPs and the largest tensor a token, forward and backward; none is as large as H at every token."""

    def cost(time: int) -> tuple[float, float]:
        tensors = [x.detach().to("meta").requires_grad_() for x in inputs(1, 7, heads=2, width=32)]
        tokens = [x[:, :1].repeat(1, time, *[1] * (x.dim() - 2)) for x in tensors[:5]]
        cu_seqlens = (
            None if sequences is None else torch.empty(sequences + 1, dtype=torch.int32, device="meta")
        )
        with flop_counter() as counter, Watch() as watch:
            mesa(*tokens, tensors[5], cu_seqlens=cu_seqlens)[0].sum().backward()
        return counter.get_total_flops() / time, watch.largest / time

    (flops, elements), (flops_later, elements_later) = cost(2048), cost(16_384)
    assert flops_later <= 1.05 * flops
    assert elements_later <= 1.05 * elements
    assert elements_later < 2 * 32 * 32 / 8
    assert flops_later > 2 * 30 * 2 * (
        2 * 32**2
    )  # two solves of 30 steps, 2 heads, one product with H a step
