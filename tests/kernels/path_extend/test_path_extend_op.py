"""path_extend: the last rows of path_attention over a cache, keys as single tokens leave them, forms agree, errors."""

import itertools

import pytest
import torch
from support.kernel_cases import normal
from support.path_attention_cases import inputs as sequence
from support.path_step_cases import WITHOUT, untouched, within

from kernels import path_attention, path_extend, path_step

BACKENDS = ["torch", "reference"]


def given(time: int, without=(), *, dtype=torch.float64, **sizes) -> dict[str, torch.Tensor | None]:
    """q, k, v, w, beta, g of a whole sequence, two query heads a KV head."""
    names = ("q", "k", "v", "w", "beta", "g")
    drawn = sequence(2, time, heads=4, kv_heads=2, width=5, value_width=7, **sizes)
    return {n: None if n in without else x.to(dtype) for n, x in zip(names, drawn, strict=True)}


def read(parts: dict, cuts: list[int], backend: str) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The sequence read in pieces [cuts[i], cuts[i+1]): outputs [B, T, H, V] and the cache after it."""
    k, v, out = parts["k"], parts["v"], []
    cache = {name: x.transpose(1, 2).contiguous() for name, x in (("keys", k), ("values", v))}
    lost = None if parts["g"] is None else k.new_zeros(2, 4, k.shape[1])
    for begin, end in itertools.pairwise(cuts):
        new = {n: None if parts[n] is None else parts[n][:, begin:end] for n in ("q", "w", "beta", "g")}
        rows = {name: x[:, :, :end] for name, x in cache.items()}
        forgotten = None if lost is None else lost[:, :, :end]
        out.append(path_extend(**new, **rows, forgotten=forgotten, scale=0.6, backend=backend))
    return torch.cat(out, 1), {**cache, **({} if lost is None else {"forgotten": lost})}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("without", WITHOUT.values(), ids=WITHOUT)
def test_pieces_give_path_attention_and_the_cache_of_single_tokens(without, backend):
    parts = given(41, without)
    wanted = path_attention(*parts.values(), scale=0.6, backend="reference")
    _, stepped = read(parts, list(range(42)), "reference")
    for cuts in ([0, 41], [0, 1, 3, 36, 37, 41]):
        out, cache = read(parts, cuts, backend)
        torch.testing.assert_close(out, wanted)
        for name, rows in stepped.items():
            torch.testing.assert_close(cache[name], rows)


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_token_is_path_step(backend):
    parts = given(9)
    _, cache = read({n: x[:, :8] for n, x in parts.items()}, [0, 8], backend)
    keys, values = (
        torch.cat([cache[n], parts[m][:, 8:].transpose(1, 2)], 2) for n, m in (("keys", "k"), ("values", "v"))
    )
    forgotten = torch.cat([cache["forgotten"], torch.zeros(2, 4, 1, dtype=torch.float64)], 2)
    newest = (parts[n][:, 8] for n in ("w", "beta", "g"))
    o = path_step(parts["q"][:, 8], keys, values, *newest, forgotten, scale=0.6)
    torch.testing.assert_close(o, read(parts, [0, 9], backend)[0][:, 8])


@pytest.mark.slow
def test_a_long_chunk_crosses_blocks_of_the_torch_form():
    """Blocks of 32 tokens and more, the last one not full, after a cache of 50 rows."""
    parts = given(50 + 150)
    wanted, cached = read(parts, [0, 50, 200], "reference")
    out, cache = read(parts, [0, 50, 200], "torch")
    torch.testing.assert_close(out, wanted)
    for name, rows in cached.items():
        torch.testing.assert_close(cache[name], rows)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_view_is_changed_where_it_stands(backend):
    parts = given(12)
    new = {n: parts[n][:, 7:] for n in ("q", "w", "beta", "g")}
    rows = {n: parts[m].transpose(1, 2).contiguous() for n, m in (("keys", "k"), ("values", "v"))}
    rows["forgotten"] = -normal(2, 4, 12, seed=3).abs()
    wanted = {name: x.clone() for name, x in rows.items()}
    o = path_extend(**new, **wanted, backend=backend)
    storage = {name: within(x) for name, x in rows.items()}
    views = {name: view for name, (_, view) in storage.items()}
    torch.testing.assert_close(path_extend(**new, **views, backend=backend), o)
    for name, (whole, view) in storage.items():
        assert untouched(whole)
        torch.testing.assert_close(view, wanted[name])
    assert not torch.equal(wanted["keys"], rows["keys"])
    assert torch.equal(wanted["values"], rows["values"])


@pytest.mark.parametrize("backend", BACKENDS)
def test_half_precision_turns_keys_in_full(backend):
    """bf16 tokens and values, fp32 keys, under autocast too: what is turned is exact to fp32."""
    parts = given(40)
    wide = ("k", "g", "beta")
    half = {n: x.float() if n in wide else x.bfloat16() for n, x in parts.items()}
    wanted, exact = read({n: x.double() for n, x in half.items()}, [0, 25, 40], "reference")
    with torch.autocast("cpu", torch.bfloat16):
        out, cache = read(half, [0, 25, 40], backend)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.double(), wanted, rtol=1e-2, atol=1e-2)
    for name in ("keys", "forgotten"):  # sums of some hundred products about 1
        torch.testing.assert_close(cache[name].double(), exact[name], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"q": torch.zeros(2, 4, 5)}, "q [B, T, H, K]"),
        ({"q": torch.zeros(2, 13, 4, 5)}, "T from 1 to the cache's n tokens"),
        ({"w": torch.zeros(2, 4, 2, 5)}, "path_extend needs w with [B, T] = (2, 5)"),
        ({"g": torch.zeros(2, 5, 3)}, "path_extend needs g [B, H]"),
        ({"beta": None}, "needs w and beta together"),
        ({"keys": torch.zeros(2, 2, 12, 5, dtype=torch.float16)}, "path_extend updates keys"),
        ({"keys": torch.zeros(2, 2, 12, 5, requires_grad=True)}, "call it under torch.no_grad()"),
        ({"backend": "tritom"}, "tritom"),
    ],
    ids=lambda x: "" if isinstance(x, dict) else x,
)
def test_what_does_not_fit_is_refused(change, said):
    parts = given(12, dtype=torch.float32)
    arguments = {n: parts[n][:, 7:] for n in ("q", "w", "beta", "g")}
    arguments |= {"keys": parts["k"].transpose(1, 2), "values": parts["v"].transpose(1, 2)}
    arguments["forgotten"] = torch.zeros(2, 4, 12)
    with pytest.raises(ValueError) as caught:
        path_extend(**{**arguments, **change})
    assert said in str(caught.value)
