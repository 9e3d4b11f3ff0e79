"""Projections, rotary positions and gates that full attention (`F`) and gated sparse attention (`G`) share."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from zoo.interfaces import Dims, Mixer
from zoo.modules import (
    Gate,
    OutputProjection,
    RMSNorm,
    project,
)
from zoo.modules.rotary import rotation
from zoo.options import head_width, kv_heads


class GroupedQueryMixer(Mixer):
    """The projections from x to q, k, v and from the heads' output o to y; a subclass chooses a query's keys.

        q, k = RoPE(norm(x·W_q + b_q)), RoPE(norm(x·W_k + b_k))     [B, T, H, K], [B, T, Hkv, K]
        v = (x·W_v + b_v) ⊙ σ(x·W_G2 + b)                           [B, T, Hkv, K]
        y = (o ⊙ σ(x·W_G1 + b))·W_o                                 [B, T, D]

    The norm per head, the biases of q, k, v and both gates are options. config: a block's, which has all of these.
    Raises UserError, naming the block, for heads and rotary positions that do not fit.
    """

    def __init__(
        self, block: str, dims: Dims, config: Any, heads: int, *, default_kv_heads: int, rotates: bool = True
    ) -> None:
        super().__init__()
        self.heads, self.width = heads, head_width(dims.d_model, heads, "n_heads", config.head_width)
        self.kv_heads = kv_heads(config.n_kv_heads, heads, block, default=default_kv_heads)
        self.rotate = rotation(config, block, self.width, rotates=rotates, backend=dims.body_backend)
        self.rope_base = config.rope_base if rotates else None
        self.backend, self.step_backend = dims.backend, dims.step_backend
        inner, inner_kv = heads * self.width, self.kv_heads * self.width
        self.q_proj = nn.Linear(dims.d_model, inner, bias=config.qkv_bias)
        self.k_proj = nn.Linear(dims.d_model, inner_kv, bias=config.qkv_bias)
        self.v_proj = nn.Linear(dims.d_model, inner_kv, bias=config.qkv_bias)
        self.o_proj = OutputProjection(inner, dims.d_model, bias=False)
        self.q_norm = RMSNorm(self.width, dims.norm_eps) if config.qk_norm else nn.Identity()
        self.k_norm = RMSNorm(self.width, dims.norm_eps) if config.qk_norm else nn.Identity()
        self.output_gate = Gate(dims.d_model, inner) if config.output_gate else None
        self.value_gate = Gate(dims.d_model, inner_kv) if config.value_gate else None

    def _qkv(self, x: Tensor, positions: Tensor, *gates: Gate) -> tuple[Tensor, ...]:
        """q, k, v, and the logits [B, T, N] of further gates of x, which are projected with them."""
        values = [] if self.value_gate is None else [self.value_gate]
        q, k, v, *logits = project(x, self.q_proj, self.k_proj, self.v_proj, *values, *gates)
        if values:
            v = v * torch.sigmoid(logits.pop(0))
        q, k, v = (y.unflatten(-1, (-1, self.width)) for y in (q, k, v))
        q, k = self.q_norm(q), self.k_norm(k)
        if self.rotate is not None:
            q, k = self.rotate((q, k), positions)
        return q, k, v, *logits

    def _out(self, o: Tensor, x: Tensor) -> Tensor:
        o = o.flatten(-2)
        if self.output_gate is not None:
            o = o * self.output_gate(x)
        return self.o_proj(o)
