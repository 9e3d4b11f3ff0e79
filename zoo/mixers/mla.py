"""`L`: multi-head latent attention, which caches one compressed vector a token instead of keys and values."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

import kernels
from zoo.context import Context
from zoo.errors import UserError
from zoo.interfaces import Aux, Dims, Mixer
from zoo.modules import OutputProjection, RMSNorm, RowCache, by_sequence, positions
from zoo.modules.rotary import RopeOptions, mscale, rotation
from zoo.options import added, at_least, head_width, one_of
from zoo.probes.events import attention_values
from zoo.registry import register_mixer


@dataclass
class MLAConfig(RopeOptions):
    """Options of multi-head latent attention; None scales with the model.

    n_heads: heads H (None: the model's); kv_rank: d_c, width of the latent of keys and values (None: D/2); q_rank:
    d'_c, width of the queries' latent (None: 2D/3, rounded to a multiple of 8; 0: none, queries are projections of x);
    head_width: K, content channels of a query and a key (None: D/H); value_width: V, channels of a value (None: K);
    rope_dim: d_R, width of a head's rotary part (None: half a head, even, at least 2; 0: none, and no positions);
    positions: "rope", or "none", which keeps that part and does not rotate it; rope_base: base of rotary positions;
    rope_keys: "shared", one rotary key a token for all heads, or "per_head", one for each, which the cache then holds;
    rope_mscale_all: m, all scores are multiplied by the square of 0.1·m·ln(rope_factor) + 1, and yarn's rotated vectors
    divided by it once (None: 0).

    Rotary positions by the options of RopeOptions.
    """

    n_heads: int | None = None
    kv_rank: int | None = None
    q_rank: int | None = None
    rope_dim: int | None = None
    rope_base: float = 1e4
    rope_keys: str = added("shared", before="shared")
    head_width: int | None = added(None, before=None)
    value_width: int | None = added(None, before=None)
    positions: str = added("rope", before="rope")
    rope_mscale_all: float | None = added(None, before=None)


@register_mixer(
    "mla",
    letter="L",
    config=MLAConfig,
    title="Multi-head latent attention",
    family="softmax attention",
    color="#0072B2",
    mask="causal",
    source="DeepSeek-AI 2024, DeepSeek-V2 (arXiv:2405.04434), section 2.1",
    sketch="""
    x
    q latent | kv latent
    q | k | v
    softmax over s ≤ t
    y
    """,
)
class MLA(Mixer):
    """Softmax attention whose keys and values are projections of one latent vector a token, shared by all heads.

        c_Q = RMSNorm(x·W_DQ)  [B, T, d'_c]        c_KV = RMSNorm(x·W_DKV)  [B, T, d_c]
        q_i = [c_Q·W_UQ_i, RoPE(c_Q·W_QR_i)]       k_i = [c_KV·W_UK_i, RoPE(x·W_KR)]       [B, T, K + d_R]
        v_i = c_KV·W_UV_i  [B, T, V]               o_i = causal softmax(q_i·k_iᵀ/√(K + d_R))·v_i
        y = o·W_O                                  [B, T, D], K = V = D/H by default

    All heads share one rotary key RoPE(x·W_KR); with rope_keys=per_head head i has its own, RoPE(x·W_KR_i). With
    q_rank=0 x itself stands for c_Q; with positions=none nothing is rotated, as in Kimi Linear. RoPE as in
    kernels.rope; rope_mscale_all puts YaRN's factor on the scores, as DeepSeek's models do. Decode state: c_KV and the
    rotated keys of all tokens, d_c + d_R numbers each, or d_c + H·d_R. A step of decoding does not expand them:
    q·(c·W_UK)ᵀ = (q·W_UKᵀ)·cᵀ, and W_UV comes after the weighted sum of the latents. Several tokens at once do where
    that takes fewer multiplications; so does the first token alone.
    """

    state_options = ("kv_rank",)
    context_parallel = True

    def __init__(self, config: MLAConfig, dims: Dims) -> None:
        super().__init__()
        d_model = dims.d_model
        self.heads = dims.heads(config.n_heads)
        self.width = head_width(d_model, self.heads, "n_heads", config.head_width)
        self.value_width = self.width if config.value_width is None else config.value_width
        self.kv_rank = max(1, d_model // 2) if config.kv_rank is None else config.kv_rank
        q_rank = max(8, 8 * round(d_model / 12)) if config.q_rank is None else config.q_rank
        self.rope_dim = max(2, self.width // 4 * 2) if config.rope_dim is None else config.rope_dim
        self.key_heads = self.heads if config.rope_keys == "per_head" else 1
        self.backend, self.step_backend = dims.backend, dims.step_backend
        self._check(config, q_rank)
        rotates = config.positions == "rope" and self.rope_dim > 0
        on_scores = mscale(config.rope_factor or 1.0, config.rope_mscale_all or 0.0)
        self.scale = on_scores**2 * (self.width + self.rope_dim) ** -0.5
        options = {"rotates": rotates, "scores": on_scores, "backend": dims.body_backend}
        self.rotate = rotation(config, "mla", self.rope_dim, **options)
        self.rope_base = config.rope_base if rotates else None
        inner, source = self.heads * self.width, q_rank or d_model
        self.q_down = nn.Linear(d_model, q_rank, bias=False) if q_rank else nn.Identity()
        self.q_norm = RMSNorm(q_rank) if q_rank else nn.Identity()
        self.q_up = nn.Linear(source, inner, bias=False)
        self.kv_down = nn.Linear(d_model, self.kv_rank, bias=False)
        self.kv_norm = RMSNorm(self.kv_rank)
        self.k_up = nn.Linear(self.kv_rank, inner, bias=False)
        self.v_up = nn.Linear(self.kv_rank, self.heads * self.value_width, bias=False)
        self.q_rope = nn.Linear(source, self.heads * self.rope_dim, bias=False) if self.rope_dim else None
        self.k_rope = nn.Linear(d_model, self._key_width, bias=False) if self.rope_dim else None
        self.o_proj = OutputProjection(self.heads * self.value_width, d_model, bias=False)

    @property
    def _key_width(self) -> int:
        """The numbers of a token's rotary keys."""
        return self.key_heads * self.rope_dim

    def _check(self, config: MLAConfig, q_rank: int) -> None:
        at_least(self.kv_rank, 1, "mla.kv_rank")
        at_least(q_rank, 0, "mla.q_rank")
        at_least(self.value_width, 1, "mla.value_width")
        if self.rope_dim < 0 or self.rope_dim % 2:
            raise UserError(
                f"mla.rope_dim={self.rope_dim} must be even (rotations turn pairs), or 0 for none"
            )
        one_of(config.positions, ("rope", "none"), "mla.positions")
        one_of(config.rope_keys, ("shared", "per_head"), "mla.rope_keys")
        if config.rope_keys == "per_head" and not self.rope_dim:
            raise UserError(
                "mla.rope_keys=per_head needs rotary keys, and mla.rope_dim=0 has none; leave out one of the two"
            )
        if config.rope_mscale_all is not None:
            at_least(config.rope_mscale_all, 0, "mla.rope_mscale_all")
            if config.rope_scaling != "yarn":
                raise UserError(
                    f"mla.rope_mscale_all={config.rope_mscale_all} has no effect with "
                    f"mla.rope_scaling={config.rope_scaling}; leave it out"
                )

    def forward(self, x: Tensor, ctx: Context) -> tuple[Tensor, Aux]:
        """Whole sequences: x [B, T, D] -> (y [B, T, D], no losses), with keys and values of all heads expanded."""

        def attend(*inputs: Tensor, cu_seqlens: Tensor | None) -> Tensor:
            q, k, v = self._qkv(*inputs)
            options = {"cu_seqlens": cu_seqlens, "scale": self.scale}
            ctx.record("attention", lambda: attention_values(kernels.attention, q, k, **options))
            return kernels.attention(q, k, v, backend=self.backend, **options)

        o = ctx.by_keys(attend, self._queries(x, ctx.positions), self._latents(x, ctx.positions))
        return self.o_proj(o.flatten(-2)), {}

    def init_state(self, batch_size, *, capacity=0, device=None, dtype=torch.float32):
        """An empty cache of one row [c_KV, RoPE(x·W_KR)] a token, [B, T, d_c + d_R], or with H keys in it."""
        shape = (batch_size, capacity, self.kv_rank + self._key_width)
        return RowCache(torch.zeros(shape, device=device, dtype=dtype))

    def extend(self, x: Tensor, state: RowCache) -> tuple[Tensor, RowCache]:
        """The next tokens: x [B, T, D] -> (y [B, T, D], the cache with their rows)."""
        at = positions(state, x.shape[1], x.device)
        o = by_sequence(self._attend, state, *self._queries(x, at), torch.cat(self._latents(x, at), dim=-1))
        return self.o_proj(o.flatten(-2)), state

    def _attend(self, cache: RowCache, content: Tensor, rotated: Tensor, row: Tensor) -> Tensor:
        """o [B, T, H, V] of the next tokens, whose rows [B, T, d_c (+ d_R or H·d_R)] join the cache."""
        (rows,) = cache.append(row)
        rows, tokens = rows.to(content.dtype), row.shape[1]
        return (self._absorbed if self._absorbs(tokens, rows.shape[1]) else self._expanded)(
            content, rotated, rows
        )

    def _absorbs(self, tokens: int, rows: int) -> bool:
        """Whether scores against the rows take fewer multiplications than making keys and values of them."""
        widths = self.width + self.value_width
        up, scores = self.kv_rank * self.heads * widths, tokens * rows * self.heads
        absorbed = tokens * up + scores * (2 * self.kv_rank + self.rope_dim)
        return absorbed < rows * up + scores * (widths + self.rope_dim)

    def _expanded(self, content: Tensor, rotated: Tensor, rows: Tensor) -> Tensor:
        """Attention with the keys and values of all rows, made of them."""
        latent, key = rows.split([self.kv_rank, self._key_width], -1)
        qkv = self._qkv(content, rotated, latent, key)
        return kernels.attention(*qkv, scale=self.scale, backend=self.step_backend)

    def _absorbed(self, content: Tensor, rotated: Tensor, rows: Tensor) -> Tensor:
        """Attention over the rows as they are, with W_UK and W_UV absorbed into q and o."""
        absorbed = torch.einsum("bthk,hkc->bthc", content, self._up_by_head(self.k_up))
        mix = self._mix_shared if self.key_heads == 1 else self._mix_per_head
        return torch.einsum("bthc,hvc->bthv", mix(absorbed, rotated, rows), self._up_by_head(self.v_up))

    def _mix_shared(self, absorbed: Tensor, rotated: Tensor, rows: Tensor) -> Tensor:
        """The heads' weighted sums of latents [B, T, H, d_c], where all share one key a token: one head's queries."""
        q = torch.cat([absorbed, rotated], dim=-1)
        options = {"scale": self.scale, "backend": self.step_backend}
        # Values are the whole rows, of which the latent part is kept; cutting it out before would copy the cache.
        if q.shape[1] == 1:
            keys = rows[:, :, None]
            mixed = kernels.attention(q.transpose(1, 2), keys, keys, causal=False, **options).transpose(1, 2)
        else:
            mixed = kernels.attention(q, rows[:, :, None], rows[:, :, None], **options)
        return mixed[..., : self.kv_rank]

    def _mix_per_head(self, absorbed: Tensor, rotated: Tensor, rows: Tensor) -> Tensor:
        """The same with a rotary key for each head: scores are sums of two products, softmax in at least fp32.

        In PyTorch whatever the backend: as keys of one attention the latents would stand there once for each head.
        """
        latent, key = rows.split([self.kv_rank, self._key_width], -1)
        scores = torch.einsum("bthc,bsc->bhts", absorbed, latent)
        scores = scores + torch.einsum("bthr,bshr->bhts", rotated, self._by_head(key))
        tokens, seen = scores.shape[-2:]
        future = torch.ones(tokens, seen, dtype=torch.bool, device=rows.device).triu(seen - tokens + 1)
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32)).masked_fill(future, -torch.inf)
        weights = (scores * self.scale).softmax(-1).to(rows.dtype)
        return torch.einsum("bhts,bsc->bthc", weights, latent)

    def _qkv(
        self, content: Tensor, rotated: Tensor, latent: Tensor, key: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """q [B, T, H, K + d_R], k likewise and v [B, S, H, V]; latent [B, S, d_c], key [B, S, (H·)d_R], rotated."""
        keys = key.unflatten(-1, (self.key_heads, self.rope_dim)).expand(-1, -1, self.heads, -1)
        k = torch.cat([self._by_head(self.k_up(latent)), keys], dim=-1)
        return torch.cat([content, rotated], dim=-1), k, self._by_head(self.v_up(latent))

    def _queries(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """The heads' content part [B, T, H, K] and their rotated part [B, T, H, d_R]."""
        latent = self.q_norm(self.q_down(x))
        content = self._by_head(self.q_up(latent))
        if self.q_rope is None:
            return content, content[..., :0]
        return content, self._turned(self._by_head(self.q_rope(latent)), positions)

    def _latents(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """The row that is cached: the normalised latent [B, T, d_c] and the rotated keys [B, T, d_R or H·d_R]."""
        latent = self.kv_norm(self.kv_down(x))
        if self.k_rope is None:
            return latent, latent[..., :0]
        keys = self.k_rope(x).unflatten(-1, (self.key_heads, self.rope_dim))
        return latent, self._turned(keys, positions).flatten(2)

    def _turned(self, x: Tensor, positions: Tensor) -> Tensor:
        """x [B, T, heads, d_R], rotated unless positions=none."""
        return x if self.rotate is None else self.rotate((x,), positions)[0]

    def _by_head(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1))

    def _up_by_head(self, projection: nn.Linear) -> Tensor:
        """W_UK as [H, K, d_c], or W_UV as [H, V, d_c]."""
        return projection.weight.unflatten(0, (self.heads, -1))
