"""The gated delta rule: the public function, its checks, its backends and its work for a roofline.

    S_t = (I − β_t·k_t·k_tᵀ)·Diag(exp g_t)·S_{t−1} + β_t·k_t·v_tᵀ        o_t = scale · S_tᵀ·q_t

reference.py        the definition, token by token
torch_form.py       chunks of up to 32 tokens in PyTorch
triton_ops.py       chunks of 64 tokens on a GPU: the order of the steps, forward and backward
triton_forward.py   kernels of the forward pass: preparation of all chunks, then the recurrence across them
triton_backward.py  kernels of the gradients
triton_step.py      the kernel of one token, for decoding
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from kernels.dispatch import Operation, check_packed, on_cuda, one_token
from kernels.ops.delta_rule.reference import delta_rule_reference
from kernels.ops.delta_rule.torch_form import delta_rule_torch
from kernels.triton_common import lazily, refusal
from kernels.triton_common.tiles import Work, nbytes

__all__ = ["delta_rule"]


def _refuses(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, *, initial_state=None, **_options):
    return refusal(q, k, v, g, beta, initial_state, widths=(q.shape[3], v.shape[3]))


def _with_heads_repeated(form: Callable) -> Callable:
    """Wrap a form that needs q, k and v with as many heads as beta."""

    def run(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, **options):
        heads = beta.shape[2]
        return form(
            *(x if x.shape[2] == heads else x.repeat_interleave(heads // x.shape[2], 2) for x in (q, k, v)),
            g,
            beta,
            **options,
        )

    return run


OPERATION = Operation("delta_rule")
OPERATION.register(
    "triton",
    lazily("kernels.ops.delta_rule.triton_ops", "delta_rule_triton"),
    refuses=_refuses,
    suits=on_cuda,
)
OPERATION.register("reference", _with_heads_repeated(delta_rule_reference), suits=one_token)
OPERATION.register("torch", _with_heads_repeated(delta_rule_torch))


def delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    *,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
    backend: str = "auto",
) -> tuple[Tensor, Tensor | None]:
    """Compute the gated delta rule; with a gate per channel, Kimi delta attention.

        S_t = (I − β_t·k_t·k_tᵀ)·Diag(exp g_t)·S_{t−1} + β_t·k_t·v_tᵀ        o_t = scale · S_tᵀ·q_t

    q, k           [B, T, H, K], any floating dtype; k normalised by the caller (a longer k with β > 0 may diverge)
    v              [B, T, H, V]
    g              [B, T, H] (one decay a head) or [B, T, H, K] (one a channel), log gates ≤ 0 in nats, not checked
    beta           [B, T, H], in (0, 1), or (0, 2) for transitions with negative eigenvalues, not checked
    scale          None: K^(−1/2)
    initial_state  [N, H, K, V], the state before every sequence (None: zeros); N = B, or packed the sequences
    cu_seqlens     int32 [N+1], 0 … T: B = 1, and tokens [cu[i], cu[i+1]) are a sequence of their own
    backend        auto, triton (what auto takes on a GPU: chunks of 64 tokens), torch (chunks of 32 tokens),
                   reference (token by token; what auto takes for T = 1 on a CPU)
    returns        o [B, T, H, V] in v's dtype; the states after the last tokens [N, H, K, V], None unless
                   `output_final_state`. States and arithmetic in at least fp32

    H is the number of heads of g and beta; q, k and v may have fewer: head h uses their head ⌊h·Hx/H⌋.
    A NaN shows in all that depends on it; triton and torch carry it to other tokens of its chunk too, earlier ones
    among them. Work and memory are linear in T. The torch form reads the boundaries on the host, if there are any.
    Raises ValueError for shapes that do not fit, and for a backend that is unknown or cannot serve the call;
    NotImplementedError for forward-mode differentiation, which the reference alone has.
    Source: Yang et al. 2024 (arXiv:2412.06464), eq. 10; per channel: Kimi Team 2025 (arXiv:2510.26692), eq. 1.
    """
    check_delta_rule(q, k, v, g, beta, initial_state, cu_seqlens)
    return OPERATION(
        q,
        k,
        v,
        g,
        beta,
        scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state,
        cu_seqlens=cu_seqlens,
        backend=backend,
    )


def check_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
) -> None:
    """Raise ValueError if the arguments of `delta_rule` do not fit each other.

    They are q, k [B, T, H, K], v [B, T, H, V], g [B, T, H] or [B, T, H, K], beta [B, T, H], initial_state [N, H, K, V],
    cu_seqlens [N+1] (B = 1); fewer heads of q, k or v than of beta have to divide them.
    """
    shapes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in zip("qkvg", (q, k, v, g), strict=True))
    shapes += f", beta {tuple(beta.shape)}"
    if not q.dim() == k.dim() == v.dim() == 4 or beta.dim() != 3 or g.dim() not in (3, 4):
        raise ValueError(
            "delta_rule needs q, k [B, T, H, K], v [B, T, H, V], g [B, T, H] or [B, T, H, K], beta [B, T, H], "
            f"got {shapes}"
        )
    if len({x.shape[:2] for x in (q, k, v, g, beta)}) > 1 or q.shape[1] == 0:
        raise ValueError(f"delta_rule needs the same B and T, at least 1, in all arguments, got {shapes}")
    if q.shape[3] != k.shape[3] or g.shape not in (beta.shape, (*beta.shape, k.shape[3])):
        raise ValueError(f"delta_rule: key widths or the heads of g and beta differ: {shapes}")
    if any(x.shape[2] == 0 or beta.shape[2] % x.shape[2] for x in (q, k, v)):
        raise ValueError(
            f"delta_rule needs numbers of heads of q, k and v that divide those of g and beta, got {shapes}"
        )
    if cu_seqlens is not None:
        check_packed("delta_rule", q, k, cu_seqlens)
    sequences = q.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    wanted = (sequences, beta.shape[2], k.shape[3], v.shape[3])
    if initial_state is not None and initial_state.shape != wanted:
        raise ValueError(
            f"delta_rule needs initial_state [N, H, K, V] = {wanted}, got {tuple(initial_state.shape)}"
        )


# Operations and bytes, for a roofline.

CHUNK = 64  # as the kernels have it; more tokens mean more operations inside a chunk and fewer states


def work(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    *,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
    **_options,
) -> list[Work]:
    """Count the operations and bytes that the chunked algorithm needs at least for a call with these arguments.

    A token meets the c tokens of its chunk in two products of width K and two triangles of values and keys, and the
    state in three products of K × V; c is the chunk's length, or T where that is shorter. Pairs of tokens count half,
    for half of them are masked. Backward has each product twice, once for either factor.

    q, k [B, T, H, K], v [B, T, H, V], g [B, T, H] or [B, T, H, K], beta [B, T, H], initial_state [N, H, K, V].
    """
    heads, width, value_width = beta.shape[2], k.shape[3], v.shape[3]
    sequences = q.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    chunk = min(CHUNK, max(1, q.shape[0] * q.shape[1] // sequences))
    pairs = 2 * beta.numel() * chunk / 2
    intra_chunk = pairs * (2 * width + chunk / 3 + width + 2 * value_width)
    flops = intra_chunk + 6 * beta.numel() * width * value_width
    given = nbytes(q, k, v, g, beta, initial_state)
    o = beta.numel() * value_width * v.element_size()
    final = 4 * sequences * heads * width * value_width * output_final_state
    # Backward reads the inputs and two gradients, and writes a gradient for every input.
    return [
        Work("delta_rule", "forward", flops, given + o + final),
        Work("delta_rule", "backward", 2 * flops, 2 * given + o + final),
    ]
