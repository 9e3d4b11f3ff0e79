"""path_step's Triton kernels against the definition: spans and tiles, groups, what the cache is left like."""

import pytest
import torch
from support.margins import below
from support.path_step_cases import WITHOUT, token, untouched, within
from support.triton_cases import DEVICE, HALF, assert_kernel_agrees, unwatched
from torch import Tensor

from kernels import path_step
from kernels.ops import path_step_triton
from kernels.ops.path_step import OPERATION

KEPT = ("keys", "forgotten", "g", "beta")
FIXED = ("q", "keys", "values", "w", "beta", "g", "forgotten")

# The interpreter's time goes by the number of programs and tiles: a span has 128 tokens, a tile 128 to 32.
CALLS = {
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
    given = {name: x for name, x in token(**CALLS[case]).items() if name not in without}
    exact = {"o1": 1e-6, "o2": 1e-6}  # kept in fp32 whatever the token's dtype
    assert_kernel_agrees(
        lambda *, backend, **x: step(backend, **x), given, dtype, keep=KEPT, fixed=FIXED, limits=exact
    )


@pytest.mark.parametrize("case", [pytest.param(x, marks=SLOW) if x == "many spans" else x for x in CALLS])
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
