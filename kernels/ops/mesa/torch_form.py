"""The mesa layer in PyTorch: chunk by chunk, with all tokens' systems solved at once, in memory linear in T."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from kernels.autograd import backward_costs
from kernels.dispatch import reverse_mode_only, without_autocast
from kernels.ops.mesa.reference import iterates, with_symmetric_part, write
from kernels.packing import chunk_counts, most_chunks, ragged_rows, token_sequences

# Linear recurrences by matrix products: no loop over time, and no exponent above 0.

GROUP = 16
"""Steps that one product joins. Work a step is linear in it, depth falls with its logarithm."""


def pair_sums(gates: Tensor) -> Tensor:
    """Return Σ gates from s+1 to t at [..., t, s] for s ≤ t, −inf for s > t: [..., n] -> [..., n, n].

    Every pair is summed by itself: the difference of two sums from the start would lose a small gate that
    follows large ones, and would be NaN after a gate of −inf.
    """
    size = gates.shape[-1]
    later = torch.ones(size, size, dtype=torch.bool, device=gates.device).tril(-1)
    sums = torch.where(later, gates.unsqueeze(-1), 0).cumsum(-2)
    return torch.where(later.mT, -torch.inf, sums)


def scan(writes: Tensor, gates: Tensor, before: Tensor) -> Tensor:
    """Return s_c = exp(gate_c)·s_{c−1} + write_c for every c, from s_{−1} = before.

    writes [..., n, F]; gates [..., n], log, ≤ 0; before [..., F] -> [..., n, F]
    """
    steps = gates.shape[-1]
    if steps <= GROUP:
        return pair_sums(gates).exp() @ writes + _left(gates) * before.unsqueeze(-2)
    spare = -steps % GROUP
    writes = F.pad(writes, (0, 0, 0, spare)).unflatten(-2, (-1, GROUP))
    gates = F.pad(gates, (0, spare)).unflatten(-1, (-1, GROUP))
    own = pair_sums(gates).exp() @ writes
    ends = scan(own[..., -1, :], gates.sum(-1), before)
    starts = torch.cat([before.unsqueeze(-2), ends[..., :-1, :]], -2)
    return (own + _left(gates) * starts.unsqueeze(-2)).flatten(-3, -2)[..., :steps, :]


def _left(gates: Tensor) -> Tensor:
    """The decay from before the first step to after each, [..., n, 1]."""
    return gates.cumsum(-1).exp().unsqueeze(-1)


# The token axis as chunks that each belong to one sequence.


@dataclass(frozen=True)
class Packing:
    """The places of packed tokens among n chunks of C rows; every sequence begins a chunk.

    source    int64 [n·C], the token of every row, T where there is none
    restore   int64 [T], the row of every token
    sequence  int64 [n], the sequence of every chunk
    opens     bool [n], whether a chunk is its sequence's first
    last      int64 [N], the last chunk of every sequence
    empty     bool [N], whether a sequence has no tokens
    """

    source: Tensor
    restore: Tensor
    sequence: Tensor
    opens: Tensor
    last: Tensor
    empty: Tensor

    @staticmethod
    def of(cu_seqlens: Tensor, tokens: int, chunk: int) -> Packing:
        """The layout of sequences whose bounds are cu_seqlens; as many chunks as the worst case needs.

        No shape depends on the bounds' values.
        """
        cu = cu_seqlens.long()
        chunks = chunk_counts(cu, chunk)
        ends = chunks.cumsum(0)
        sequence, number = ragged_rows(chunks, most_chunks(tokens, chunks.shape[0], chunk))
        row = torch.arange(chunk, device=cu.device)
        source = cu[sequence, None] + number[:, None] * chunk + row
        source = torch.where(source < cu[sequence + 1, None], source, tokens).flatten()
        owner = token_sequences(cu, tokens)
        restore = (ends - chunks)[owner] * chunk + torch.arange(tokens, device=cu.device) - cu[owner]
        return Packing(source, restore, sequence, number == 0, (ends - 1).clamp_min(0), chunks == 0)


@dataclass(frozen=True)
class Chunks:
    """Time as chunks: `split` to [B, H, n, C, ...], `join` back to [B, T, H, ...]."""

    tokens: int
    size: int
    packing: Packing | None

    @staticmethod
    def of(tokens: int, size: int, cu_seqlens: Tensor | None) -> Chunks:
        """The chunks of C = `size` tokens, or fewer if there are not so many, of T = `tokens` in all.

        cu_seqlens: [N+1] of packed sequences, or None.
        """
        size = max(1, min(size, tokens))
        return Chunks(tokens, size, None if cu_seqlens is None else Packing.of(cu_seqlens, tokens, size))

    def split(self, x: Tensor) -> Tensor:
        """x [B, T, H, ...] -> [B, H, n, C, ...]; rows without a token are 0."""
        packing, tail = self.packing, [0, 0] * (x.dim() - 2)
        if packing is None:
            x = F.pad(x, [*tail, 0, -self.tokens % self.size])
        else:
            x = F.pad(x, [*tail, 0, 1]).index_select(1, packing.source)
        return x.unflatten(1, (-1, self.size)).movedim(3, 1).contiguous()

    def join(self, x: Tensor) -> Tensor:
        """x [B, H, n, C, ...] -> [B, T, H, ...]."""
        x = x.movedim(1, 3).flatten(1, 2)
        return x[:, : self.tokens] if self.packing is None else x.index_select(1, self.packing.restore)

    def states(self, writes: Tensor, gates: Tensor, initial: Tensor) -> tuple[Tensor, Tensor]:
        """The states before every chunk [B, H, n, F], and those after every sequence [N, H, F].

        writes [B, H, n, F]: the sum that a chunk adds; gates [B, H, n]: its log decay; initial [N, H, F]
        """
        if self.packing is None:
            after = torch.cat([initial.unsqueeze(2), scan(writes, gates, initial)], 2)
            return after[:, :, :-1], after[:, :, -1]
        opens = self.packing.opens
        opening = initial.index_select(0, self.packing.sequence).transpose(0, 1).unsqueeze(0)
        begun = torch.where(opens[:, None], writes + gates.exp().unsqueeze(-1) * opening, writes)
        after = scan(begun, torch.where(opens, -torch.inf, gates), torch.zeros_like(initial[:1]))
        before = torch.where(opens[:, None], opening, F.pad(after, (0, 0, 1, 0))[:, :, :-1])
        ends = after[0].transpose(0, 1).index_select(0, self.packing.last)
        return before, torch.where(self.packing.empty[:, None, None], initial, ends)


# The linear systems of all tokens, solved together; none of their matrices is ever formed.

BLOCK_BYTES = 1 << 20
"""Bytes that one step reads of a block of chunks, about: as many as stay in a core's L2 cache."""


class Systems(NamedTuple):
    """One matrix a token, A_t = Λ + c_t·S + Σ_{s ≤ t} W_ts·k_s·k_sᵀ, the sum over the tokens of t's chunk.

    k        [L, C, K], the keys of L chunks of C tokens
    start    [L, K, K], S: Σ k·kᵀ before a chunk, symmetric
    carry    [L, C, 1], c: the decay from the chunk's start to a token
    weights  [L, C, C], W: β_s times the decay from s to t; 0 for s > t
    lamb     [L, 1, K], the diagonal of Λ
    """

    k: Tensor
    start: Tensor
    carry: Tensor
    weights: Tensor
    lamb: Tensor

    def apply(self, x: Tensor) -> Tensor:
        """Return A_t·x_t for every token, [L, C, K]: two products of C × C × K and one of C × K × K a chunk."""
        y = torch.bmm(x, self.start).mul_(self.carry).addcmul_(x, self.lamb)
        return y.baddbmm_(torch.bmm(x, self.k.mT).mul_(self.weights), self.k)


# One operator: thirty steps in a graph, in every layer, would take a compiler minutes.
@torch.library.custom_op("archzoo::mesa_solve", mutates_args=())
def solve(
    b: Tensor, k: Tensor, start: Tensor, carry: Tensor, weights: Tensor, lamb: Tensor, steps: int
) -> Tensor:
    """Solve x_t = A_t⁻¹·b_t by conjugate gradients, differentiated by a second solve, since A_t is symmetric.

        y_t = A_t⁻¹·x̄_t,   b̄_t = y_t,   Ā_t = −y_t·x_tᵀ, and from it those of k, S, c, W, Λ

    b [L, C, K], the rest as in `Systems` -> [L, C, K]. The gradient is that of the exact solution, right as
    far as both solves have converged. On CPUs a few chunks are solved at a time: their vectors stay in cache.
    """
    systems = Systems(k, start, carry, weights, lamb)
    if b.device.type != "cpu" or not len(b):
        return conjugate_gradient(systems, b, steps)
    rows = max(1, BLOCK_BYTES // (6 * b[0].nbytes + sum(x[0].nbytes for x in systems)))
    parts = zip(b.split(rows), *(x.split(rows) for x in systems), strict=True)
    return torch.cat([conjugate_gradient(Systems(*part), b, steps) for b, *part in parts])


@solve.register_fake
def _(b, k, start, carry, weights, lamb, steps):
    return b.new_empty(b.shape)


def _save(ctx, inputs, output):
    *tensors, ctx.steps = inputs
    ctx.save_for_backward(output, *tensors[1:])


def _backward(ctx, grad: Tensor):
    x, *systems = ctx.saved_tensors
    k, start, carry, weights, _ = systems
    y = solve(grad, *systems, ctx.steps)
    xk, yk = torch.bmm(x, k.mT), torch.bmm(y, k.mT)
    d_k = -torch.baddbmm(torch.bmm((xk * weights).mT, y), (yk * weights).mT, x)
    d_start = -torch.bmm((carry * x).mT, y)
    d_carry = -(torch.bmm(x, start) * y).sum(-1, keepdim=True)
    d_lamb = -(x * y).sum(1, keepdim=True)
    return y, d_k, d_start, d_carry, -xk * yk, d_lamb, None


solve.register_autograd(_backward, setup_context=_save)


@register_flop_formula(torch.ops.archzoo.mesa_solve)
def _flops(b, k, start, carry, weights, lamb, steps, *, out_shape=None, **_) -> int:
    """All steps; what a token saves by converging early depends on values."""
    chunks, size, width = b
    return 2 * chunks * size * width * steps * (width + 2 * size)


backward_costs(torch.ops.archzoo.mesa_solve, 1)  # the second solve, whatever the first took


def conjugate_gradient(systems: Systems, b: Tensor, steps: int) -> Tensor:
    """Solve A_t·x_t = b_t for every token by itself, by at most `steps` steps from x = 0, preconditioned by Λ.

    b [L, C, K] -> x [L, C, K] in b's dtype; the systems A_t = H_t + Λ: `Systems`.

    b is scaled to 1, so that a small gradient does not underflow when it is squared. A token whose residual
    has fallen to a hundredth of the rounding error does not change from then on; 0/0 cannot occur.
    """
    scale = b.abs().amax(-1, keepdim=True)
    r = b / scale.masked_fill(scale == 0, 1)
    z = r / systems.lamb
    x, p, rz = torch.zeros_like(r), z.clone(), _dot(r, z)
    enough = rz * (0.01 * torch.finfo(b.dtype).eps) ** 2
    for _ in range(steps):
        live = ~(rz <= enough)  # a NaN goes on, and into the solution
        if b.device.type == "cpu" and not live.any():  # a GPU would have to be waited for
            break
        ap = systems.apply(p)
        alpha = torch.where(live, rz / _dot(p, ap), 0)
        x.addcmul_(alpha, p)
        r.addcmul_(alpha, ap, value=-1)
        z = r / systems.lamb
        rz, old = _dot(r, z), rz
        p.mul_(torch.where(live, rz / old, 0)).add_(z)
    return x.mul_(scale)


def _dot(x: Tensor, y: Tensor) -> Tensor:
    return torch.linalg.vecdot(x, y).unsqueeze(-1)


# One token: its matrix is formed, and a step of the solver is few operations.
#
# The solver is not replaced by a direct solve: where `cg_steps` do not reach the solution, a decoded token still has
# to be what training computes.

State = tuple[Tensor, Tensor]

CHECK_EVERY = 4
"""Steps of the conjugate gradient between two looks at whether it has converged."""


def mesa_torch_step(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, lamb: Tensor, cg_steps: int, state: State
) -> tuple[Tensor, State]:
    """Compute `kernels.mesa` of T = 1 tokens from a state, without gradient, and the state after it.

    q, k [B, 1, H, K], v [B, 1, H, V], g, beta [B, 1, H], lamb [H, K], state (H [B, H, K, K], G [B, H, K, V]). Returns
    o [B, 1, H, V] in q's dtype and the new (H, G).
    """
    wide = torch.promote_types(q.dtype, torch.float32)
    with without_autocast(q):
        one, key, value = (x[:, 0].to(wide) for x in (q, k, v))
        gamma, write = (
            g[:, 0].to(wide).exp()[..., None, None],
            (beta[:, 0].to(wide)[..., None] * key)[..., None],
        )
        h_kk, h_kv = (x.to(wide) for x in with_symmetric_part(state))
        h_kk = torch.addcmul(gamma * h_kk, write, key.unsqueeze(-2))
        h_kv = torch.addcmul(gamma * h_kv, write, value.unsqueeze(-2))
        x = conjugate_gradient_step(h_kk, lamb.to(wide), one, cg_steps)
        o = (x.unsqueeze(-2) @ h_kv).transpose(1, 2)
    return o.to(q.dtype), (h_kk, h_kv)


def conjugate_gradient_step(h: Tensor, lamb: Tensor, b: Tensor, steps: int) -> Tensor:
    """Take at most `steps` steps towards (H + Λ)⁻¹·b: H [B, H, K, K], Λ's diagonal [H, K], b [B, H, K].

    Preconditioned by Λ: the conjugate gradient of Λ^(−1/2)·H·Λ^(−1/2) + I.
    It ends where every residual is a hundredth of the rounding error, from where on steps change nothing.
    """
    tiny = torch.finfo(b.dtype).tiny
    root = torch.rsqrt(lamb).unsqueeze(-1)
    scaled = (h * root * root.mT).flatten(0, 1)
    scale = b.abs().amax(-1, keepdim=True).clamp_min_(tiny)
    r = (b / scale).unsqueeze(-1).mul_(root).flatten(0, 1)
    x, p, rr = torch.zeros_like(r), r.clone(), _square(r)
    enough = rr * (0.01 * torch.finfo(b.dtype).eps) ** 2
    for step in range(steps):
        if step % CHECK_EVERY == 0 and bool((rr <= enough).all()):
            break
        ap = torch.baddbmm(p, scaled, p)
        alpha = rr / torch.bmm(p.mT, ap).clamp_min_(tiny)
        x.addcmul_(alpha, p)
        r.addcmul_(alpha, ap, value=-1)
        rr, old = _square(r), rr
        p = torch.addcmul(r, rr / old, p)
    return x.view(*b.shape, 1).mul_(root).squeeze(-1).mul_(scale)


def _square(r: Tensor) -> Tensor:
    """‖r‖² [N, 1, 1] of columns [N, K, 1]; never 0, so that ratios of two of them are numbers."""
    return torch.bmm(r.mT, r).clamp_min_(torch.finfo(r.dtype).tiny)


# The backend.

CHUNK = 32
"""Tokens a chunk. A longer one means fewer states to keep and more work a token."""


def mesa_torch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    lamb: Tensor,
    *,
    cg_steps: int = 30,
    initial_state: State | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, State | None]:
    """Compute `kernels.mesa` in chunks of tokens.

    With a chunk's start states H₀, G₀, c_t = exp(Σ g up to t) and W_ts = β_s·exp(Σ g from s+1 to t):

        H_t = c_t·H₀ + Σ_s W_ts·k_s·k_sᵀ,   G_t = c_t·G₀ + Σ_s W_ts·k_s·v_sᵀ      over s ≤ t of the chunk

    so that H_t·x and G_tᵀ·x are small products for all tokens of a chunk and no H_t is ever formed.

    q, k [B, T, H, K], v [B, T, H, V], g, beta [B, T, H], lamb [H, K], initial_state (H [N, H, K, K], G [N, H, K, V]) or
    None. Returns o [B, T, H, V] in q's dtype and (H, G) in at least fp32, or None.
    """
    if _is_step(q, initial_state, cu_seqlens):
        o, after = mesa_torch_step(q, k, v, g, beta, lamb, cg_steps, initial_state)
        return o, after if output_final_state else None
    reverse_mode_only("mesa", q, k, v, g, beta, lamb, *(initial_state or ()))
    wide = torch.promote_types(q.dtype, torch.float32)
    dtype, width, widths = q.dtype, q.shape[3], [q.shape[3], v.shape[3]]
    with without_autocast(q):
        chunks = Chunks.of(q.shape[1], CHUNK, cu_seqlens)
        initial = _flat_state(q, v, initial_state, cu_seqlens).to(wide)
        q, k, v, g, beta = (chunks.split(x.to(wide)) for x in (q, k, v, g, beta))
        carry = g.cumsum(-1).exp().unsqueeze(-1)
        weights = pair_sums(g).exp() * beta.unsqueeze(-2)
        writes = (k * weights[..., -1, :, None]).mT @ torch.cat([k, v], -1)
        before, after = chunks.states(writes.flatten(-2), g.sum(-1), initial)
        h_kk, h_kv = before.unflatten(-1, (width, -1)).split(widths, -1)
        diagonal = lamb.to(wide)[:, None, None].expand(*q.shape[:3], 1, width)
        systems = (x.flatten(0, 2) for x in (k, h_kk, carry, weights, diagonal))
        x = solve(q.flatten(0, 2), *systems, cg_steps).view_as(q)
        o = carry * (x @ h_kv) + (x @ k.mT * weights) @ v
    o = chunks.join(o).to(dtype)
    if not output_final_state:
        return o, None
    # Copies, for views would keep the states of all chunks in memory as long as these live.
    h_kk, h_kv = after.unflatten(-1, (width, -1)).split(widths, -1)
    return o, (
        h_kk.clone(memory_format=torch.contiguous_format),
        h_kv.clone(memory_format=torch.contiguous_format),
    )


def _is_step(q: Tensor, state: State | None, cu_seqlens: Tensor | None) -> bool:
    """Return whether a call decodes one token."""
    decodes = q.shape[1] == 1 and cu_seqlens is None and state is not None and not torch.is_grad_enabled()
    return decodes and q.device.type == "cpu" and not torch.compiler.is_compiling()


def _flat_state(q: Tensor, v: Tensor, state: State | None, cu_seqlens: Tensor | None) -> Tensor:
    """[H | G] of every sequence as one vector a head, [N, H, K·(K+V)]."""
    if state is not None:
        return torch.cat(with_symmetric_part(state), -1).flatten(-2)
    sequences = q.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    return q.new_zeros(sequences, q.shape[2], q.shape[3] * (q.shape[3] + v.shape[3]))


# The residual of every token's conjugate gradient after every step.

BLOCK = 64
"""Tokens whose matrices are held, and solved, at a time."""


def mesa_residuals(
    q: Tensor,
    k: Tensor,
    g: Tensor,
    beta: Tensor,
    lamb: Tensor,
    *,
    cg_steps: int = 30,
    cu_seqlens: Tensor | None = None,
) -> Tensor:
    """Compute ‖q_t − (H_t + Λ)·x‖ / ‖q_t‖ of the x that `mesa` has for (H_t + Λ)⁻¹·q_t after 0, 1 … cg_steps steps.

    Arguments as in `kernels.mesa` -> [cg_steps + 1, B, T, H] in at least fp32; the first is 1, and all are 0 for
    q = 0. For inspecting the solver, not for training: every matrix H_t is formed.
    """
    wide = torch.promote_types(q.dtype, torch.float32)
    q, k, beta, lamb = (x.to(wide) for x in (q, k, beta, lamb))
    gamma = g.to(wide).exp()
    if cu_seqlens is not None:  # a sequence starts without the state of the one before
        starts = cu_seqlens[:-1].long()
        gamma = gamma.index_fill(1, starts[starts < q.shape[1]], 0)
    h_kk = q.new_zeros(q.shape[0], *q.shape[2:], q.shape[3])
    residuals = []
    with without_autocast(q):
        for part in zip(*(x.split(BLOCK, 1) for x in (q, k, gamma, beta)), strict=True):
            matrices = []
            for key, forget, strength in zip(*(x.unbind(1) for x in part[1:]), strict=True):
                h_kk = write(h_kk, key, key, forget, strength)
                matrices.append(h_kk)
            residuals.append(_relative(torch.stack(matrices, 1), lamb, part[0], cg_steps))
    return torch.cat(residuals, 2)


def _relative(h_kk: Tensor, lamb: Tensor, b: Tensor, steps: int) -> Tensor:
    """‖b − (H + Λ)·x‖ / ‖b‖ of all iterates x: H [..., H, K, K], lamb [H, K], b [..., H, K] -> [steps + 1, ..., H]."""
    left = [
        (b - lamb * x - (h_kk @ x[..., None])[..., 0]).norm(dim=-1) for x in iterates(h_kk, lamb, b, steps)
    ]
    return torch.stack(left) / b.norm(dim=-1).clamp_min(torch.finfo(b.dtype).tiny)
