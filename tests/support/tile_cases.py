"""Small calls that take several tiles of 16 in every axis: channels, values, heads, queries, keys, sequences."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

import kernels
from kernels import AdaptiveK
from support.formula import uniform
from support.operation_cases import Call, chosen, cuts, gate, indexer, nsa, qkv, unit


def recurrent(time: int, heads: int, k: int, v: int, memories: tuple[int, ...] = ()) -> dict[str, Tensor]:
    shape = (1, time, *memories, heads)
    return {
        "q": uniform("q", 1, time, heads, k),
        "k": unit(uniform("k", *shape, k)),
        "v": uniform("v", *shape, v),
        "g": gate("g", *shape),
        "beta": uniform("beta", *shape, low=0.1, high=1.9 if memories else 1.0),
    }


def unequal_widths() -> Iterator[Call]:
    """Keys of one tile with values of several, and the reverse; some tiles of delta_rule have 64 columns."""
    few = cuts(2, 3)
    for k, v, wide_k, wide_v in ((6, 36, 6, 72), (36, 6, 72, 6)):
        name, options = f"{k} and {v}", {"output_final_state": True, "cu_seqlens": few}
        channels = recurrent(5, 1, wide_k, wide_v)
        channels["g"] = gate("g", 1, 5, 1, wide_k)
        for x in (channels, recurrent(5, 1, wide_k, wide_v)):
            x["initial_state"] = uniform("state", 2, 1, wide_k, wide_v)
            gates = "channel" if x is channels else "head"
            yield Call(f"{wide_k} and {wide_v}, a gate a {gates}", kernels.delta_rule, x, options, tuple(x))
        x = recurrent(5, 1, k, v, (2,))
        x["routes"] = uniform("routes", 1, 5, 2).topk(2, -1).indices
        x["weights"] = uniform("weights", 1, 5, 2, low=0.1, high=1.0)
        learned = tuple(name for name in x if name != "routes")
        yield Call(name, kernels.memory_mixture, x, options, learned)
        x = recurrent(5, 1, k, v)
        x["lamb"] = uniform("lamb", 1, k, low=2.0, high=3.0)
        yield Call(name, kernels.mesa, x, {**options, "cg_steps": 30}, tuple(x))
        x = {
            **qkv(1, 5, 5, 1, 1, k, v),
            "w": unit(uniform("w", 1, 5, 1, k)),
            "beta": uniform("beta", 1, 5, 1, low=0.1, high=1.9),
            "g": gate("g", 1, 5, 1),
        }
        yield Call(name, kernels.path_attention, x, {"cu_seqlens": few}, tuple(x))


def calls() -> Iterator[Call]:
    channels = recurrent(8, 1, 20, 20)
    channels["g"] = gate("g", 1, 8, 1, 20)
    options: dict[str, Any] = {"output_final_state": True, "cu_seqlens": cuts(3, 5)}
    for name, x in (("a gate a channel", channels), ("a gate a head", recurrent(8, 1, 20, 20))):
        x["initial_state"] = uniform("state", 2, 1, 20, 20)
        yield Call(name, kernels.delta_rule, x, options, tuple(x))
    yield from unequal_widths()
    x = recurrent(5, 1, 20, 20, (2,))
    x["routes"] = uniform("routes", 1, 5, 2).topk(2, -1).indices
    x["weights"] = uniform("weights", 1, 5, 2, low=0.1, high=1.0)
    learned = tuple(name for name in x if name != "routes")
    yield Call("wide values", kernels.memory_mixture, x, {"output_final_state": True}, learned)
    x = recurrent(8, 1, 20, 20)
    x["lamb"] = uniform("lamb", 1, 20, low=2.0, high=3.0)
    options = {"output_final_state": True, "cg_steps": 30, "cu_seqlens": cuts(3, 5)}
    yield Call("wide", kernels.mesa, x, options, tuple(x))
    x = {
        **qkv(1, 20, 20, 2, 1, 20, 20),
        "w": unit(uniform("w", 1, 20, 1, 20)),
        "beta": uniform("beta", 1, 20, 1, low=0.1, high=1.9),
        "g": gate("g", 1, 20, 2),
    }
    yield Call("wide", kernels.path_attention, x, {"cu_seqlens": cuts(3, 17)}, tuple(x))
    sizes = {"block_size": 4, "stride": 2, "select_size": 4, "n_select": 6, "window": 20}
    x = {"q": uniform("q", 1, 25, 2, 6)}
    for branch, rows in (("c", 12), ("s", 25), ("w", 25)):
        x |= {
            f"k{branch}": uniform(f"k{branch}", 1, rows, 1, 6),
            f"v{branch}": uniform(f"v{branch}", 1, rows, 1, 4),
        }
    x["gates"] = uniform("gates", 1, 25, 2, 3, low=0.1, high=0.9)
    yield Call("many keys", nsa, x, {**sizes, "cu_seqlens": cuts(3, 22)}, tuple(x))
    x = {**qkv(1, 6, 30, 2, 1, 6, 4), "indices": chosen(1, 6, 30, 20)}
    yield Call("many keys", kernels.sparse_attention, x, {}, ("q", "k", "v"))
    both = qkv(1, 20, 20, 2, 1, 6, 4)
    x = {"q": both["q"], "k": both["k"], **indexer(1, 20, 20), "tau": torch.tensor(3.0, dtype=torch.float64)}
    learned = ("q_idx", "k_idx", "w_idx", "bias", "tau")
    yield Call("all keys", kernels.indexer_kl, x, {"cu_seqlens": cuts(3, 17)}, learned)
    yield Call("chosen keys", kernels.indexer_kl, {**x, "indices": chosen(1, 20, 20, 18)}, {}, learned)
    rule = AdaptiveK("inverse", 5, 2, 9, reference=0.01)
    yield Call(
        "many keys", kernels.lightning_topk, indexer(1, 25, 25), {"k": rule, "cu_seqlens": cuts(3, 22)}
    )
    x = {
        "streams": uniform("streams", 1, 20, 2, 36),
        "phi": uniform("phi", 7, 72) / 8,
        "scale": uniform("scale", 3, low=0.5, high=2.0),
        "bias": uniform("bias", 7),
    }
    yield Call("wide", kernels.hyper_coefficients, x, {}, tuple(x))
    x = {"streams": uniform("streams", 1, 5, 2, 36), "h_pre": uniform("h_pre", 1, 5, 2)}
    yield Call("wide", kernels.hyper_pre, x, {}, tuple(x))
    x = {
        "streams": uniform("streams", 1, 5, 2, 36),
        "z": uniform("z", 1, 5, 36),
        "h_res": uniform("h_res", 2, 2),
        "h_post": uniform("h_post", 1, 5, 2),
    }
    yield Call("wide", kernels.hyper_post, x, {}, tuple(x))
    x = {
        "x": uniform("x", 1, 20, 20),
        "weight": uniform("weight", 20, 4),
        "state": uniform("state", 2, 20, 3),
    }
    yield Call("wide", kernels.short_conv, x, {"cu_seqlens": cuts(3, 17), "activation": "silu"}, tuple(x))
    for operation in (kernels.cayley, kernels.sinkhorn):
        yield Call("many", operation, {"raw": uniform("raw", 40, 3, 3)}, {}, ("raw",))
