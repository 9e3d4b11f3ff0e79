"""A mixture of memories, each a gated delta rule over the tokens that are routed to it.

    S_m ← exp(g_m)·(I − β_m·k_m·k_mᵀ)·S_m + β_m·k_m·v_mᵀ     for the memories m in routes_t; others stay
    o_t = scale · Σ_r weights_tr · S_mᵀ·q_t, m = routes_tr    after the update

Here are the public function, its checks, its backends and its work for a roofline.

reference.py   the definition, token by token, memory by memory
torch_form.py  tokens sorted by memory, then the delta rule's PyTorch form
triton_ops.py  the same on a GPU, with kernels that gather and mix, and one for decoding
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.dispatch import Operation, check_packed, on_cuda, one_token
from kernels.ops.delta_rule import work as delta_rule_work
from kernels.ops.memory_mixture.reference import memory_mixture_reference
from kernels.ops.memory_mixture.torch_form import memory_mixture_torch
from kernels.triton_common import lazily, refusal
from kernels.triton_common.tiles import Work, nbytes

__all__ = ["memory_mixture"]


UPDATES = ("gated_delta", "gated_linear")


def _refuses(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g,
    beta,
    routes,
    weights,
    *,
    initial_state=None,
    update="gated_delta",
    **_options,
):
    if update != "gated_delta":
        return f"computes update='gated_delta' only, got '{update}'"
    return refusal(q, k, v, g, beta, weights, initial_state, widths=(q.shape[3], v.shape[4]))


OPERATION = Operation("memory_mixture")
OPERATION.register(
    "triton",
    lazily("kernels.ops.memory_mixture.triton_ops", "memory_mixture_triton"),
    refuses=_refuses,
    suits=on_cuda,
)
OPERATION.register("reference", memory_mixture_reference, suits=one_token)
OPERATION.register("torch", memory_mixture_torch)


def memory_mixture(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    routes: Tensor,
    weights: Tensor,
    *,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
    update: str = "gated_delta",
    backend: str = "auto",
) -> tuple[Tensor, Tensor | None]:
    """Compute a mixture of memories, each a gated delta rule over the tokens that are routed to it.

        S_m ← exp(g_m)·(I − β_m·k_m·k_mᵀ)·S_m + β_m·k_m·v_mᵀ     for the memories m in routes_t; others stay
        S_m ← exp(g_m)·S_m + β_m·k_m·v_mᵀ                        with update="gated_linear", likewise
        o_t = scale · Σ_r weights_tr · S_mᵀ·q_t, m = routes_tr    after the update

    q              [B, T, H, K], shared by the memories, any floating dtype
    k, v           [B, T, M, H, K], [B, T, M, H, V]: a key and a value for every memory, k normalised by the caller
    g, beta        [B, T, M, H]: log decay ≤ 0 in nats and write strength, not checked
    routes         integer [B, T, R], 1 ≤ R ≤ M different memories in [0, M) a token. Only `reference` reports
                   others; elsewhere the result is undefined. An always-on memory is one that every token names
    weights        [B, T, R], the weight of each of them in the output, not checked
    scale          None: K^(−1/2)
    initial_state  [N, M, H, K, V], the memories before every sequence (None: zeros); N = B, or packed the sequences
    cu_seqlens     int32 [N+1], 0 … T: B = 1, and tokens [cu[i], cu[i+1]) are a sequence of their own
    update         gated_delta, the gated delta rule, or gated_linear, gated linear attention: no delta term
    backend        auto, triton (what auto takes on a GPU; gated_delta only) and torch (sorted by memory, then the
                   chunked delta rule over segments), reference (token by token; what auto takes for T = 1 on a CPU)
    returns        o [B, T, H, V] in v's dtype; the memories after the last tokens [N, M, H, K, V], None unless
                   `output_final_state`. States and arithmetic in at least fp32

    A memory that no token of a sequence names keeps its state bit for bit. A NaN shows in all that depends on it;
    triton and torch carry it to other tokens of its chunk in that memory too, earlier ones among them. Work is that of
    R·T tokens of the delta rule, not M·T. Raises ValueError for shapes that do not fit, and for a backend that is
    unknown or cannot serve; NotImplementedError for forward-mode differentiation, which the reference alone has.
    Source: Du et al. 2025, MoM (arXiv:2502.13685), section 3; the update: Yang et al. 2024 (arXiv:2412.06464).
    """
    check_memory_mixture(q, k, v, g, beta, routes, weights, initial_state, cu_seqlens)
    if update not in UPDATES:
        raise ValueError(f"memory_mixture: update must be one of {', '.join(UPDATES)}, not {update!r}")
    return OPERATION(
        q,
        k,
        v,
        g,
        beta,
        routes,
        weights,
        scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state,
        cu_seqlens=cu_seqlens,
        update=update,
        backend=backend,
    )


def check_memory_mixture(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    routes: Tensor,
    weights: Tensor,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
) -> None:
    """Raise ValueError if the arguments of `memory_mixture` do not fit each other.

    They are q [B, T, H, K], k [B, T, M, H, K], v [B, T, M, H, V], g, beta [B, T, M, H], routes [B, T, R] (integers),
    weights [B, T, R], initial_state [N, M, H, K, V] or None, cu_seqlens [N+1] or None (B = 1).
    """
    names = ("q", "k", "v", "g", "beta", "routes", "weights")
    tensors = (q, k, v, g, beta, routes, weights)
    shapes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in zip(names, tensors, strict=True))
    if tuple(x.dim() for x in tensors) != (4, 5, 5, 4, 4, 3, 3):
        raise ValueError(
            "memory_mixture needs q [B, T, H, K], k [B, T, M, H, K], v [B, T, M, H, V], g, beta [B, T, M, H], "
            f"routes, weights [B, T, R], got {shapes}"
        )
    if len({x.shape[:2] for x in tensors}) > 1 or q.shape[1] == 0:
        raise ValueError(f"memory_mixture needs the same B and T, at least 1, in all arguments, got {shapes}")
    memories, heads = beta.shape[2:]
    if not q.shape[2:] == k.shape[3:] or not k.shape[2:4] == v.shape[2:4] == g.shape[2:] == beta.shape[2:]:
        raise ValueError(f"memory_mixture: memories, heads or key widths differ: {shapes}")
    if routes.shape != weights.shape or not 1 <= routes.shape[2] <= memories:
        raise ValueError(
            f"memory_mixture needs routes and weights [B, T, R], R in 1 … {memories}, got {shapes}"
        )
    if routes.dtype.is_floating_point or routes.dtype == torch.bool:
        raise ValueError(f"memory_mixture needs integer routes, got {routes.dtype}")
    if cu_seqlens is not None:
        check_packed("memory_mixture", q, q, cu_seqlens)
    sequences = q.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    wanted = (sequences, memories, heads, q.shape[3], v.shape[4])
    if initial_state is not None and initial_state.shape != wanted:
        raise ValueError(
            f"memory_mixture needs initial_state [N, M, H, K, V] = {wanted}, got {tuple(initial_state.shape)}"
        )


# Operations and bytes, for a roofline.


def work(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    routes: Tensor,
    weights: Tensor,
    *,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
    **_options,
) -> list[Work]:
    """Count the operations and bytes of a call with these arguments.

    The operations are the delta rule's over R·T tokens, and a sum over every token's visits. Of keys
    and values only the visited rows are read; backward writes a gradient, mostly zeros, for every row.

    q [B, T, H, K], k [B, T, M, H, K], v [B, T, M, H, V], g, beta [B, T, M, H], routes integer [B, T, R],
    weights [B, T, R], initial_state [N, M, H, K, V] or None.
    """
    (batch, time, memories, heads, width), value_width = k.shape, v.shape[4]
    slots, sequences = routes.shape[2], batch if cu_seqlens is None else cu_seqlens.shape[0] - 1
    tokens = batch * time
    one = k.new_empty(sequences * memories, -(-tokens * slots // (sequences * memories)), heads, width)
    values = one.new_empty(*one.shape[:3], value_width)
    gates = one.new_empty(one.shape[:3])
    forward, backward = delta_rule_work(one, one, values, gates, gates)
    mixing = 2 * tokens * slots * heads * value_width
    visited = nbytes(k, v, g, beta) * slots // memories
    o = tokens * heads * value_width * v.element_size()
    final = 4 * sequences * memories * heads * width * value_width * output_final_state
    given = nbytes(q, routes, weights, initial_state) + visited
    written = nbytes(q, k, v, g, beta, weights, initial_state)
    return [
        Work("memory_mixture", "forward", forward.flops + mixing, given + o + final),
        Work("memory_mixture", "backward", backward.flops + 2 * mixing, given + o + final + written),
    ]
