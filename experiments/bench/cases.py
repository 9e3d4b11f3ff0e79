"""The calls that suite=kernels measures: every operation that has a Triton form, at sizes used in training.

Sizes are those of the reference model (width 768, the mixers' default sizes), and those of published comparisons
where there are any. A case holds batch times length fixed while the length grows; past that the batch is 1.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import kernels
from kernels.dispatch import Operation
from kernels.triton_common.tiles import Work
from zoo.errors import unknown

# Random inputs of the sizes of a case; on the meta device only their shapes.

ROWS = 4096
"""Tokens whose indices are drawn at once, which bounds the memory."""


class InputFactory:
    """Makes the inputs of one call: `batch` sequences of `length` tokens, data in `dtype`, gates in fp32.

    Data and gates require gradients. Numbers depend on torch's seed alone.
    """

    def __init__(self, batch: int, length: int, device: torch.device, dtype: torch.dtype) -> None:
        self.batch, self.length, self.device, self.dtype = batch, length, device, dtype

    def normal(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """Standard normal [B, T, *shape]."""
        return self.weight(self.batch, self.length, *shape, dtype=dtype)

    def weight(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """Standard normal [*shape]."""
        dtype = self.dtype if dtype is None else dtype
        if self._shapes_only:
            return torch.empty(shape, dtype=dtype, device="meta")
        return torch.randn(shape, dtype=dtype, device=self.device).requires_grad_()

    def unit(self, *shape: int) -> Tensor:
        """Vectors [B, T, *shape] of length 1, as keys are."""
        x = self.normal(*shape)
        return x if self._shapes_only else F.normalize(x.detach(), dim=-1).requires_grad_()

    def log_gate(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Log decays [B, T, *shape], a few percent a token."""
        x = self.normal(*shape, dtype=dtype)
        return x if self._shapes_only else F.logsigmoid(x.detach() + 3).requires_grad_()

    def gate(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Gates [B, T, *shape] between 0 and 1."""
        x = self.normal(*shape, dtype=dtype)
        return x if self._shapes_only else torch.sigmoid(x.detach()).requires_grad_()

    def ones(self, *shape: int) -> Tensor:
        """fp32 ones [*shape]."""
        x = torch.ones(shape, device=self.device)
        return x if self._shapes_only else x.requires_grad_()

    def random_integers(self, among: int, *shape: int) -> Tensor:
        """int64 [B, T, *shape], uniform in [0, among)."""
        size = self.batch, self.length, *shape
        if self._shapes_only:
            return torch.empty(size, dtype=torch.int64, device="meta")
        return torch.randint(among, size, device=self.device)

    def subset(self, among: int, count: int) -> Tensor:
        """int64 [B, T, count]: for every token `count` different numbers in [0, among)."""
        if self._shapes_only:
            return self.random_integers(among, count)
        return torch.rand(self.batch, self.length, among, device=self.device).topk(count, -1).indices

    def causal_indices(self, count: int) -> Tensor:
        """int32 [B, T, count]: `count` different positions s ≤ t, spread evenly; −1 where there are fewer."""
        out = torch.empty(self.batch, self.length, count, dtype=torch.int32, device=self.device)
        if self._shapes_only:
            return out
        place = torch.arange(count, device=self.device)
        for start in range(0, self.length, ROWS):
            t = torch.arange(start, min(start + ROWS, self.length), device=self.device)[:, None]
            # One in each of `count` equal parts of the positions up to t, so that none comes twice.
            first, end = (edge * (t + 1) // count for edge in (place, place + 1))
            inside = torch.rand(self.batch, len(t), count, device=self.device)
            drawn = torch.minimum(first + (inside * (end - first)).long(), end - 1)
            few = torch.where(place <= t, place, -1).expand_as(drawn)
            out[:, start : start + ROWS] = torch.where(t + 1 > count, drawn, few)
        return out

    @property
    def _shapes_only(self) -> bool:
        return self.device.type == "meta"


# A call of an operation, and a case: calls that are timed together.

TOKENS = 131_072
"""Batch times length of a case by default."""


@dataclass(frozen=True)
class Call:
    """One operation with its arguments, as `kernels` takes them."""

    operation: str
    arguments: tuple[Any, ...]
    options: dict[str, Any]

    def run(self, backend: str) -> Any:
        """The outputs of the operation on this backend."""
        return getattr(kernels, self.operation)(*self.arguments, **self.options, backend=backend)

    @property
    def registry(self) -> Operation:
        """The operation, with its backends."""
        return {each.name: each for each in Operation.every}[self.operation]

    def work(self) -> list[Work] | None:
        """Operations and bytes of its kernels; None where the operation does not count them."""
        page = importlib.import_module(getattr(kernels, self.operation).__module__)
        # A page counts its first operation alone.
        count = getattr(page, "work", None) if page.OPERATION is self.registry else None
        return count and count(*self.arguments, **self.options)

    def bytes(self, mode: str) -> float:
        """The least bytes that its kernels move in a mode, "forward" or "forward+backward"; 0 where not counted."""
        return sum(work.bytes for work in self.work() or [] if work.way in mode.split("+"))

    def tensors(self) -> Iterator[Tensor]:
        """All tensors among the arguments, pairs unpacked."""
        for x in itertools.chain(self.arguments, self.options.values()):
            for y in x if isinstance(x, tuple) else (x,):
                if isinstance(y, Tensor):
                    yield y


@dataclass(frozen=True)
class Case:
    """Calls that are timed together, one after the other.

    tokens: batch times length; length: the only one it has, where it does not sweep; backward: whether there is
    one; torch_limit: longest sequence for the PyTorch forms, past which they would only use up the time; compiled:
    length of suite=compile where `length` is None, enough to launch every kernel
    """

    name: str
    make: Callable[[InputFactory], list[Call]]
    tokens: int = TOKENS
    length: int | None = None
    backward: bool = True
    torch_limit: int = 16_384
    compiled: int = 256

    def calls(self, length: int, tokens: int, device: torch.device, dtype: torch.dtype) -> list[Call]:
        """The calls on sequences of `length`, as many as fit into `tokens`, at least one."""
        return self.make(InputFactory(max(1, tokens // length), length, device, dtype))


def call(operation: str, *arguments: Any, **options: Any) -> Call:
    """A `Call` of an operation, with its arguments and options as in the call itself."""
    return Call(operation, arguments, options)


# Attention: PaTH, sparse attention and its indexer, NSA, timelines.

HEADS, KV_HEADS, HEAD = 12, 4, 64
SELECTED = 2048
NSA = {"block_size": 32, "stride": 16, "select_size": 64, "n_select": 16, "window": 512}


def path(d: InputFactory) -> list[Call]:
    """PaTH attention over the whole sequence, 12 heads of 64."""
    q, k, v, w = d.normal(HEADS, HEAD), d.normal(HEADS, HEAD), d.normal(HEADS, HEAD), d.unit(HEADS, HEAD)
    return [call("path_attention", q, k, v, w, d.gate(HEADS), d.log_gate(HEADS))]


def path_step(d: InputFactory) -> list[Call]:
    """One token over caches of `length`."""
    token = InputFactory(d.batch, 1, d.device, d.dtype)
    keys = d.weight(d.batch, HEADS, d.length, HEAD, dtype=torch.float32)
    values = d.weight(d.batch, HEADS, d.length, HEAD)
    forgotten = torch.zeros(d.batch, HEADS, d.length, device=d.device)
    q, w, beta, g = (
        x[:, 0]
        for x in (
            token.normal(HEADS, HEAD), token.unit(HEADS, HEAD), token.gate(HEADS), token.log_gate(HEADS)
        )
    )  # fmt: skip
    return [call("path_step", q, keys, values, w, beta, g, forgotten)]


def _indexer(d: InputFactory) -> tuple[Tensor, ...]:
    heads = 4
    return d.normal(heads, HEAD), d.normal(HEAD), d.gate(heads), d.weight(heads, dtype=torch.float32)


def _attention(
    d: InputFactory, heads: int = HEADS, kv_heads: int = KV_HEADS, width: int = HEAD
) -> tuple[Tensor, ...]:
    return d.normal(heads, width), d.normal(kv_heads, width), d.normal(kv_heads, width)


def _dsa_indexer(d: InputFactory) -> tuple[Tensor, ...]:
    """DeepSeek-V3.2's: 64 heads of 128, ReLU scores with weights of any sign, no bias."""
    heads, width = 64, 128
    w, bias = d.normal(heads, dtype=torch.float32), torch.zeros(heads, device=d.device)
    return d.normal(heads, width), d.normal(width), w, bias


def lightning_topk(d: InputFactory) -> list[Call]:
    """The indexer's choice of 2,048 keys a token, 4 index heads of 64."""
    return [call("lightning_topk", *_indexer(d), k=min(SELECTED, d.length))]


def dsa_topk(d: InputFactory) -> list[Call]:
    """The same choice at the sizes of DeepSeek-V3.2's indexer."""
    return [call("lightning_topk", *_dsa_indexer(d), k=min(SELECTED, d.length), scores="relu")]


def sparse(d: InputFactory, *sizes: int) -> list[Call]:
    """Attention of every token over 2,048 keys spread over its past."""
    return [call("sparse_attention", *_attention(d, *sizes), d.causal_indices(min(SELECTED, d.length)))]


def gated_sparse(d: InputFactory) -> list[Call]:
    """The same with a gate on the output."""
    (plain,) = sparse(d)
    return [call(plain.operation, *plain.arguments, gate_logits=d.normal(HEADS, HEAD))]


def sparse_with_indexer(d: InputFactory, *sizes: int) -> list[Call]:
    """The indexer's choice and the attention over as many keys."""
    return [*lightning_topk(d), *sparse(d, *sizes)]


def indexer_kl(d: InputFactory) -> list[Call]:
    """The indexer's loss against the attention over its choice."""
    q, k, _ = _attention(d)
    indices = d.causal_indices(min(SELECTED, d.length))
    return [call("indexer_kl", q, k, *_indexer(d), d.ones(), indices=indices)]


def dsa_kl(d: InputFactory) -> list[Call]:
    """The same loss at the sizes of DeepSeek-V3.2's indexer."""
    q, k, _ = _attention(d)
    options = {"indices": d.causal_indices(min(SELECTED, d.length)), "scores": "relu"}
    return [call("indexer_kl", q, k, *_dsa_indexer(d), d.ones(), **options)]


def nsa(d: InputFactory, heads: int = HEADS, width: int = HEAD) -> list[Call]:
    """Native sparse attention: compressed, selected and sliding branches with their gates."""
    blocks = max(0, (d.length - NSA["block_size"]) // NSA["stride"] + 1)
    q, *selected = _attention(d, heads, KV_HEADS, width)
    sliding = tuple(d.normal(KV_HEADS, width) for _ in range(2))
    compressed = tuple(d.weight(d.batch, blocks, KV_HEADS, width) for _ in range(2))
    return [call("nsa_attention", q, compressed, tuple(selected), sliding, d.gate(heads, 3), **NSA)]


def timelines(d: InputFactory) -> list[Call]:
    """Attention inside six timelines, routed by head."""
    timelines = 6
    q, k, v = _attention(d, HEADS, HEADS)
    route = d.random_integers(timelines, HEADS)
    options = {"n_timelines": timelines, "rope_base": 1e4, "weight": d.gate(HEADS)}
    return [call("timeline_attention", q, k, v, route, **options)]


# Recurrent operations: delta rule, memory mixture, mesa.


def kda(d: InputFactory) -> list[Call]:
    """The delta rule with a gate a channel, 96 heads of 128, as published comparisons have it."""
    heads, width = 96, 128
    q, k, v = d.unit(heads, width), d.unit(heads, width), d.normal(heads, width)
    return [call("delta_rule", q, k, v, d.log_gate(heads, width), d.gate(heads))]


def gated_delta(d: InputFactory) -> list[Call]:
    """The delta rule with a gate a head, 16 query and 64 value heads of 128."""
    few, heads, width = 16, 64, 128
    q, k, v = d.unit(few, width), d.unit(few, width), d.normal(heads, width)
    return [call("delta_rule", q, k, v, d.log_gate(heads), d.gate(heads))]


def kda_step(d: InputFactory) -> list[Call]:
    """One token of `kda` from a state."""
    (call,) = kda(d)
    state = d.weight(d.batch, 96, 128, 128, dtype=torch.float32)
    return [Call(call.operation, call.arguments, {"initial_state": state, "output_final_state": True})]


def memory_mixture(d: InputFactory, **options: Any) -> list[Call]:
    """Delta rules of five memories, three of them chosen for each token."""
    heads, width, memories, chosen = 2, 128, 5, 3
    q, k = d.unit(heads, width), d.unit(memories, heads, width)
    v, routes = d.normal(memories, heads, width), d.subset(memories, chosen)
    gates = d.log_gate(memories, heads), d.gate(memories, heads)
    return [call("memory_mixture", q, k, v, *gates, routes, d.gate(chosen), **options)]


def memory_step(d: InputFactory) -> list[Call]:
    """One token of `memory_mixture` from its states."""
    state = d.weight(d.batch, 5, 2, 128, 128, dtype=torch.float32)
    return memory_mixture(d, initial_state=state, output_final_state=True)


def mesa(d: InputFactory, heads: int = 6, width: int = 128, **options: Any) -> list[Call]:
    """The mesa layer, six heads of 128."""
    q, k, v = d.unit(heads, width), d.unit(heads, width), d.normal(heads, width)
    return [call("mesa", q, k, v, d.log_gate(heads), d.gate(heads), d.ones(heads, width), **options)]


def mesa_step(d: InputFactory, heads: int = 6, width: int = 128) -> list[Call]:
    """One token of `mesa` from its states."""
    states = tuple(torch.zeros(d.batch, heads, width, width, device=d.device) for _ in range(2))
    return mesa(d, heads, width, initial_state=states, output_final_state=True)


# Short convolutions and hyper-connections.

WIDTH, STREAMS = 768, 4


def short_conv(d: InputFactory) -> list[Call]:
    """A causal convolution over four tokens with SiLU."""
    return [call("short_conv", d.normal(WIDTH), d.weight(WIDTH, 4), activation="silu")]


def short_conv_step(d: InputFactory) -> list[Call]:
    """One token of `short_conv` from its state."""
    (call,) = short_conv(d)
    return [Call(call.operation, call.arguments, {**call.options, "state": d.weight(d.batch, WIDTH, 3)})]


def rope(d: InputFactory) -> list[Call]:
    """Rotary positions of queries."""
    return [call("rope", d.normal(12, 64), torch.arange(d.length, device=d.device), 1e4)]


def short_conv_heads(d: InputFactory) -> list[Call]:
    """KDA's queries, keys and values, six heads of each."""
    return [call("short_conv_heads", d.normal(18 * 128), d.weight(18 * 128, 4), heads=(6, 6, 6))]


def delta_gates(d: InputFactory) -> list[Call]:
    """KDA's log decays, one a channel, and its write strengths, one a head."""
    rate, bias = d.weight(6, 1, dtype=torch.float32), d.weight(6, 128, dtype=torch.float32)
    return [call("delta_gates", d.normal(6, 128), rate, bias, d.normal(6))]


def gated_norm(d: InputFactory) -> list[Call]:
    """The norm and the gate behind KDA's heads."""
    return [call("gated_norm", d.normal(6, 128), d.weight(128, dtype=torch.float32), d.normal(6, 128))]


def coefficients(d: InputFactory) -> Call:
    """The coefficients of hyper-connections, from all streams of a token."""
    rows = STREAMS * (STREAMS + 2)
    phi, wide = d.weight(rows, STREAMS * WIDTH), torch.float32
    scale, bias = d.weight(3, dtype=wide), d.weight(rows, dtype=wide)
    return call("hyper_coefficients", d.normal(STREAMS, WIDTH), phi, scale, bias)


def mixing_map(d: InputFactory, operation: str) -> Call:
    """A map onto mixing matrices (cayley or sinkhorn), 4×4."""
    return call(operation, d.normal(STREAMS, STREAMS, dtype=torch.float32))


def pre(d: InputFactory) -> Call:
    """The input of a layer, read from the streams."""
    return call("hyper_pre", d.normal(STREAMS, WIDTH), d.gate(STREAMS))


def normed_pre(d: InputFactory) -> Call:
    """The same with the layer's norm."""
    return call(
        "hyper_pre", d.normal(STREAMS, WIDTH), d.gate(STREAMS), gain=d.weight(WIDTH, dtype=torch.float32)
    )


def reading(d: InputFactory) -> list[Call]:
    """The coefficients and the normalised input as a layer calls for them: both hand the streams on."""
    first, second = coefficients(d), normed_pre(d)
    return [replace(made, options={**made.options, "hand_on": True}) for made in (first, second)]


def post(d: InputFactory) -> Call:
    """The output of a layer, written to the streams."""
    mixing, streams = d.gate(STREAMS, STREAMS), d.normal(STREAMS, WIDTH)
    return call("hyper_post", streams, d.normal(WIDTH), mixing, d.gate(STREAMS))


def wrapped(d: InputFactory, operation: str) -> list[Call]:
    """All steps of hyper-connections around a layer."""
    return [coefficients(d), mixing_map(d, operation), pre(d), post(d)]


# What is left of the body that all models share.

VOCABULARY = 50_257


def head(d: InputFactory) -> list[Call]:
    """The head of GPT-2's vocabulary and the cross-entropy of every token."""
    return [
        call(
            "linear_cross_entropy",
            d.normal(WIDTH),
            d.weight(VOCABULARY, WIDTH),
            d.random_integers(VOCABULARY),
        )
    ]


def hidden_layer(d: InputFactory) -> list[Call]:
    """SwiGLU's gate at the reference model's hidden width."""
    return [call("swiglu", d.normal(2048), d.normal(2048))]


# All cases.

CASES = {
    case.name: case
    for case in (
        Case("delta_rule, KDA", kda, tokens=8192, torch_limit=8192),
        Case("delta_rule, a gate a head", gated_delta, tokens=8192, torch_limit=8192),
        Case("delta_rule, KDA, a step", kda_step, tokens=64, length=1, backward=False),
        Case("memory_mixture", memory_mixture),
        Case("memory_mixture, a step", memory_step, tokens=64, length=1, backward=False),
        Case("path_attention", path, compiled=1024),
        Case("path_step", path_step, backward=False, torch_limit=TOKENS),
        Case("mesa", mesa),
        Case("mesa, a step", mesa_step, tokens=64, length=1, backward=False),
        Case("mesa, heads of 256", lambda d: mesa(d, 3, 256)),
        Case(
            "mesa, heads of 256, a step",
            lambda d: mesa_step(d, 3, 256),
            tokens=64,
            length=1,
            backward=False,
        ),
        Case("lightning_topk", lightning_topk, backward=False),
        Case("lightning_topk, DSA", dsa_topk, backward=False),
        Case("sparse_attention", sparse),
        Case("sparse_attention with its gate", gated_sparse),
        Case("sparse_attention with its indexer", sparse_with_indexer),
        Case(
            "sparse_attention with its indexer, 64 heads to one",
            lambda d: sparse_with_indexer(d, 64, 1, 128),
        ),
        Case("indexer_kl", indexer_kl),
        Case("indexer_kl, DSA", dsa_kl),
        Case("nsa_attention", nsa),
        Case("nsa_attention, groups of 16", lambda d: nsa(d, 64, 128), tokens=65_536),
        Case("timeline_attention", timelines),
        Case("short_conv", short_conv),
        Case("short_conv, a step", short_conv_step, tokens=64, length=1, backward=False),
        Case("rope", rope),
        Case("short_conv_heads", short_conv_heads),
        Case("delta_gates", delta_gates),
        Case("gated_norm", gated_norm),
        Case("hyper_coefficients", lambda d: [coefficients(d)]),
        Case("cayley", lambda d: [mixing_map(d, "cayley")]),
        Case("sinkhorn", lambda d: [mixing_map(d, "sinkhorn")]),
        Case("hyper_pre", lambda d: [pre(d)]),
        Case("hyper_coefficients and hyper_pre with the norm", reading),
        Case("hyper_post", lambda d: [post(d)]),
        Case("hyper-connections, oHC", lambda d: wrapped(d, "cayley")),
        Case("hyper-connections, mHC", lambda d: wrapped(d, "sinkhorn")),
        Case("linear_cross_entropy", head, tokens=8192),
        Case("swiglu", hidden_layer),
    )
}


def matching_names(wanted: list[str] | None, known: list[str]) -> list[str]:
    """The names that begin with one of `wanted` (None: all). Raises UserError for a beginning that none has."""
    for start in wanted or []:
        if not any(name.startswith(start) for name in known):
            raise unknown("bench.cases", start, known)
    return [name for name in known if wanted is None or name.startswith(tuple(wanted))]
