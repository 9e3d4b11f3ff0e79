"""`G`: gated sparse attention, where a light indexer selects the few tokens that a query attends to."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import kernels
from kernels.autograd import gated
from kernels.dispatch import autocasts, in_autocast_dtype
from kernels.ops.lightning_topk import continued
from zoo.context import Context
from zoo.errors import UserError
from zoo.interfaces import Aux, Dims, ParameterGroup, StepBuffer
from zoo.mixers.grouped_query import GroupedQueryMixer
from zoo.modules import RMSNorm, RowCache, by_sequence, fp32_linear, positions
from zoo.modules.layers import Derived
from zoo.modules.rotary import PartialRopeOptions, Rotation
from zoo.options import added, at_least, default_kv_heads, even_width, one_of, positive
from zoo.probes.events import record_gates, record_sparse_attention
from zoo.registry import register_mixer

# The indexer, and the warm-up during which attention is still dense.


class Indexer(nn.Module):
    """x [B, T, D] -> q^I [B, T, H^I, d_I], k^I [B, T, d_I], w [B, T, H^I], b [H^I].

    In at least fp32; q^I and k^I under autocast in its dtype. x is detached. rotate: rotary positions on q^I and k^I
    (None: none). scores: as in `kernels.lightning_topk`:

        sigmoid   w = σ(x·W_Iw), b and log_tau = log τ learned; the loss multiplies the bounded scores by τ, which
                  starts at 10
        relu      w = x·W_Iw/√H^I of any sign, b = 0, τ = 1 (log_tau None), as in DeepSeek-V3.2: its scores are
                  unbounded and need no τ
    """

    parameter_group = ParameterGroup("indexer", lr_scale=10.0)

    def __init__(
        self, d_model: int, heads: int, width: int, rotate: Rotation | None = None, scores: str = "sigmoid"
    ) -> None:
        super().__init__()
        self.heads, self.width, self.rotate, self.scores = heads, width, rotate, scores
        self.q_proj = nn.Linear(d_model, heads * width, bias=False)
        self.k_proj = nn.Linear(d_model, width, bias=False)
        self.w_proj = nn.Linear(d_model, heads, bias=False)
        gated = scores == "sigmoid"
        self.bias = nn.Parameter(torch.zeros(heads)) if gated else None
        self.log_tau = nn.Parameter(torch.tensor(math.log(10.0))) if gated else None

    def init_weights(self, generator: torch.Generator) -> None:
        """Draw W_QI and W_KI from the generator, Xavier-uniform with gain 1."""
        for projection in (self.q_proj, self.k_proj):
            nn.init.xavier_uniform_(projection.weight, generator=generator)

    def forward(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """x [B, T, D], positions int64 [B, T] -> q^I, k^I, w, b, as the class describes."""
        q, k, w = self.projections(x.detach())
        q, k = q.unflatten(-1, (self.heads, self.width)), k.unsqueeze(-2)
        if self.rotate is not None:
            q, k = self.rotate((q, k), positions)
        # What is multiplied T² times is as precise as attention's own queries and keys; sums of products stay fp32.
        q, k = in_autocast_dtype(q, k.squeeze(-2))
        return q, k, self.weights(w), self.offsets()

    def projections(self, x: Tensor) -> tuple[Tensor, ...]:
        """x·W_QI [B, T, H^I·d_I], x·W_KI [B, T, d_I], x·W_Iw [B, T, H^I] as one product, which reads x once."""
        linears = (self.q_proj, self.k_proj, self.w_proj)
        weight = torch.cat([linear.weight for linear in linears])
        return fp32_linear(x, weight).split([linear.out_features for linear in linears], -1)

    def weights(self, w: Tensor) -> Tensor:
        """The heads' weights [..., H^I] from x·W_Iw."""
        return w * self.heads**-0.5 if self.bias is None else torch.sigmoid(w)

    def offsets(self) -> Tensor:
        """b [H^I]; 0 for ReLU scores."""
        return self.w_proj.weight.new_zeros(self.heads) if self.bias is None else self.bias

    def tau(self) -> Tensor:
        """τ [], by which the loss multiplies the scores."""
        return self.w_proj.weight.new_ones(()) if self.log_tau is None else self.log_tau.exp()


class Warmup(StepBuffer):
    """dense: whether the warm-up is on; it takes `steps` steps or a tenth of the training, whichever is shorter.

    A Python bool, so that a compiled model holds one of the two branches. On the meta device, where cost is counted
    and there is no step, the warm-up is over.
    """

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps = steps
        self.dense = steps > 0 and not self.step.is_meta
        self.register_load_state_dict_post_hook(lambda loaded, _: loaded.restore())

    def set(self, step: int, total: int) -> None:
        """Count the step, and end dense attention where the warm-up is over."""
        super().set(step, total)
        self.dense = step < (min(self.steps, total // 10) if total else self.steps)

    def restore(self) -> None:
        """Find out from the buffers whether the warm-up is on."""
        self.set(int(self.step), int(self.total))


# Decoding: one token alone, all projections by one matrix product.


class StepInputs(NamedTuple):
    """q [B, 1, H, K], k and v (gated) [B, 1, Hkv, K], q^I [B, 1, H^I, d_I], k^I [B, 1, d_I], w [B, 1, H^I], and σ of
    the output's gate [B, 1, H·K] or None."""

    q: Tensor
    k: Tensor
    v: Tensor
    q_idx: Tensor
    k_idx: Tensor
    w_idx: Tensor
    output_gate: Tensor | None


def takes_step(x: Tensor) -> bool:
    """Return whether x [B, T, D] is one token, in one dtype that the indexer computes in too."""
    one = x.shape[1] == 1 and not torch.is_grad_enabled()
    return one and x.dtype in (torch.float32, torch.float64) and not autocasts(x)


class StepProjection:
    """The projections of a GSA mixer and its indexer as one; their weights are joined once for many tokens.

    Nine operations on x become one: a step of the model takes 9 % less time on a CPU.
    """

    def __init__(self, mixer: nn.Module) -> None:
        self.mixer, self.joined = mixer, Derived()

    def __call__(self, x: Tensor, positions: Tensor) -> StepInputs:
        """x [B, 1, D], positions int64 [B, 1] -> everything that the mixer and its indexer make of x."""
        mixer, index = self.mixer, self.mixer.indexer
        linears = self._linears()
        sources = [p for linear in linears for p in linear._parameters.values() if p is not None]
        y = F.linear(x, *self.joined(lambda: _join(linears), *sources))
        inner, kv = mixer.heads * mixer.width, mixer.kv_heads * mixer.width
        sizes = (inner + kv, kv, (index.heads + 1) * index.width, index.heads)
        heads, v, indexer, w, gates = y.split((*sizes, y.shape[-1] - sum(sizes)), -1)
        heads = heads.unflatten(-1, (-1, mixer.width))
        if isinstance(mixer.q_norm, RMSNorm):
            q, k = heads.split((mixer.heads, mixer.kv_heads), 2)
            heads = torch.cat([mixer.q_norm(q), mixer.k_norm(k)], 2)
        (heads,) = mixer.rotate((heads,), positions)
        indexer = indexer.unflatten(-1, (-1, index.width))
        if index.rotate is not None:
            (indexer,) = index.rotate((indexer,), positions)
        gates = torch.sigmoid(gates)
        v = v if mixer.value_gate is None else v * gates[..., :kv]
        return StepInputs(
            *heads.split((mixer.heads, mixer.kv_heads), 2),
            v.unflatten(-1, (-1, mixer.width)),
            indexer[:, :, :-1],
            indexer[:, :, -1],
            index.weights(w),
            None if mixer.output_gate is None else gates[..., -inner:],
        )

    def _linears(self) -> list[nn.Linear]:
        """All projections of x: q, k and v, the indexer's, the gates."""
        mixer, index = self.mixer, self.mixer.indexer
        gates = [gate for gate in (mixer.value_gate, mixer.output_gate) if gate is not None]
        projections = (mixer.q_proj, mixer.k_proj, mixer.v_proj)
        return [*projections, index.q_proj, index.k_proj, index.w_proj, *gates]


def _join(linears: Sequence[nn.Linear]) -> tuple[Tensor, Tensor]:
    """The weights one below another, and the biases, 0 where there is none."""
    biases = (
        linear.weight.new_zeros(linear.out_features) if linear.bias is None else linear.bias
        for linear in linears
    )
    return torch.cat([linear.weight for linear in linears]), torch.cat(list(biases))


# The mixer.

IndexerOutput = tuple[Tensor, Tensor, Tensor, Tensor]
"""q^I, k^I, w and b of `Indexer`."""

ADAPTIVE = ("seed", "inverse", "none")
SCORES = ("sigmoid", "relu")


@dataclass
class GSAConfig(PartialRopeOptions):
    """Options of gated sparse attention; None scales with the model.

    n_heads: query heads H (None: the model's); n_kv_heads: heads of keys and values (None: a third of the query heads);
    head_width: K, width of a head (None: D/H); qkv_bias: biases of the projections to q, k and v; qk_norm: RMSNorm per
    head on q and k before the rotation; rope_base: base of rotary positions; index_heads: H^I, heads of the indexer;
    index_width: d_I, width of a head of the indexer (None: D/12); index_rope: rotary positions in the indexer, as
    DeepSeek-V3.2's has in half its width; False: none, as the OrthGSA document writes it, but then it cannot find the
    tokens just before t, however much weight attention gives them; scores: "sigmoid", the OrthGSA document's bounded
    scores, or "relu", DeepSeek-V3.2's, which need adaptive=none; k_base: tokens that a query attends to where
    adaptive=none, and what the other rules start from (None: T/8 for the configured length T, at most 2048); k_min:
    fewest tokens that a rule may give a query (None: k_base/8); k_max: most tokens that a rule may give a query (None:
    2·k_base); adaptive: how k follows the variance v of a query's scores: "inverse", k_base·√(reference_variance/v),
    fewer tokens where scores discriminate; "seed", k_base·(1 + beta·softplus(v)), as the OrthGSA document writes it;
    "none", k_base; share: queries of a tile, counted from their sequence's first token, of which the first chooses for
    all, and each also reads the tile's tokens up to its own (1: each chooses); key_block: tokens of a block, of which
    the indexer chooses whole ones by their best token, ⌈k_t/key_block⌉ of them (1: single tokens); beta: how strongly k
    grows with the variance under adaptive=seed; reference_variance: the variance at which adaptive=inverse gives
    k_base; output_gate: gate G1, o ⊙ σ(x·W + b), on attention's output; value_gate: gate G2, v ⊙ σ(x·W + b), on the
    values; warmup: steps of dense attention, at most a tenth of the training; aux_weight: weight of the indexer's loss.

    Rotary positions by the options of RopeOptions and rope_dim; the indexer's, which has all of its channels rotated,
    by the same frequencies.
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
    head_width: int | None = added(None, before=None)
    qkv_bias: bool = added(False, before=False)
    qk_norm: bool = added(False, before=False)
    share: int = added(1, before=1)
    key_block: int = added(1, before=1)


@register_mixer(
    "gsa",
    letter="G",
    config=GSAConfig,
    title="Gated sparse attention",
    family="sparse attention",
    color="#882255",
    mask="topk",
    source="the OrthGSA document; indexer and its loss: DeepSeek-AI 2025, DeepSeek-V3.2",
    sketch="""
    x
    indexer | q | k | v
    top k of the scores
    softmax over these
    y
    """,
)
class GSA(GroupedQueryMixer):
    """Grouped-query attention to the k_t tokens that score highest, with gates on values and output.

        q, k, v = RoPE(x·W_q), RoPE(x·W_k), x·W_v ⊙ σ(x·W_G2 + b)    [B, T, H, K], [B, T, Hkv, K] twice
        I_ts = Σ_j σ(x_t·W_Iw)_j · σ(q^I_tj·k^I_s/√d_I + b_j)        q^I [B, T, H^I, d_I], k^I [B, T, d_I], rotated
             or Σ_j (x_t·W_Iw)_j/√H^I · ReLU(q^I_tj·k^I_s/√d_I)      by option; then τ = 1
        S_t = top-k_t of I_t over s ≤ t, t itself in it              k_t from the variance of I_t (AdaptiveK)
        o_t = Σ_{s ∈ S_t} softmax_s(q_t·k_s/√K) · v_s,               y = (o ⊙ σ(x·W_G1 + b))·W_o

    By option one query chooses for a tile, S_t = S_f ∪ {f + 1, …, t} with f the tile's first token, and keys are chosen
    in whole blocks, by the best of each. By option q, k and v have biases, and q and k an RMSNorm per head before the
    rotation. The indexer reads x without passing a gradient back, and learns from the auxiliary loss `indexer_kl`, the
    mean over queries of KL(p_t ‖ softmax(τ·I_t)), p_t the attention averaged over heads. During the warm-up attention
    is dense, in evaluation too, and the loss runs over all s ≤ t; afterwards both run over S_t. Work: T²·H^I·d_I for
    the indexer and T·k·H·K for attention. Decode state: keys, values and index keys.
    """

    state_options = ("head_width",)
    context_parallel = True

    def __init__(self, config: GSAConfig, dims: Dims) -> None:
        check(config)
        heads = dims.heads(config.n_heads)
        super().__init__("gsa", dims, config, heads, default_kv_heads=default_kv_heads(heads))
        self.k = sizes(config, dims.seq_len)
        self.choice = {"share": config.share, "key_block": config.key_block}
        # A shard may begin within a tile, whose first query another rank has.
        self.context_parallel = config.share == 1
        self.aux_weights = {"indexer_kl": config.aux_weight}
        index_width = 4 * math.ceil(dims.d_model / 48) if config.index_width is None else config.index_width
        rotate = replace(self.rotate, width=None) if config.index_rope else None
        self.indexer = Indexer(dims.d_model, config.index_heads, index_width, rotate, config.scores)
        self.warmup = Warmup(config.warmup)
        self._step_inputs = StepProjection(self)

    def forward(self, x: Tensor, ctx: Context) -> tuple[Tensor, Aux]:
        """Whole sequences: x [B, T, D] -> (y [B, T, D], in training {"indexer_kl": scalar})."""
        q, k, v, gate = self._inputs(x, ctx.positions)
        q_idx, k_idx, w_idx, bias = ctx.recomputed(self.indexer, x, ctx.positions)
        read = functools.partial(self._read, bias)
        o, aux = ctx.by_keys_with_losses(read, (q, q_idx, w_idx, gate), (k, v, k_idx))
        if ctx.probe is not None:
            options = {"cu_seqlens": ctx.cu_seqlens, "backend": self.backend}
            selected = None if self.warmup.dense else self._select((q_idx, k_idx, w_idx, bias), options)
            record_sparse_attention(ctx, q, k, selected)
            record_gates(ctx, x, self.width, output=self.output_gate, value=self.value_gate)
        return self.o_proj(o.flatten(-2)), aux

    def _read(
        self,
        bias: Tensor,
        q: Tensor,
        q_idx: Tensor,
        w_idx: Tensor,
        gate: Tensor | None,
        k: Tensor,
        v: Tensor,
        k_idx: Tensor,
        *,
        cu_seqlens: Tensor | None,
    ) -> tuple[Tensor, Aux]:
        """o [B, Tq, H, K] of queries aligned with the end of the keys, and in training the indexer's loss."""
        indexer, options = (q_idx, k_idx, w_idx, bias), {"cu_seqlens": cu_seqlens, "backend": self.backend}
        if self.warmup.dense:
            o = gated(kernels.attention(q, k, v, **options), gate)
            return o, self._dense_loss(q, k, indexer, options)
        if self.training:
            return self._learn(q, k, v, indexer, gate, options)
        indices = self._select(indexer, options)
        return kernels.sparse_attention(q, k, v, indices, gate_logits=gate, **options), {}

    def _select(self, indexer: IndexerOutput, options: dict) -> Tensor:
        options = {"scores": self.indexer.scores, **self.choice, **options}
        return kernels.lightning_topk(*indexer, k=self.k, **options)

    def _learn(
        self, q: Tensor, k: Tensor, v: Tensor, indexer: IndexerOutput, gate: Tensor | None, options: dict
    ) -> tuple[Tensor, Aux]:
        options = {
            "rule": self.k,
            "gate_logits": gate,
            "scores": self.indexer.scores,
            **self.choice,
            **options,
        }
        o, loss = kernels.indexed_attention(q, k, v, *indexer, self.indexer.tau(), **options)
        return o, {"indexer_kl": loss}

    def _dense_loss(self, q: Tensor, k: Tensor, indexer: IndexerOutput, options: dict) -> Aux:
        if not self.training:
            return {}
        options = {"scores": self.indexer.scores, **options}
        return {"indexer_kl": kernels.indexer_kl(q, k, *indexer, self.indexer.tau(), **options)}

    def init_state(self, batch_size, *, capacity=0, device=None, dtype=torch.float32):
        """Keys (rotated) and gated values [B, Hkv, T, K] of all tokens, and the indexer's keys [B, T, d_I].

        Where queries share a choice, also that of the tile in progress.
        """
        shape = (batch_size, self.kv_heads, capacity, self.width)
        keys, values = (torch.zeros(shape, device=device, dtype=dtype) for _ in range(2))
        wide = torch.promote_types(dtype, torch.float32)
        index = torch.zeros(batch_size, capacity, self.indexer.width, device=device, dtype=wide)
        if self.choice["share"] == 1:
            return RowCache(keys, values, index)
        block = self.choice["key_block"]
        width = -(-self.k.widest // block) * block
        chosen = torch.full((batch_size, width), -1, dtype=torch.int32, device=device)
        return ChoiceCache(keys, values, index, choice=chosen)

    def extend(self, x: Tensor, state: RowCache) -> tuple[Tensor, RowCache]:
        """The next tokens: x [B, T, D] -> (y [B, T, D], the cache with their rows)."""
        at = positions(state, x.shape[1], x.device)
        if takes_step(x):
            *token, gate = self._step_inputs(x, at)
            attend = functools.partial(self._attend, self.indexer.offsets())
            o = by_sequence(attend, state, *token).flatten(-2)
            return self.o_proj(o if gate is None else o * gate), state
        q_idx, k_idx, w_idx, bias = self.indexer(x, at)
        attend = functools.partial(self._attend, bias)
        q, k, v, gate = self._inputs(x, at)
        return self.o_proj(by_sequence(attend, state, q, k, v, q_idx, k_idx, w_idx, gate).flatten(-2)), state

    def _inputs(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """q, k, v, and x·W_G1 + b by heads [B, T, H, K]: attention's kernel applies σ of them to its output."""
        if self.output_gate is None:
            return *self._qkv(x, positions), None
        q, k, v, gate = self._qkv(x, positions, self.output_gate)
        return q, k, v, gate.unflatten(-1, (-1, self.width))

    def _attend(
        self,
        bias: Tensor,
        cache: RowCache,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        q_idx: Tensor,
        k_idx: Tensor,
        w_idx: Tensor,
        gate: Tensor | None = None,
    ) -> Tensor:
        """o [B, T, H, K] of the next tokens, whose rows join the cache; in the warm-up they read all rows."""
        keys, values, index = cache.append(k.transpose(1, 2), v.transpose(1, 2), k_idx)
        if self.warmup.dense:
            keys, values = (y.transpose(1, 2).to(q.dtype) for y in (keys, values))
            o = kernels.attention(q, keys, values, causal=q.shape[1] > 1, backend=self.step_backend)
            return gated(o, gate)
        select = functools.partial(self._select_next, bias, index)
        indices = (
            select(q_idx, w_idx) if self.choice["share"] == 1 else self._shared(cache, select, q_idx, w_idx)
        )
        if q.shape[1] == 1:
            form = "reference" if self.backend == "reference" else "auto"  # it has no others
            o = kernels.sparse_step(q[:, 0], keys, values, indices[:, 0], backend=form)[:, None]
            return gated(o, gate)
        keys, values = (y.transpose(1, 2).to(q.dtype) for y in (keys, values))
        return kernels.sparse_attention(q, keys, values, indices, gate_logits=gate, backend=self.backend)

    def _select_next(self, bias: Tensor, index: Tensor, q_idx: Tensor, w_idx: Tensor) -> Tensor:
        return self._select((q_idx, index, w_idx, bias), {"backend": self.backend})

    def _shared(
        self, cache: ChoiceCache, select: Callable[..., Tensor], q_idx: Tensor, w_idx: Tensor
    ) -> Tensor:
        """What the cache's last tokens q_idx [B, T, ...] read, by the choice of the tile in progress and new ones."""
        share, width, time = self.choice["share"], cache.choice.shape[-1], q_idx.shape[1]
        at = torch.arange(cache.appended - time, cache.appended, device=q_idx.device)
        begun = min(time, -(cache.appended - time) % share)
        choice = cache.choice[:, None].expand(-1, begun, -1)
        choices = [continued(choice, at[:begun] // share * share, at[:begun], share)]
        if begun < time:
            choices.append(select(q_idx[:, begun:], w_idx[:, begun:]))
            first = (cache.appended - 1) // share * share - (cache.appended - time) - begun
            cache.choice = choices[1][:, first, :width].clone()
        return torch.cat(choices, 1)


class ChoiceCache(RowCache):
    """Rows of all tokens, and what the first query of the tile in progress has chosen, int32 [B, n], −1 behind."""

    def __init__(self, *storage: Tensor, choice: Tensor) -> None:
        super().__init__(*storage)
        self.choice = choice

    def select(self, index: Tensor) -> ChoiceCache:
        """A cache of the sequences index [n] alone, with copies of their rows."""
        out = super().select(index)
        out.choice = self.choice[index.to(self.choice.device)]
        return out

    def join(self, caches: Sequence[ChoiceCache]) -> ChoiceCache:
        """A cache of the sequences of several caches, this one among them, all of as many tokens."""
        out = super().join(caches)
        out.choice = torch.cat([cache.choice for cache in caches])
        return out

    def nbytes(self) -> int:
        """Bytes in storage."""
        return super().nbytes() + self.choice.nbytes

    def fill(self, tokens: int) -> None:
        """Fill an empty cache with rows of zeros, the last of which are chosen."""
        super().fill(tokens)
        latest = torch.arange(tokens - 1, tokens - 1 - self.choice.shape[1], -1, device=self.choice.device)
        self.choice.copy_(latest.clamp_min(-1))

    def _with(self, storage: tuple[Tensor, ...]) -> ChoiceCache:
        out = ChoiceCache(*storage, choice=self.choice)
        out.start, out.stop, out.appended = self.start, self.stop, self.appended
        return out


def check(config: GSAConfig) -> None:
    """Refuse options that are out of range or contradict each other. Raises UserError."""
    one_of(config.adaptive, ADAPTIVE, "gsa.adaptive")
    one_of(config.scores, SCORES, "gsa.scores")
    if config.scores == "relu" and config.adaptive != "none":
        raise UserError(
            f"gsa.adaptive={config.adaptive} needs bounded scores, and those of gsa.scores=relu are not; "
            "set gsa.adaptive=none, which keeps k_base tokens"
        )
    for key, least in (("index_heads", 1), ("index_width", 1), ("warmup", 0), ("share", 1), ("key_block", 1)):
        at_least(getattr(config, key), least, f"gsa.{key}")
    for key in ("beta", "reference_variance"):
        positive(getattr(config, key), f"gsa.{key}")
    if config.index_rope and config.index_width is not None:
        even_width(config.index_width, "gsa.index_width with index_rope")


def sizes(config: GSAConfig, seq_len: int) -> kernels.AdaptiveK:
    """k_base, k_min, k_max for a configured length. Raises UserError unless 1 ≤ k_min ≤ k_base ≤ k_max."""
    base = max(1, min(2048, seq_len // 8)) if config.k_base is None else config.k_base
    least = max(1, base // 8) if config.k_min is None else config.k_min
    most = 2 * base if config.k_max is None else config.k_max
    if not 1 <= least <= base <= most:
        raise UserError(f"gsa needs 1 ≤ k_min ≤ k_base ≤ k_max, not {least}, {base}, {most}")
    return kernels.AdaptiveK(config.adaptive, base, least, most, config.beta, config.reference_variance)
