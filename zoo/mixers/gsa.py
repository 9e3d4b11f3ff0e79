"""`G`: gated sparse attention, where a light indexer picks the few tokens that a query attends to."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import kernels
from zoo.cache import RowCache
from zoo.context import Context
from zoo.errors import UserError
from zoo.indexer import Indexer, Warmup
from zoo.mixer import Aux, Mixer
from zoo.modules import Dims, Gate, OutputProjection, even_width, head_width, positive, third
from zoo.options import added
from zoo.recompute import cheap
from zoo.registry import register_mixer
from zoo.showing import show_gates, show_sparse

ADAPTIVE = ("seed", "inverse", "none")
SCORES = ("sigmoid", "relu")


@dataclass
class GSAConfig:
    """Options of gated sparse attention; None scales with the model.

    n_heads: None for the model's; n_kv_heads: None for a third of them; rope_base: base of rotary positions;
    index_heads, index_width (None: D/12): H^I and d_I of the indexer; index_rope: rotary positions in the
    indexer, as DeepSeek-V3.2's has; False: none, as the OrthGSA document writes it, but then it cannot find the
    tokens just before t, however strongly attention wants them; scores: "sigmoid", the OrthGSA document's bounded
    scores, or "relu", DeepSeek-V3.2's, which need adaptive=none;
    k_base, k_min, k_max: how many tokens a query attends to (None: min(2048, T/8), k_base/8, 2·k_base for the
    configured length T); adaptive: how k follows the variance of the scores, "inverse", "seed" or "none";
    beta: of "seed"; reference_variance: of "inverse"; output_gate (G1), value_gate (G2); warmup: steps of
    dense attention, at most a tenth of the training; aux_weight: weight of the indexer's loss.
    """

    n_heads: int | None = None
    n_kv_heads: int | None = None
    rope_base: float = 1e4
    index_heads: int = 4
    index_width: int | None = None
    index_rope: bool = True
    scores: str = added("sigmoid", before="sigmoid")
    k_base: int | None = None
    k_min: int | None = None
    k_max: int | None = None
    adaptive: str = "inverse"
    beta: float = 1.0
    reference_variance: float = 0.003
    output_gate: bool = True
    value_gate: bool = True
    warmup: int = 1000
    aux_weight: float = 1.0


@register_mixer(
    "gsa",
    letter="G",
    config=GSAConfig,
    title="Gated sparse attention",
    family="sparse attention",
    color="#882255",
    mask="topk",
    source="the OrthGSA document; indexer and its loss: DeepSeek-AI 2025, DeepSeek-V3.2",
)
class GSA(Mixer):
    """Grouped-query attention to the k_t tokens that score highest, with gates on values and output.

        q, k, v = RoPE(x·W_q), RoPE(x·W_k), x·W_v ⊙ σ(x·W_G2 + b)    [B, T, H, K], [B, T, Hkv, K] twice
        I_ts = Σ_j σ(x_t·W_Iw)_j · σ(q^I_tj·k^I_s/√d_I + b_j)        q^I [B, T, H^I, d_I], k^I [B, T, d_I], rotated
             or Σ_j (x_t·W_Iw)_j/√H^I · ReLU(q^I_tj·k^I_s/√d_I)      by option; then τ = 1
        S_t = top-k_t of I_t over s ≤ t, t itself in it              k_t from the variance of I_t (AdaptiveK)
        o_t = Σ_{s ∈ S_t} softmax_s(q_t·k_s/√K) · v_s,               y = (o ⊙ σ(x·W_G1 + b))·W_o

    The indexer reads x without passing a gradient back, and learns from the auxiliary loss `indexer_kl`, the
    mean over queries of KL(p_t ‖ softmax(τ·I_t)), p_t the attention averaged over heads. During the warm-up
    attention is dense, in evaluation too, and the loss runs over all s ≤ t; afterwards both run over S_t.
    Work: T²·H^I·d_I for the indexer and T·k·H·K for attention. Decode state: keys, values and index keys.
    """

    def __init__(self, config: GSAConfig, dims: Dims) -> None:
        super().__init__()
        self.heads = dims.n_heads if config.n_heads is None else config.n_heads
        self.kv_heads = third(self.heads) if config.n_kv_heads is None else config.n_kv_heads
        self.width = head_width(dims.d_model, self.heads, "n_heads")
        self._check(config)
        self.k = sizes(config, dims.seq_len)
        self.rope_base = config.rope_base
        self.backend, self.step_backend = dims.backend, dims.step_backend
        self.aux_weights = {"indexer_kl": config.aux_weight}
        inner, inner_kv = self.heads * self.width, self.kv_heads * self.width
        self.q_proj = nn.Linear(dims.d_model, inner, bias=False)
        self.k_proj = nn.Linear(dims.d_model, inner_kv, bias=False)
        self.v_proj = nn.Linear(dims.d_model, inner_kv, bias=False)
        self.o_proj = OutputProjection(inner, dims.d_model, bias=False)
        self.output_gate = Gate(dims.d_model, inner) if config.output_gate else None
        self.value_gate = Gate(dims.d_model, inner_kv) if config.value_gate else None
        index_width = 4 * math.ceil(dims.d_model / 48) if config.index_width is None else config.index_width
        index_base = config.rope_base if config.index_rope else None
        self.indexer = Indexer(dims.d_model, config.index_heads, index_width, index_base, config.scores)
        self.warmup = Warmup(config.warmup)

    def _check(self, config: GSAConfig) -> None:
        even_width(self.width, "gsa")
        if self.kv_heads < 1 or self.heads % self.kv_heads:
            raise UserError(f"gsa.n_kv_heads={self.kv_heads} does not divide n_heads={self.heads}")
        if config.adaptive not in ADAPTIVE:
            raise UserError(f"gsa.adaptive is one of {', '.join(ADAPTIVE)}, not '{config.adaptive}'")
        if config.scores not in SCORES:
            raise UserError(f"gsa.scores is one of {', '.join(SCORES)}, not '{config.scores}'")
        if config.scores == "relu" and config.adaptive != "none":
            raise UserError(
                f"gsa.scores=relu has no bound that gsa.adaptive={config.adaptive} could go by; "
                "set gsa.adaptive=none, which keeps k_base tokens"
            )
        for key, value in (("index_heads", config.index_heads), ("index_width", config.index_width)):
            if value is not None and value < 1:
                raise UserError(f"gsa.{key}={value} must be at least 1")
        for key in ("rope_base", "beta", "reference_variance"):
            positive(getattr(config, key), f"gsa.{key}")
        if config.index_rope and config.index_width is not None:
            even_width(config.index_width, "gsa.index_width with index_rope")
        if config.warmup < 0:
            raise UserError(f"gsa.warmup={config.warmup} must be 0 or above")

    def forward(self, x: Tensor, ctx: Context) -> tuple[Tensor, Aux]:
        q, k, v = self._qkv(x, ctx.positions)
        options = {"cu_seqlens": ctx.cu_seqlens, "backend": self.backend}
        indexer, indices = cheap(self.indexer, x, ctx.positions, ctx=ctx), None
        if self.warmup.dense:
            o = kernels.attention(q, k, v, **options)
        else:
            indices = kernels.lightning_topk(*indexer, k=self.k, scores=self.indexer.scores, **options)
            o = kernels.sparse_attention(q, k, v, indices, **options)
        show_sparse(ctx, q, k, indices)
        show_gates(ctx, x, self.width, output=self.output_gate, value=self.value_gate)
        aux = {}
        if self.training:
            options = {"indices": indices, "scores": self.indexer.scores, **options}
            aux["indexer_kl"] = kernels.indexer_kl(q, k, *indexer, self.indexer.tau(), **options)
        return self._out(o, x), aux

    def init_state(self, batch_size, *, capacity=0, device=None, dtype=torch.float32):
        """Keys (rotated) and gated values [B, Hkv, T, K] of all tokens, and the indexer's keys [B, T, d_I]."""
        shape = (batch_size, self.kv_heads, capacity, self.width)
        keys, values = (torch.zeros(shape, device=device, dtype=dtype) for _ in range(2))
        wide = torch.promote_types(dtype, torch.float32)
        index = torch.zeros(batch_size, capacity, self.indexer.width, device=device, dtype=wide)
        return RowCache(keys, values, index)

    def step(self, x: Tensor, state: RowCache) -> tuple[Tensor, RowCache]:
        x = x[:, None]
        positions = torch.full(x.shape[:2], state.appended, device=x.device)
        q, k, v = self._qkv(x, positions)
        q_idx, k_idx, w_idx, bias = self.indexer(x, positions)
        state.append(k[:, 0], v[:, 0], k_idx[:, 0])
        keys, values, index = state.read()
        if self.warmup.dense:
            keys, values = (y.transpose(1, 2).to(q.dtype) for y in (keys, values))
            o = kernels.attention(q, keys, values, causal=False, backend=self.step_backend)
        else:
            options = {"k": self.k, "scores": self.indexer.scores, "backend": self.backend}
            indices = kernels.lightning_topk(q_idx, index, w_idx, bias, **options)
            # Only the selected rows are read: the cache is large, and attention's part of it is not.
            keys, values = (_rows(y, indices[:, 0]).to(q.dtype) for y in (keys, values))
            place = torch.arange(indices.shape[-1], device=x.device)
            indices = torch.where(indices < 0, -1, place)
            o = kernels.sparse_attention(q, keys, values, indices, backend=self.backend)
        return self._out(o, x)[:, 0], state

    def _qkv(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        v = self.v_proj(x)
        if self.value_gate is not None:
            v = v * self.value_gate(x)
        q, k, v = (y.unflatten(-1, (-1, self.width)) for y in (self.q_proj(x), self.k_proj(x), v))
        return kernels.rope(q, positions, self.rope_base), kernels.rope(k, positions, self.rope_base), v

    def _out(self, o: Tensor, x: Tensor) -> Tensor:
        o = o.flatten(-2)
        if self.output_gate is not None:
            o = o * self.output_gate(x)
        return self.o_proj(o)


def sizes(config: GSAConfig, seq_len: int) -> kernels.AdaptiveK:
    """k_base, k_min, k_max for a configured length. Raises UserError unless 1 ≤ k_min ≤ k_base ≤ k_max."""
    base = max(1, min(2048, seq_len // 8)) if config.k_base is None else config.k_base
    least = max(1, base // 8) if config.k_min is None else config.k_min
    most = 2 * base if config.k_max is None else config.k_max
    if not 1 <= least <= base <= most:
        raise UserError(f"gsa needs 1 ≤ k_min ≤ k_base ≤ k_max, not {least}, {base}, {most}")
    return kernels.AdaptiveK(config.adaptive, base, least, most, config.beta, config.reference_variance)


def _rows(x: Tensor, indices: Tensor) -> Tensor:
    """Rows of a cache x [B, H, T, width] at indices [B, n] -> [B, n, H, width]; the first row at −1."""
    batch = torch.arange(x.shape[0], device=x.device)[:, None]
    return x.transpose(1, 2)[batch, indices.clamp_min(0)]
