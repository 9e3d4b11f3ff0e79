"""path_step: decoding gives path_attention's rows, forms agree, caches change where they should, errors."""

import pytest
import torch
from support.kernel_cases import normal
from support.margins import below
from support.path_attention_cases import inputs as sequence
from support.path_step_cases import WITHOUT, token, untouched, within
from support.triton_cases import DEVICE, HALF, assert_kernel_agrees, unwatched
from torch import Tensor

from kernels import path_attention, path_step
from kernels.ops import path_step_triton
from kernels.ops.path_step import OPERATION, work

BACKENDS = ["torch", "reference"]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("without", WITHOUT.values(), ids=WITHOUT)
def test_decoding_gives_the_rows_of_path_attention(without, backend):
    """Token by token into one cache, two query heads a KV head, against explicit sequences."""
    names = dict(zip("qkvwbg", sequence(2, 9, heads=4, kv_heads=2, width=5, value_width=7), strict=True))
    q, k, v, w, beta, g = names.values()
    if "w" in without:
        w = beta = None
    if "g" in without:
        g = None
    wanted = path_attention(q, k, v, w, beta, g, scale=0.6, backend="reference")
    keys, values = (x.new_full((2, 2, 9, x.shape[-1]), torch.nan) for x in (k, v))
    forgotten = None if g is None else q.new_zeros(2, 4, 9)
    for t in range(9):
        keys[:, :, t], values[:, :, t] = k[:, t], v[:, t]
        at = [None if x is None else x[:, t] for x in (w, beta, g)]
        lost = None if g is None else forgotten[:, :, : t + 1]
        o = path_step(
            q[:, t], keys[:, :, : t + 1], values[:, :, : t + 1], *at, lost, scale=0.6, backend=backend
        )
        torch.testing.assert_close(o, wanted[:, t], msg=lambda text, t=t: f"token {t}: {text}")


CALLS = {
    "one token": token(1),
    "two": token(2),
    "many": token(300, width=4),
    "groups": token(17, batch=3, heads=6, kv_heads=2, width=5, value_width=9),
    "one KV head": token(9, heads=3, kv_heads=1),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("without", WITHOUT.values(), ids=WITHOUT)
@pytest.mark.parametrize("case", CALLS)
def test_forms_agree_and_change_the_cache_alike(case, without, dtype):
    given = {name: x.to(dtype) for name, x in CALLS[case].items()}
    results = []
    for backend in BACKENDS:
        own = {name: None if name in without else x.clone() for name, x in given.items()}
        results.append([path_step(**own, backend=backend), own["keys"], own["forgotten"]])
        assert results[-1][0].dtype == dtype
        assert torch.equal(own["values"], given["values"])
        assert torch.equal(own["keys"][:, :, -1], given["keys"][:, :, -1])  # the newest stays, to the bit
        if "w" in without:
            assert torch.equal(own["keys"], given["keys"])
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_it_does_to_the_cache(backend):
    """A reflection turns w around and leaves what stands at right angles, to the bit; gates add up."""
    keys = torch.tensor([[3.0, 4.0], [0.0, 2.0], [5.0, 6.0]])[None, None]
    forgotten = torch.tensor([[[-1.0, -30.0, 0.0]]])
    w, beta, g = torch.tensor([[[1.0, 0.0]]]), torch.tensor([[2.0]]), torch.tensor([[-0.5]])
    path_step(torch.ones(1, 1, 2), keys, torch.ones(1, 1, 3, 2), w, beta, g, forgotten, backend=backend)
    assert keys[0, 0].tolist() == [[-3.0, 4.0], [0.0, 2.0], [5.0, 6.0]]
    assert forgotten[0, 0].tolist() == [-1.5, -30.5, 0.0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_view_is_changed_where_it_stands(backend):
    """Rows in the midst of larger storage; storage with tokens before heads."""
    given = token(6, heads=4, kv_heads=2)
    wanted = {name: x.clone() for name, x in given.items()}
    o = path_step(**wanted, backend=backend)
    storage = {name: within(given[name]) for name in ("keys", "values", "forgotten")}
    views = {name: view for name, (_, view) in storage.items()}
    torch.testing.assert_close(path_step(**{**given, **views}, backend=backend), o)
    assert all(untouched(whole) for whole, _ in storage.values())
    turned = {
        name: given[name].transpose(1, 2).contiguous().transpose(1, 2)
        for name in ("keys", "values", "forgotten")
    }
    torch.testing.assert_close(path_step(**{**given, **turned}, backend=backend), o)
    for name in ("keys", "forgotten"):
        torch.testing.assert_close(views[name], wanted[name])
        torch.testing.assert_close(turned[name], wanted[name])


@pytest.mark.parametrize("backend", BACKENDS)
def test_half_precision_turns_keys_in_full(backend):
    """bf16 tokens and values, fp32 keys, under autocast too: what is turned is exact to fp32."""
    given = token(20, heads=4, kv_heads=2)
    keep = ("keys", "forgotten", "g", "beta")
    given = {name: x.float() if name in keep else x.bfloat16() for name, x in given.items()}
    exact = {name: x.double() for name, x in given.items()}
    wanted = path_step(**exact, backend="reference")
    with torch.autocast("cpu", torch.bfloat16):
        o = path_step(**given, backend=backend)
    assert o.dtype == torch.bfloat16
    torch.testing.assert_close(o.double(), wanted, rtol=1e-2, atol=1e-2)
    for name in ("keys", "forgotten"):
        torch.testing.assert_close(given[name].double(), exact[name], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("gate", [-1e4, -torch.inf])
def test_whoever_forgets_all_takes_the_newest_value(gate, backend):
    given = token(5)
    given["g"] = torch.full_like(given["g"], gate)
    torch.testing.assert_close(path_step(**given, backend=backend), given["values"][:, :, -1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": normal(2, 2, 1, 8)}, r"q \[B, H, K\].*got q \(2, 2, 1, 8\)"),
        ({"keys": normal(2, 3, 8)}, r"keys \[B, Hkv, n, K\]"),
        ({"values": normal(2, 2, 4, 8)}, "tokens or key width differ"),
        ({"q": normal(1, 2, 8)}, "batch, KV heads"),
        ({"q": normal(2, 3, 8)}, "divisible by the KV heads"),
        ({"keys": normal(2, 2, 0, 8), "values": normal(2, 2, 0, 8)}, "a token in the cache"),
        ({"w": None}, "needs w and beta together"),
        ({"forgotten": None}, "g and forgotten together"),
        ({"w": normal(2, 2, 7)}, r"w \[B, Hkv, K\] = \(2, 2, 8\), got \(2, 2, 7\)"),
        ({"beta": normal(2, 1)}, r"beta \[B, Hkv\] = \(2, 2\), got \(2, 1\)"),
        ({"g": normal(2, 2, 5)}, r"g \[B, H\] = \(2, 2\), got \(2, 2, 5\)"),
        ({"forgotten": normal(2, 2, 4)}, r"forgotten \[B, H, n\] = \(2, 2, 5\), got \(2, 2, 4\)"),
        (
            {"keys": normal(2, 2, 5, 8).bfloat16()},
            "updates keys at every token and needs float32 or float64, got torch.bfloat16",
        ),
        ({"forgotten": normal(2, 2, 5).half()}, "updates forgotten at every token and needs float32"),
        ({"backend": "triton"}, "got float64|not installed"),
        ({"backend": "tritn"}, "did you mean 'triton'"),
    ],
)
def test_bad_arguments_are_refused_before_the_cache_changes(change, message):
    given = token(5)
    keys = given["keys"].clone()
    with pytest.raises(ValueError, match=message):
        path_step(**{**given, **change})
    assert torch.equal(given["keys"], keys)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["q", "w", "keys"])
def test_gradients_are_refused(name, backend):
    given = token(5)
    given[name].requires_grad_()
    with pytest.raises(ValueError, match=r"no gradient: call it under torch.no_grad\(\)"):
        path_step(**given, backend=backend)
    with torch.no_grad():
        path_step(**given, backend=backend)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_work_reads_the_cache_once_and_writes_what_changes(device):
    given = {name: x.to(device, torch.float32) for name, x in token(100, heads=6, kv_heads=2).items()}
    (one,) = work(**given)
    assert one.way == "forward"
    changed = given["keys"].nbytes + given["forgotten"].nbytes
    assert one.bytes == sum(x.nbytes for x in given.values()) + changed * 99 / 100 + given["q"].nbytes
    assert one.flops == 2 * (4 * 2 * 99 * 8 + 2 * 6 * 100 * 16)
    plain = work(**{**given, "w": None, "beta": None, "g": None, "forgotten": None})[0]
    assert plain.bytes == 2 * given["q"].nbytes + 2 * given["keys"].nbytes


KEPT = ("keys", "forgotten", "g", "beta")
FIXED = ("q", "keys", "values", "w", "beta", "g", "forgotten")

# The interpreter's time goes by the number of programs and tiles: a span has 128 tokens, a tile 128 to 32.
KERNEL_CALLS = {
    "one token": {"tokens": 1, "batch": 1, "heads": 1, "width": 16},
    "grouped heads, odd widths": {"tokens": 131, "heads": 6, "kv_heads": 2, "width": 20, "value_width": 33},
    "a whole span": {"tokens": 128, "batch": 1, "width": 5, "value_width": 40},
    "wide": {"tokens": 40, "batch": 1, "heads": 1, "width": 200, "value_width": 129},
    "17 heads a KV head": {"tokens": 33, "batch": 1, "heads": 17, "kv_heads": 1, "width": 100},
    "many spans": {"tokens": 2200, "batch": 1, "heads": 1},  # more than `_combine` takes at once
}
SLOW = pytest.mark.slow


def step(backend: str, **given: Tensor) -> list[Tensor]:
    """o, keys and forgotten, from caches in the midst of storage full of NaN."""
    storage = {name: within(given[name]) for name in ("keys", "values", "forgotten") if name in given}
    views = {name: view for name, (_, view) in storage.items()}
    arguments = dict.fromkeys(FIXED) | given | views
    o = path_step(**arguments, backend=backend)
    with unwatched():
        assert all(untouched(whole) for whole, _ in storage.values())
        assert torch.equal(views["values"], given["values"])
        assert torch.equal(views["keys"][:, :, -1], given["keys"][:, :, -1])
    return [o, *(views[name] for name in ("keys", "forgotten") if name in views)]


def compare(case: str, dtype: torch.dtype, without: tuple[str, ...] = ()) -> None:
    given = {name: x for name, x in token(**KERNEL_CALLS[case]).items() if name not in without}
    exact = {"o1": 1e-6, "o2": 1e-6}  # kept in fp32 whatever the token's dtype
    assert_kernel_agrees(
        lambda *, backend, **x: step(backend, **x), given, dtype, keep=KEPT, fixed=FIXED, limits=exact
    )


@pytest.mark.parametrize(
    "case", [pytest.param(x, marks=SLOW) if x == "many spans" else x for x in KERNEL_CALLS]
)
def test_kernels_equal_the_definition(case):
    compare(case, torch.float32)


@pytest.mark.parametrize("without", list(WITHOUT.values())[1:], ids=list(WITHOUT)[1:])
def test_without_a_part(without):
    compare("grouped heads, odd widths", torch.float32, without)


@HALF
@pytest.mark.parametrize("case", ["grouped heads, odd widths", "a whole span"])
def test_half_precision(case, dtype):
    compare(case, dtype)


def test_spans_are_combined_whatever_their_scores(monkeypatch):
    """Three tiles a span and a short last span; scores so far apart that a span vanishes beside another."""
    tiles = path_step_triton._tiles
    monkeypatch.setattr(path_step_triton, "PROGRAMS", 2)
    monkeypatch.setattr(path_step_triton, "_tiles", lambda *sizes: {**tiles(*sizes), "BN": 64})
    given = {name: x.float() for name, x in token(290, batch=1, heads=1).items()}
    for shift in (0.0, -300.0, -torch.inf):
        given["forgotten"][..., :192] += shift
        wanted = path_step(**{name: x.double() for name, x in given.items()}, backend="torch")
        got, *_ = step("triton", **{name: x.to(DEVICE) for name, x in given.items()})
        torch.testing.assert_close(got.cpu().double(), wanted, rtol=1e-5, atol=1e-6)


def test_storage_with_tokens_before_heads():
    given = {name: x.float().to(DEVICE) for name, x in token(5, batch=1, heads=4, kv_heads=2).items()}
    caches = ("keys", "values", "forgotten")
    turned = {
        name: x.transpose(1, 2).contiguous().transpose(1, 2) if name in caches[:2] else x.clone()
        for name, x in given.items()
    }
    torch.testing.assert_close(path_step(**turned, backend="triton"), path_step(**given, backend="reference"))
    for name in caches:
        torch.testing.assert_close(turned[name], given[name])


@pytest.mark.parametrize(
    ("tokens", "entries", "span"),
    [
        (1, 12, 128),
        (128, 1, 128),
        (129, 1, 128),
        (131_072, 1, 256),
        (131_072, 12, 3200),
        (131_072, 2048, 131_072),
    ],
)
def test_spans_keep_a_gpu_busy_and_none_is_empty(tokens, entries, span):
    assert path_step_triton._span(entries, tokens) == span
    parts = -(-tokens // span)
    assert (parts - 1) * span < tokens
    assert parts == 1 or entries * parts <= path_step_triton.PROGRAMS


@pytest.mark.gpu
@pytest.mark.parametrize("kv_heads", [8, 2])
def test_long_caches_repeat_bit_for_bit(kv_heads):
    given = token(100_001, batch=2, heads=8, kv_heads=kv_heads, width=64)
    keep = {
        name: x.to("cuda", torch.float32 if name in KEPT else torch.bfloat16) for name, x in given.items()
    }
    runs = []
    for _ in range(3):
        own = {name: x.clone() for name, x in keep.items()}
        runs.append([path_step(**own), own["keys"], own["forgotten"]])
    for again in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(runs[0], again, strict=True))
    assert OPERATION.choose("auto", *keep.values()).name == "triton"
    wanted = path_step(**{name: x.double() for name, x in keep.items()}, backend="torch")
    below((runs[0][0] - wanted).norm(), 0.005 * wanted.norm())
