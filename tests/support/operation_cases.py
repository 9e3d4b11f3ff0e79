"""Calls of every public operation on numbers from a formula: odd lengths, groups of heads, packed sequences, states.

What a backend computes of them is compared with the definition and with a recording.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

import kernels
from kernels import AdaptiveK
from kernels.ops.attention import segment_attention
from support.formula import uniform, whole


@dataclasses.dataclass(frozen=True)
class Call:
    """operation(**tensors, **options); gradients are asked for by the names in `learned`."""

    name: str
    operation: Callable[..., Any]
    tensors: dict[str, Any]
    options: dict[str, Any]
    learned: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        return f"{self.operation.__name__}, {self.name}"

    def __call__(self, backend: str | None = None, tensors: dict[str, Any] | None = None) -> Any:
        named = {} if backend is None else {"backend": backend}
        return self.operation(**(self.tensors if tensors is None else tensors), **self.options, **named)


def tensors_of(result: Any) -> list[Tensor]:
    if isinstance(result, Tensor):
        return [result]
    parts = result if isinstance(result, tuple | list) else []
    return [x for part in parts for x in tensors_of(part)]


def run(call: Call, backend: str | None) -> dict[str, Tensor]:
    """The results of a call and, if it learns, the gradients, by name."""
    leaves = {
        name: x.detach().clone().requires_grad_() if name in call.learned else x
        for name, x in call.tensors.items()
    }
    out = tensors_of(call(backend, leaves))
    found = {f"result {i}": x.detach() for i, x in enumerate(out)}
    learning = [x for x in out if x.requires_grad]
    if call.learned and learning:
        total = sum(
            (x * uniform(f"gradient {i}", *x.shape).to(x.device)).sum() for i, x in enumerate(learning)
        )
        wanted = [leaves[name] for name in call.learned]
        found_gradients = torch.autograd.grad(total, wanted, allow_unused=True, materialize_grads=True)
        found |= {f"gradient of {name}": x for name, x in zip(call.learned, found_gradients, strict=True)}
    return found


def as_dtype(call: Call, dtype: torch.dtype) -> Call:
    def change(x: Any) -> Any:
        if isinstance(x, tuple):
            return tuple(map(change, x))
        return x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() else x

    tensors = {name: change(x) for name, x in call.tensors.items()}
    options = {name: change(x) for name, x in call.options.items()}
    return Call(f"{call.name}, {str(dtype).removeprefix('torch.')}", call.operation, tensors, options)


def has_numba_form(call: Call) -> bool:
    if "cu_seqlens" in call.options:
        return False
    attends = (
        call.operation is kernels.indexed_attention
        and call.tensors["q"].shape[1] == call.tensors["k"].shape[1]
    )
    return attends or call.operation is nsa


def apart(call: Call) -> Call:
    """The call with tensors that are parts of longer ones along their second axis: sequences are no neighbours."""

    def view(x: Any) -> Any:
        if isinstance(x, tuple):
            return tuple(map(view, x))
        if not isinstance(x, Tensor) or x.dim() < 2:
            return x
        longer = torch.cat([x, x[:, :1].expand(-1, 3, *x.shape[2:])] if x.shape[1] else [x], 1)
        return longer[:, : x.shape[1]]

    tensors = {name: view(x) for name, x in call.tensors.items()}
    options = {name: view(x) if name == "initial_state" else x for name, x in call.options.items()}
    return Call(f"{call.name}, apart", call.operation, tensors, options)


def without_state(call: Call) -> Call:
    """The call, with no state after the last token asked for."""
    options = {**call.options, "output_final_state": False}
    return dataclasses.replace(call, name=f"{call.name}, without a state", options=options)


def cuts(*lengths: int) -> Tensor:
    """cu_seqlens of packed sequences of these lengths."""
    return torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)


def unit(x: Tensor) -> Tensor:
    return x / x.norm(dim=-1, keepdim=True)


def gate(name: str, *shape: int) -> Tensor:
    """Log gates, from nearly nothing forgotten to a tenth kept."""
    return uniform(name, *shape, low=-2.0, high=-0.01)


def qkv(b: int, tq: int, tk: int, h: int, hkv: int, k: int, v: int) -> dict[str, Tensor]:
    return {
        "q": 2 * uniform("q", b, tq, h, k),
        "k": 2 * uniform("k", b, tk, hkv, k),
        "v": uniform("v", b, tk, hkv, v),
    }


def attention() -> Iterator[Call]:
    for name, sizes, options in (
        ("grouped", (2, 37, 37, 4, 2, 8, 8), {}),
        ("a window", (1, 140, 140, 2, 1, 4, 4), {"window": 5}),
        ("a window over blocks", (1, 300, 300, 1, 1, 4, 4), {"window": 140, "scale": 0.3}),
        ("a window, fewer queries", (1, 70, 150, 1, 1, 4, 4), {"window": 81}),
        ("a few queries", (2, 5, 300, 2, 1, 4, 6), {}),
        ("fewer queries", (1, 270, 290, 1, 1, 6, 4), {}),
        ("one query", (2, 1, 9, 4, 2, 4, 4), {"scale": 1.5}),
        ("all see all", (2, 7, 5, 3, 1, 4, 6), {"causal": False}),
        ("packed", (1, 37, 37, 4, 2, 4, 6), {"cu_seqlens": cuts(3, 0, 20, 1, 13)}),
        ("packed, a window", (1, 37, 37, 2, 2, 4, 4), {"cu_seqlens": cuts(9, 28), "window": 4}),
        ("packed, all see all", (1, 37, 37, 2, 1, 4, 4), {"cu_seqlens": cuts(9, 28), "causal": False}),
    ):
        yield Call(name, kernels.attention, qkv(*sizes), options, ("q", "k", "v"))
    for name, sizes, options in (
        ("sinks", (2, 37, 37, 4, 2, 8, 6), {}),
        ("sinks, a window", (1, 70, 150, 2, 1, 4, 4), {"window": 81}),
        ("sinks, one query", (2, 1, 9, 4, 2, 4, 4), {"causal": False}),
        ("sinks, packed, a window", (1, 37, 37, 2, 2, 4, 4), {"cu_seqlens": cuts(9, 0, 28), "window": 4}),
    ):
        tensors = {**qkv(*sizes), "sinks": uniform("sinks", sizes[3])}
        yield Call(name, kernels.attention, tensors, options, tuple(tensors))


def delta_rule() -> Iterator[Call]:
    for name, (b, t, h, hx, k, v), more in (
        ("a gate a channel", (2, 71, 2, 2, 4, 6), {}),
        ("a gate a head, fewer heads", (2, 40, 4, 2, 6, 3), {"head": True, "scale": 0.7}),
        ("from a state", (2, 33, 2, 1, 4, 4), {"state": 2}),
        ("packed", (1, 75, 2, 2, 4, 4), {"state": 4, "cu_seqlens": cuts(33, 0, 1, 41)}),
        ("packed, a gate a head", (1, 75, 2, 2, 4, 4), {"head": True, "cu_seqlens": cuts(40, 35)}),
        ("a token", (2, 1, 4, 2, 4, 4), {"state": 2}),
    ):
        tensors = {
            "q": uniform("q", b, t, hx, k),
            "k": unit(uniform("k", b, t, hx, k)),
            "v": uniform("v", b, t, hx, v),
            "g": gate("g", b, t, h) if more.get("head") else gate("g", b, t, h, k),
            "beta": uniform("beta", b, t, h, low=0.1, high=1.9),
        }
        if "state" in more:
            tensors["initial_state"] = uniform("state", more["state"], h, k, v)
        options = {key: x for key, x in more.items() if key not in ("state", "head")}
        yield Call(name, kernels.delta_rule, tensors, {**options, "output_final_state": True}, tuple(tensors))


def memory_mixture() -> Iterator[Call]:
    for name, (b, t, m, h, k, v, r), more in (
        ("two of three", (2, 37, 3, 2, 4, 6, 2), {}),
        ("one of four, from a state", (2, 20, 4, 1, 4, 4, 1), {"state": 2, "scale": 0.7}),
        ("packed", (1, 50, 3, 2, 4, 4, 2), {"state": 3, "cu_seqlens": cuts(7, 0, 43)}),
        ("no delta term", (1, 40, 3, 2, 4, 4, 2), {"update": "gated_linear", "state": 1}),
        ("a token", (2, 1, 3, 2, 4, 4, 2), {"state": 2}),
    ):
        tensors = {
            "q": uniform("q", b, t, h, k),
            "k": unit(uniform("k", b, t, m, h, k)),
            "v": uniform("v", b, t, m, h, v),
            "g": gate("g", b, t, m, h),
            "beta": uniform("beta", b, t, m, h, low=0.1, high=1.9),
            "routes": uniform("routes", b, t, m).topk(r, -1).indices,
            "weights": uniform("weights", b, t, r, low=0.1, high=1.0),
        }
        if "state" in more:
            tensors["initial_state"] = uniform("state", more["state"], m, h, k, v)
        options = {key: x for key, x in more.items() if key != "state"}
        learned = tuple(key for key in tensors if key != "routes")
        yield Call(name, kernels.memory_mixture, tensors, {**options, "output_final_state": True}, learned)


def mesa() -> Iterator[Call]:
    for name, (b, t, h, k, v), more in (
        ("two chunks", (2, 37, 2, 3, 5), {}),
        ("packed, from states", (1, 40, 1, 4, 4), {"state": 3, "cu_seqlens": cuts(34, 0, 6)}),
        ("a token", (2, 1, 2, 3, 3), {"state": 2}),
    ):
        tensors = {
            "q": uniform("q", b, t, h, k),
            "k": unit(uniform("k", b, t, h, k)),
            "v": uniform("v", b, t, h, v),
            "g": gate("g", b, t, h),
            "beta": uniform("beta", b, t, h, low=0.1, high=1.0),
            "lamb": uniform("lamb", h, k, low=0.5, high=1.5),
        }
        learned = tuple(tensors)
        options = {key: x for key, x in more.items() if key != "state"}
        if "state" in more:
            factor = uniform("factor", more["state"], h, k, k)
            options["initial_state"] = (factor @ factor.mT, uniform("g state", more["state"], h, k, v))
        yield Call(
            name, kernels.mesa, tensors, {**options, "cg_steps": 12, "output_final_state": True}, learned
        )


def path_attention() -> Iterator[Call]:
    for name, (b, t, h, hkv, k, v), parts, options in (
        ("both", (2, 37, 4, 2, 4, 6), "wg", {}),
        ("over blocks", (1, 150, 2, 1, 4, 4), "wg", {"scale": 0.7}),
        ("turning", (1, 70, 2, 2, 4, 4), "w", {}),
        ("forgetting", (2, 70, 2, 1, 4, 4), "g", {}),
        ("packed", (1, 75, 2, 1, 4, 4), "wg", {"cu_seqlens": cuts(33, 0, 1, 41)}),
    ):
        tensors: dict[str, Any] = {**qkv(b, t, t, h, hkv, k, v), "w": None, "beta": None}
        if "w" in parts:
            tensors["w"] = unit(uniform("w", b, t, hkv, k))
            tensors["beta"] = uniform("beta", b, t, hkv, low=0.1, high=1.9)
        if "g" in parts:
            tensors["g"] = gate("g", b, t, h)
        learned = tuple(key for key, x in tensors.items() if x is not None)
        yield Call(name, kernels.path_attention, tensors, options, learned)


def long_paths() -> Iterator[Call]:
    """Far scales, which sequences beyond 512 tokens have; for launches alone."""
    for name, parts, options in (("long", "wg", {}), ("long, turning", "w", {"cu_seqlens": cuts(700, 600)})):
        tensors: dict[str, Any] = {
            **qkv(1, 1300, 1300, 2, 1, 4, 4),
            "w": unit(uniform("w", 1, 1300, 1, 4)),
            "beta": uniform("beta", 1, 1300, 1, low=0.1, high=1.9),
        }
        if "g" in parts:
            tensors["g"] = gate("g", 1, 1300, 2)
        yield Call(name, kernels.path_attention, tensors, options, tuple(tensors))


def path_step(q: Tensor, keys: Tensor, values: Tensor, w, beta, g, forgotten, **options) -> tuple:
    return in_place(kernels.path_step, q, keys, values, w, beta, g, forgotten, **options)


def path_extend(q: Tensor, keys: Tensor, values: Tensor, w, beta, g, forgotten, **options) -> tuple:
    return in_place(kernels.path_extend, q, keys, values, w, beta, g, forgotten, **options)


def in_place(operation: Callable[..., Tensor], q, keys, values, w, beta, g, forgotten, **options) -> tuple:
    """The output, and the keys and sums as the operation leaves them."""
    keys, forgotten = keys.clone(), None if forgotten is None else forgotten.clone()
    return operation(q, keys, values, w, beta, g, forgotten, **options), keys, forgotten


def path_caches() -> Iterator[Call]:
    for operation, time in ((path_step, ()), (path_extend, (5,)), (path_extend, (70,))):
        for name, parts, options in (
            ("both", "wg", {}),
            ("turning", "w", {"scale": 0.7}),
            ("forgetting", "g", {}),
        ):
            n, tokens = 75, time[0] if time else 1
            forgotten = uniform("forgotten", 2, 4, n, low=-3.0, high=0.0)
            forgotten[..., n - tokens :] = 0
            tensors = {
                "q": uniform("q", 2, *time, 4, 4),
                "keys": uniform("keys", 2, 2, n, 4),
                "values": uniform("values", 2, 2, n, 6),
                "w": unit(uniform("w", 2, *time, 2, 4)) if "w" in parts else None,
                "beta": uniform("beta", 2, *time, 2, low=0.1, high=1.9) if "w" in parts else None,
                "g": gate("g", 2, *time, 4) if "g" in parts else None,
                "forgotten": forgotten if "g" in parts else None,
            }
            yield Call(f"{name}, {tokens} of {n}", operation, tensors, options)


def nsa(q, kc, vc, ks, vs, kw, vw, gates, q_rotated=None, **options) -> Tensor:
    return kernels.nsa_attention(q, (kc, vc), (ks, vs), (kw, vw), gates, q_rotated=q_rotated, **options)


def nsa_attention() -> Iterator[Call]:
    small = {"block_size": 4, "stride": 2, "select_size": 4, "n_select": 4, "window": 5}
    other = small | {"block_size": 6, "select_size": 2, "n_select": 3}
    for name, (b, tq, tk, near, h, hkv, k, v), sizes, more in (
        ("grouped", (2, 37, 37, 37, 4, 2, 4, 6), small, {}),
        (
            "over blocks of queries",
            (1, 150, 150, 150, 2, 1, 4, 4),
            small | {"select_size": 8},
            {"scale": 0.9},
        ),
        ("other sizes", (1, 40, 40, 40, 2, 2, 4, 4), other, {}),
        ("fewer queries", (1, 9, 60, 60, 2, 1, 4, 4), small, {"rotated": True}),
        ("one query", (2, 1, 45, 5, 4, 2, 4, 4), small, {"rotated": True}),
        ("packed", (1, 50, 50, 50, 2, 1, 4, 4), small, {"cu_seqlens": cuts(21, 0, 3, 26), "rotated": True}),
        ("too short for a block", (1, 3, 3, 3, 2, 1, 4, 4), small, {}),
    ):
        blocks = (
            tk // sizes["stride"]
            if "cu_seqlens" in more
            else max(0, (tk - sizes["block_size"]) // sizes["stride"] + 1)
        )
        tensors = {"q": 2 * uniform("q", b, tq, h, k)}
        for branch, rows in (("c", blocks), ("s", tk), ("w", near)):
            tensors[f"k{branch}"] = 2 * uniform(f"k{branch}", b, rows, hkv, k)
            tensors[f"v{branch}"] = uniform(f"v{branch}", b, rows, hkv, v)
        tensors["gates"] = uniform("gates", b, tq, h, 3, low=0.1, high=0.9)
        if more.get("rotated"):
            tensors["q_rotated"] = 2 * uniform("q_rotated", b, tq, h, k)
        options = {key: x for key, x in more.items() if key != "rotated"}
        yield Call(name, nsa, tensors, {**sizes, **options}, tuple(tensors))


def short_conv() -> Iterator[Call]:
    for name, (b, t, d, k), options, sequences in (
        ("four taps", (2, 19, 5, 4), {"activation": "silu"}, 2),
        ("from zeros", (2, 9, 3, 3), {}, 0),
        ("one tap", (1, 6, 3, 1), {"activation": "silu"}, 0),
        ("packed", (1, 20, 3, 4), {"cu_seqlens": cuts(2, 0, 1, 17), "activation": "silu"}, 4),
        ("packed from zeros", (1, 20, 3, 4), {"cu_seqlens": cuts(2, 18)}, 0),
        ("fewer tokens than taps", (2, 2, 3, 5), {}, 2),
        ("a token", (3, 1, 4, 4), {"activation": "silu"}, 3),
    ):
        tensors = {"x": uniform("x", b, t, d), "weight": uniform("weight", d, k)}
        if sequences:
            tensors["state"] = uniform("state", sequences, d, k - 1)
        yield Call(name, kernels.short_conv, tensors, options, tuple(tensors))
    for name, (b, t, k), options, sequences in (
        ("heads", (2, 9, 3), {"heads": (2, 1, 1)}, 2),
        ("no convolution", (2, 3, 0), {"heads": (1, 2, 2), "weight": None}, 0),
        ("packed", (1, 20, 4), {"heads": (1, 1, 2), "cu_seqlens": cuts(2, 0, 1, 17)}, 4),
    ):
        d = 5 * sum(options["heads"])
        tensors = {"x": uniform("x", b, t, d)}
        if k:
            tensors["weight"] = uniform("weight", d, k)
        if sequences:
            tensors["state"] = uniform("state", sequences, d, k - 1)
        yield Call(name, kernels.short_conv_heads, tensors, options, tuple(tensors))


def matrices() -> Iterator[Call]:
    for n in (1, 2, 3, 4, 5, 8):
        raw = {"raw": 1.5 * uniform("raw", 2, 3, n, n)}
        yield Call(f"{n}", kernels.cayley, raw, {}, ("raw",))
        yield Call(f"{n}", kernels.sinkhorn, raw, {"iters": 1 + n}, ("raw",))
    raw = {"raw": 0.3 * uniform("raw", 5, 4, 4)}
    for terms in (1, 2, 5):
        yield Call(f"{terms} terms", kernels.cayley, raw, {"neumann_terms": terms}, ("raw",))
    yield Call("as often as usual", kernels.sinkhorn, raw, {}, ("raw",))


def chosen(b: int, tq: int, tk: int, n: int) -> Tensor:
    """Indices [B, Tq, n] of keys up to each query's own, −1 where a query has fewer or drops one."""
    scores = uniform("chosen", b, tq, tk)
    future = torch.arange(tk) > torch.arange(tk - tq, tk)[:, None]
    top = scores.masked_fill(future, -9.0).topk(min(n, tk), -1)
    return top.indices.masked_fill((top.values < -0.8) & (torch.arange(top.indices.shape[-1]) > 0), -1).int()


def sparse_attention() -> Iterator[Call]:
    for name, sizes, n, more in (
        ("grouped, with a gate", (2, 37, 37, 4, 2, 4, 6), 9, {"gate": True}),
        ("few of many", (1, 150, 150, 2, 1, 4, 4), 3, {}),
        ("few of many, with a gate", (1, 150, 150, 2, 2, 4, 4), 2, {"gate": True, "scale": 0.4}),
        ("fewer queries", (2, 9, 60, 2, 1, 4, 4), 8, {}),
        ("most of all", (1, 40, 40, 2, 2, 4, 4), 39, {"scale": 0.4}),
        ("packed", (1, 40, 40, 2, 1, 4, 4), 5, {"cu_seqlens": cuts(40)}),
    ):
        b, tq, tk, h, _, _, v = sizes
        tensors = {**qkv(*sizes), "indices": chosen(b, tq, tk, n)}
        if more.get("gate"):
            tensors["gate_logits"] = 3 * uniform("gate", b, tq, h, v)
        options = {key: x for key, x in more.items() if key != "gate"}
        learned = tuple(key for key in tensors if key != "indices")
        yield Call(name, kernels.sparse_attention, tensors, options, learned)
    for scale in (None, 0.4):
        tensors = {
            "q": uniform("q", 2, 4, 4),
            "keys": uniform("keys", 2, 2, 20, 4),
            "values": uniform("values", 2, 2, 20, 6),
            "indices": chosen(2, 1, 20, 7)[:, 0],
        }
        yield Call(f"scale {scale}", kernels.sparse_step, tensors, {"scale": scale}, ("q",))


def indexer(b: int, tq: int, tk: int, heads: int = 3, width: int = 4) -> dict[str, Tensor]:
    return {
        "q_idx": 2 * uniform("q_idx", b, tq, heads, width),
        "k_idx": 2 * uniform("k_idx", b, tk, width),
        "w_idx": uniform("w_idx", b, tq, heads, low=0.1, high=1.0),
        "bias": uniform("bias", heads),
    }


def lightning_topk() -> Iterator[Call]:
    seed, inverse = AdaptiveK("seed", 4, 2, 9), AdaptiveK("inverse", 5, 2, 9, reference=0.01)
    for name, (b, tq, tk), options in (
        ("a number", (2, 37, 37), {"k": 5}),
        ("over blocks of queries", (1, 140, 140), {"k": inverse}),
        ("by the seed's rule", (2, 20, 20), {"k": seed, "k_max": 12}),
        ("ReLU", (2, 37, 37), {"k": 6, "scores": "relu"}),
        ("fewer queries", (1, 9, 60), {"k": inverse}),
        ("one query", (3, 1, 30), {"k": inverse}),
        ("packed", (1, 40, 40), {"k": 4, "cu_seqlens": cuts(9, 0, 1, 30)}),
        ("counts", (2, 20, 20), {"k": 1 + whole("counts", 9, 2, 20), "k_max": 7}),
    ):
        yield Call(name, kernels.lightning_topk, indexer(b, tq, tk), options)
    equal = indexer(1, 30, 30)
    equal["k_idx"] = equal["k_idx"][:, :1].expand(1, 30, 4).clone()
    yield Call("equal keys", kernels.lightning_topk, equal, {"k": 5})
    hidden = {**indexer(1, 30, 30), "bias": torch.full((3,), -9.0, dtype=torch.float64)}
    yield Call("ReLUs that are 0", kernels.lightning_topk, hidden, {"k": 5, "scores": "relu"})


def indexer_kl() -> Iterator[Call]:
    learned = ("q_idx", "k_idx", "w_idx", "bias", "tau")
    for name, (b, tq, tk), n, options in (
        ("all keys", (2, 37, 37), 0, {}),
        ("chosen keys", (2, 37, 37), 6, {"scale": 0.4}),
        ("over blocks of queries", (1, 140, 140), 5, {}),
        ("ReLU", (2, 20, 20), 5, {"scores": "relu"}),
        ("ReLU of all keys", (2, 20, 20), 0, {"scores": "relu"}),
        ("fewer queries", (1, 9, 60), 7, {}),
        ("packed", (1, 40, 40), 0, {"cu_seqlens": cuts(9, 0, 1, 30)}),
    ):
        both = qkv(b, tq, tk, 4, 2, 4, 4)
        tensors = {
            "q": both["q"],
            "k": both["k"],
            **indexer(b, tq, tk),
            "tau": torch.tensor(3.0, dtype=torch.float64),
        }
        if n:
            tensors["indices"] = chosen(b, tq, tk, n)
        yield Call(name, kernels.indexer_kl, tensors, options, learned)


def indexed_attention() -> Iterator[Call]:
    six = AdaptiveK("none", 6, 1, 6)
    for name, (b, tq, tk, h, hkv), gated, options in (
        ("with a gate", (2, 37, 37, 4, 2), True, {"rule": AdaptiveK("inverse", 5, 2, 9, reference=0.01)}),
        ("over blocks of queries", (1, 140, 140, 2, 1), False, {"rule": six, "scale": 0.4}),
        ("ReLU", (2, 20, 20, 2, 2), True, {"rule": six, "scores": "relu"}),
        ("fewer queries", (1, 9, 60, 2, 1), False, {"rule": six}),
        ("packed", (1, 40, 40, 2, 1), True, {"rule": six, "cu_seqlens": cuts(9, 0, 1, 30)}),
    ):
        tau = torch.tensor(3.0, dtype=torch.float64)
        tensors = {**qkv(b, tq, tk, h, hkv, 4, 6), **indexer(b, tq, tk), "tau": tau}
        if gated:
            tensors["gate_logits"] = 3 * uniform("gate", b, tq, h, 6)
        yield Call(name, kernels.indexed_attention, tensors, options, tuple(tensors))


def timeline_attention() -> Iterator[Call]:
    rotated = {"rope_base": 1e4, "weight": True}
    for name, sizes, lines, more in (
        ("rotated", (2, 37, 37, 4, 2, 4, 4), 3, {"rope_base": 100.0, "weight": True}),
        ("long ones", (1, 290, 290, 1, 1, 4, 4), 2, {"scale": 0.4}),
        ("packed", (1, 40, 40, 2, 2, 4, 6), 3, {"cu_seqlens": cuts(9, 0, 1, 30), **rotated}),
        ("an empty one", (1, 12, 12, 2, 1, 4, 4), 40, {}),
    ):
        b, t, _, h = sizes[:4]
        tensors = {**qkv(*sizes), "assignment": whole("assignment", lines, b, t, h)}
        if more.get("weight"):
            tensors["weight"] = uniform("weight", b, t, h, low=0.1, high=1.0)
        options = {"n_timelines": lines, **{key: x for key, x in more.items() if key != "weight"}}
        learned = tuple(key for key in tensors if key != "assignment")
        yield Call(name, kernels.timeline_attention, tensors, options, learned)


def streams() -> Iterator[Call]:
    for b, t, n, d, m in ((2, 3, 4, 6, 16), (1, 5, 2, 70, 0), (1, 2, 3, 65, 2)):
        x = {"streams": uniform("streams", b, t, n, d)}
        rows, size = 2 * n + m, f"{n} streams of {d}"
        coefficients = {
            **x,
            "phi": uniform("phi", rows, n * d) / (n * d) ** 0.5,
            "scale": uniform("scale", 3, low=0.5, high=2),
            "bias": uniform("bias", rows),
        }
        last = {"hand_on": True, "eps": 0.1}
        for options in ({}, last):
            learned = tuple(coefficients)
            yield Call(f"{size} {options}", kernels.hyper_coefficients, coefficients, options, learned)
        pre = {**x, "h_pre": uniform("h_pre", b, t, n)}
        normed = {**pre, "gain": uniform("gain", d, low=0.5, high=1.5)}
        yield Call(size, kernels.hyper_pre, pre, {}, tuple(pre))
        yield Call(f"{size} handed on", kernels.hyper_pre, pre, {"hand_on": True}, tuple(pre))
        yield Call(f"{size} and the norm", kernels.hyper_pre, normed, last, tuple(normed))
        for common in (False, True):
            own = () if common else (b, t)
            post = {
                **x,
                "z": uniform("z", b, t, d),
                "h_res": uniform("h_res", *own, n, n),
                "h_post": uniform("h_post", b, t, n),
            }
            yield Call(f"{size}, common {common}", kernels.hyper_post, post, {}, tuple(post))


def grouped_linear() -> Iterator[Call]:
    for counts in ((3, 0, 4), (0, 7), (7,)):
        tensors = {
            "x": uniform("x", 7, 5),
            "weight": uniform("weight", len(counts), 6, 5),
            "counts": torch.tensor(counts),
        }
        yield Call(str(counts), kernels.grouped_linear, tensors, {}, ("x", "weight"))


def linear_cross_entropy() -> Iterator[Call]:
    for name, tokens, ignored, options in (
        ("all asked for", (7,), 0, {}),
        ("chunks", (2, 140), 0, {}),
        ("some asked for", (3, 5), 4, {"ignore_index": 2}),
        ("none asked for", (3,), 3, {}),
    ):
        targets = whole("targets", 5, *tokens)
        targets.view(-1)[:ignored] = options.get("ignore_index", -100)
        tensors = {"x": uniform("x", *tokens, 6), "weight": 3 * uniform("weight", 5, 6), "targets": targets}
        yield Call(name, kernels.linear_cross_entropy, tensors, options, ("x", "weight"))


def swiglu() -> Iterator[Call]:
    for name, shape in (("rows", (2, 5, 7)), ("several tiles", (9, 530)), ("one axis", (6,))):
        tensors = {"gate": 3 * uniform("gate", *shape), "up": uniform("up", *shape)}
        yield Call(name, kernels.swiglu, tensors, {}, ("gate", "up"))


def head_gates() -> Iterator[Call]:
    for name, shape, rates, strength in (
        ("a rate a head", (2, 5), (2, 1), (2,)),
        ("a rate a number", (3, 2), (3, 2), (3, 2)),
    ):
        tensors = {
            "raw": 9 * uniform("raw", 2, 7, *shape),
            "log_rate": uniform("log_rate", *rates),
            "bias": uniform("bias", *shape),
            "strength": 3 * uniform("strength", 2, 7, *strength),
        }
        yield Call(name, kernels.delta_gates, tensors, {"top": 2.0}, tuple(tensors))
    for name, shape, gated in (("with a gate", (2, 7, 3, 5), True), ("without", (9, 20), False)):
        tensors = {"o": 2 * uniform("o", *shape), "gain": uniform("gain", shape[-1], low=0.5, high=1.5)}
        if gated:
            tensors["logits"] = 3 * uniform("logits", *shape)
        yield Call(name, kernels.gated_norm, tensors, {"eps": 1e-5}, tuple(tensors))


def rope() -> Iterator[Call]:
    for name, positions in (
        ("one axis", torch.arange(5)),
        ("rows", whole("positions", 90, 2, 5)),
        ("heads", whole("positions", 90, 2, 5, 3)),
    ):
        tensors = {"x": uniform("x", 2, 5, 3, 6), "positions": positions}
        yield Call(name, kernels.rope, tensors, {"base": 100.0}, ("x",))


def segments() -> Iterator[Call]:
    for name, lengths, options in (
        ("short ones", (3, 0, 9, 8, 1), {}),
        ("a window", (3, 9, 9), {"window": 2}),
        ("all see all", (3, 9, 9), {"causal": False, "scale": 0.4}),
    ):
        x = qkv(1, sum(lengths), sum(lengths), 4, 2, 4, 6)
        tensors = {key: value[0] for key, value in x.items()}
        options = {"cu_seqlens": cuts(*lengths), **options}
        yield Call(name, segment_attention, tensors, options, ("q", "k", "v"))


WITH_STATES = (delta_rule, memory_mixture, mesa)
"""Those that return a state where it is asked for."""
SPARSE = (sparse_attention, lightning_topk, indexer_kl, indexed_attention, timeline_attention)
WITH_BACKENDS = (
    *(attention, *WITH_STATES, path_attention, path_caches, nsa_attention, short_conv, matrices, *SPARSE),
    *(streams, grouped_linear, linear_cross_entropy, swiglu, head_gates, rope),
)
ALONE = (segments,)


def calls() -> list[Call]:
    """The calls of all operations that have backends."""
    return [call for family in WITH_BACKENDS for call in family()]
