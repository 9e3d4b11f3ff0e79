"""The calls that suite=kernels measures: every operation that has a Triton form, at sizes that people train.

Sizes are those of the reference model (width 768; SPEC's default mixer sizes), and those of published comparisons
where there are any. A case holds batch times length fixed while the length grows; past that the batch is 1.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import kernels
from experiments.bench.inputs import InputFactory
from kernels.dispatch import Operation
from kernels.triton_common.work import Work
from zoo.errors import unknown

TOKENS = 131_072
WIDTH, HEADS, KV_HEADS, HEAD = 768, 12, 4, 64
STREAMS = 4
SELECTED = 2048
NSA = {"block_size": 32, "stride": 16, "select_size": 64, "n_select": 16, "window": 512}


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
        return importlib.import_module(f"kernels.ops.{self.operation}").OPERATION

    def work(self) -> list[Work] | None:
        """Operations and bytes of its kernels; None where the operation does not count them."""
        name = f"kernels.ops.{self.operation}.work"
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
            return None
        return module.work(*self.arguments, **self.options)

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
    one; torch_limit: longest sequence for the PyTorch forms, past which they would only use up the time
    """

    name: str
    make: Callable[[InputFactory], list[Call]]
    tokens: int = TOKENS
    length: int | None = None
    backward: bool = True
    torch_limit: int = 16_384

    def calls(self, length: int, tokens: int, device: torch.device, dtype: torch.dtype) -> list[Call]:
        """The calls on sequences of `length`, as many as fit into `tokens`, at least one."""
        return self.make(InputFactory(max(1, tokens // length), length, device, dtype))


def _call(operation: str, *arguments: Any, **options: Any) -> Call:
    return Call(operation, arguments, options)


def _kda(d: InputFactory) -> list[Call]:
    heads, width = 96, 128
    q, k, v = d.unit(heads, width), d.unit(heads, width), d.normal(heads, width)
    return [_call("delta_rule", q, k, v, d.log_gate(heads, width), d.share(heads))]


def _gated_delta(d: InputFactory) -> list[Call]:
    few, heads, width = 16, 64, 128
    q, k, v = d.unit(few, width), d.unit(few, width), d.normal(heads, width)
    return [_call("delta_rule", q, k, v, d.log_gate(heads), d.share(heads))]


def _kda_step(d: InputFactory) -> list[Call]:
    (call,) = _kda(d)
    state = d.weight(d.batch, 96, 128, 128, dtype=torch.float32)
    return [Call(call.operation, call.arguments, {"initial_state": state, "output_final_state": True})]


def _memory_mixture(d: InputFactory, **options: Any) -> list[Call]:
    heads, width, memories, chosen = 2, 128, 5, 3
    q, k = d.unit(heads, width), d.unit(memories, heads, width)
    v, routes = d.normal(memories, heads, width), d.subset(memories, chosen)
    gates = d.log_gate(memories, heads), d.share(memories, heads)
    return [_call("memory_mixture", q, k, v, *gates, routes, d.share(chosen), **options)]


def _memory_step(d: InputFactory) -> list[Call]:
    state = d.weight(d.batch, 5, 2, 128, 128, dtype=torch.float32)
    return _memory_mixture(d, initial_state=state, output_final_state=True)


def _path(d: InputFactory) -> list[Call]:
    q, k, v, w = d.normal(HEADS, HEAD), d.normal(HEADS, HEAD), d.normal(HEADS, HEAD), d.unit(HEADS, HEAD)
    return [_call("path_attention", q, k, v, w, d.share(HEADS), d.log_gate(HEADS))]


def _path_step(d: InputFactory) -> list[Call]:
    """One token over caches of `length`."""
    token = InputFactory(d.batch, 1, d.device, d.dtype)
    keys = d.weight(d.batch, HEADS, d.length, HEAD, dtype=torch.float32)
    values = d.weight(d.batch, HEADS, d.length, HEAD)
    forgotten = torch.zeros(d.batch, HEADS, d.length, device=d.device)
    q, w, beta, g = (
        x[:, 0]
        for x in (
            token.normal(HEADS, HEAD), token.unit(HEADS, HEAD), token.share(HEADS), token.log_gate(HEADS)
        )
    )  # fmt: skip
    return [_call("path_step", q, keys, values, w, beta, g, forgotten)]


def _mesa(d: InputFactory, heads: int = 6, width: int = 128, **options: Any) -> list[Call]:
    q, k, v = d.unit(heads, width), d.unit(heads, width), d.normal(heads, width)
    return [_call("mesa", q, k, v, d.log_gate(heads), d.share(heads), d.ones(heads, width), **options)]


def _mesa_step(d: InputFactory, heads: int = 6, width: int = 128) -> list[Call]:
    states = tuple(torch.zeros(d.batch, heads, width, width, device=d.device) for _ in range(2))
    return _mesa(d, heads, width, initial_state=states, output_final_state=True)


def _indexer(d: InputFactory) -> tuple[Tensor, ...]:
    heads = 4
    return d.normal(heads, HEAD), d.normal(HEAD), d.share(heads), d.weight(heads, dtype=torch.float32)


def _attention(
    d: InputFactory, heads: int = HEADS, kv_heads: int = KV_HEADS, width: int = HEAD
) -> tuple[Tensor, ...]:
    return d.normal(heads, width), d.normal(kv_heads, width), d.normal(kv_heads, width)


def _dsa_indexer(d: InputFactory) -> tuple[Tensor, ...]:
    """DeepSeek-V3.2's: 64 heads of 128, ReLU scores with weights of any sign, no bias."""
    heads, width = 64, 128
    w, bias = d.normal(heads, dtype=torch.float32), torch.zeros(heads, device=d.device)
    return d.normal(heads, width), d.normal(width), w, bias


def _lightning_topk(d: InputFactory) -> list[Call]:
    return [_call("lightning_topk", *_indexer(d), k=min(SELECTED, d.length))]


def _dsa_topk(d: InputFactory) -> list[Call]:
    return [_call("lightning_topk", *_dsa_indexer(d), k=min(SELECTED, d.length), scores="relu")]


def _sparse(d: InputFactory, *sizes: int) -> list[Call]:
    return [_call("sparse_attention", *_attention(d, *sizes), d.causal_indices(min(SELECTED, d.length)))]


def _sparse_with_indexer(d: InputFactory, *sizes: int) -> list[Call]:
    return [*_lightning_topk(d), *_sparse(d, *sizes)]


def _indexer_kl(d: InputFactory) -> list[Call]:
    q, k, _ = _attention(d)
    indices = d.causal_indices(min(SELECTED, d.length))
    return [_call("indexer_kl", q, k, *_indexer(d), d.ones(), indices=indices)]


def _dsa_kl(d: InputFactory) -> list[Call]:
    q, k, _ = _attention(d)
    options = {"indices": d.causal_indices(min(SELECTED, d.length)), "scores": "relu"}
    return [_call("indexer_kl", q, k, *_dsa_indexer(d), d.ones(), **options)]


def _nsa(d: InputFactory, heads: int = HEADS, width: int = HEAD) -> list[Call]:
    blocks = max(0, (d.length - NSA["block_size"]) // NSA["stride"] + 1)
    q, *selected = _attention(d, heads, KV_HEADS, width)
    sliding = tuple(d.normal(KV_HEADS, width) for _ in range(2))
    compressed = tuple(d.weight(d.batch, blocks, KV_HEADS, width) for _ in range(2))
    return [_call("nsa_attention", q, compressed, tuple(selected), sliding, d.share(heads, 3), **NSA)]


def _timelines(d: InputFactory) -> list[Call]:
    timelines = 6
    q, k, v = _attention(d, HEADS, HEADS)
    route = d.choice(timelines, HEADS)
    options = {"n_timelines": timelines, "rope_base": 1e4, "weight": d.share(HEADS)}
    return [_call("timeline_attention", q, k, v, route, **options)]


def _short_conv(d: InputFactory) -> list[Call]:
    return [_call("short_conv", d.normal(WIDTH), d.weight(WIDTH, 4), activation="silu")]


def _short_conv_step(d: InputFactory) -> list[Call]:
    (call,) = _short_conv(d)
    return [Call(call.operation, call.arguments, {**call.options, "state": d.weight(d.batch, WIDTH, 3)})]


def _coefficients(d: InputFactory) -> Call:
    rows = STREAMS * (STREAMS + 2)
    phi, wide = d.weight(rows, STREAMS * WIDTH), torch.float32
    scale, bias = d.weight(3, dtype=wide), d.weight(rows, dtype=wide)
    return _call("hyper_coefficients", d.normal(STREAMS, WIDTH), phi, scale, bias)


def _map(d: InputFactory, operation: str) -> Call:
    return _call(operation, d.normal(STREAMS, STREAMS, dtype=torch.float32))


def _pre(d: InputFactory) -> Call:
    return _call("hyper_pre", d.normal(STREAMS, WIDTH), d.share(STREAMS))


def _post(d: InputFactory) -> Call:
    mixing, streams = d.share(STREAMS, STREAMS), d.normal(STREAMS, WIDTH)
    return _call("hyper_post", streams, d.normal(WIDTH), mixing, d.share(STREAMS))


def _wrapped(d: InputFactory, operation: str) -> list[Call]:
    return [_coefficients(d), _map(d, operation), _pre(d), _post(d)]


CASES = {
    case.name: case
    for case in (
        Case("delta_rule, KDA", _kda, tokens=8192, torch_limit=8192),
        Case("delta_rule, a gate a head", _gated_delta, tokens=8192, torch_limit=8192),
        Case("delta_rule, KDA, a step", _kda_step, tokens=64, length=1, backward=False),
        Case("memory_mixture", _memory_mixture),
        Case("memory_mixture, a step", _memory_step, tokens=64, length=1, backward=False),
        Case("path_attention", _path),
        Case("path_step", _path_step, backward=False, torch_limit=TOKENS),
        Case("mesa", _mesa),
        Case("mesa, a step", _mesa_step, tokens=64, length=1, backward=False),
        Case("mesa, heads of 256", lambda d: _mesa(d, 3, 256)),
        Case(
            "mesa, heads of 256, a step", lambda d: _mesa_step(d, 3, 256), tokens=64, length=1, backward=False
        ),
        Case("lightning_topk", _lightning_topk, backward=False),
        Case("lightning_topk, DSA", _dsa_topk, backward=False),
        Case("sparse_attention", _sparse),
        Case("sparse_attention with its indexer", _sparse_with_indexer),
        Case(
            "sparse_attention with its indexer, 64 heads to one",
            lambda d: _sparse_with_indexer(d, 64, 1, 128),
        ),
        Case("indexer_kl", _indexer_kl),
        Case("indexer_kl, DSA", _dsa_kl),
        Case("nsa_attention", _nsa),
        Case("nsa_attention, groups of 16", lambda d: _nsa(d, 64, 128), tokens=65_536),
        Case("timeline_attention", _timelines),
        Case("short_conv", _short_conv),
        Case("short_conv, a step", _short_conv_step, tokens=64, length=1, backward=False),
        Case("hyper_coefficients", lambda d: [_coefficients(d)]),
        Case("cayley", lambda d: [_map(d, "cayley")]),
        Case("sinkhorn", lambda d: [_map(d, "sinkhorn")]),
        Case("hyper_pre", lambda d: [_pre(d)]),
        Case("hyper_post", lambda d: [_post(d)]),
        Case("hyper-connections, oHC", lambda d: _wrapped(d, "cayley")),
        Case("hyper-connections, mHC", lambda d: _wrapped(d, "sinkhorn")),
    )
}


def chosen(wanted: list[str] | None, known: list[str]) -> list[str]:
    """The names that begin as one of the wanted does. Raises UserError for a beginning that none has."""
    for start in wanted or []:
        if not any(name.startswith(start) for name in known):
            raise unknown("bench.cases", start, known)
    return [name for name in known if wanted is None or name.startswith(tuple(wanted))]
