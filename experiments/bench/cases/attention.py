"""Calls of attention: PaTH, sparse attention and its indexer, NSA, timelines."""

from __future__ import annotations

import torch
from torch import Tensor

from experiments.bench.cases.call import Call, call
from experiments.bench.inputs import InputFactory

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
