"""path_attention's Triton kernels against the definition: blocks, spans, packing, heads, gates and paths."""

import pytest
import torch
import torch.nn.functional as F
from support.kernel_cases import normal, packed
from support.margins import below
from support.triton_cases import DEVICE, EXACT_LIMIT, HALF, assert_kernel_agrees, of_equal_keys
from torch import Tensor

from kernels import path_attention
from kernels.ops.path_attention import work
from kernels.ops.path_attention.triton_forward import compact as path_kernel

slow, long = pytest.mark.slow, pytest.mark.long


def uniform(*shape: int, seed: int) -> Tensor:
    return torch.rand(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def inputs(batch: int, time: int, heads: int, kv_heads: int, width: int, values: int) -> dict[str, Tensor]:
    """Mostly reflections (β = 2), some projections (β = 1) and some in between; gates close to 0.

    So blocks far away still matter: in 16 dimensions every projection loses a sixteenth of a key.
    """
    beta, kind = 2 * uniform(batch, time, kv_heads, seed=5), uniform(batch, time, kv_heads, seed=6)
    return {
        "q": normal(batch, time, heads, width, seed=1),
        "k": normal(batch, time, kv_heads, width, seed=2),
        "v": normal(batch, time, kv_heads, values, seed=3),
        "w": F.normalize(normal(batch, time, kv_heads, width, seed=4), dim=-1),
        "beta": beta.where(kind > 0.03, 1.0).where(kind < 0.06, 2.0),
        "g": -0.02 * uniform(batch, time, heads, seed=7),
    }


def extreme(x: dict[str, Tensor]) -> dict[str, Tensor]:
    """Log gates 0 and −30, and a few ordinary ones."""
    kind = uniform(*x["g"].shape, seed=8)
    return x | {"g": x["g"].where(kind < 0.3, 0.0).where(kind < 0.9, -30.0)}


def one_way(x: dict[str, Tensor]) -> dict[str, Tensor]:
    """Every H the same reflection: the powers of a block's triangular matrix reach 10⁷ and more, its inverse 2."""
    return x | {"w": x["w"][:, :1].expand_as(x["w"]).contiguous(), "beta": 2 + 0 * x["beta"]}


# A block has 64 tokens, in 16 bit and beyond a width of 64 it has 128.
# The interpreter's time goes by the number of blocks and heads.
CALLS = {
    "packed": (inputs(1, 77, 2, 1, 20, 40), {"cu_seqlens": packed(70, 0, 1, 6)}),
    "one block": (inputs(2, 9, 1, 1, 5, 17), {"scale": 0.7}),
    "grouped heads": (inputs(1, 130, 3, 1, 16, 16), {}),
    "kv heads": (inputs(1, 70, 2, 2, 16, 16), {}),
    "batch": (inputs(2, 66, 1, 1, 16, 16), {}),
    "gates 0 and -30": (extreme(inputs(1, 130, 1, 1, 16, 16)), {}),
    "one way": (one_way(inputs(1, 130, 1, 1, 16, 16)), {}),
    "wide": (inputs(1, 140, 1, 1, 160, 80), {}),
}
SHORT, LONG = ("one block", "packed"), ("grouped heads", "wide")


@pytest.mark.parametrize(
    "case",
    [name if name in SHORT else pytest.param(name, marks=long if name in LONG else slow) for name in CALLS],
)
@pytest.mark.slow
def test_kernels_equal_the_definition(case):
    tensors, options = CALLS[case]
    compare(tensors, options, exact=of_equal_keys(2.0, 64) if case == "one way" else EXACT_LIMIT)


@pytest.fixture
def scales(monkeypatch):
    """Sets the tokens of a stretch and of a span, 512 and 8,192 outside."""

    def set_both(stretch: int, span: int = 8192) -> None:
        monkeypatch.setattr("kernels.ops.path_attention.triton_forward.STRETCH", stretch)
        monkeypatch.setattr("kernels.ops.path_attention.triton_ops.SPAN", span)

    return set_both


@slow
@pytest.mark.parametrize(
    ("stretch", "span", "shape", "options"),
    [
        (64, 128, (1, 300, 1, 1, 16, 16), {}),
        (128, 8192, (1, 211, 2, 1, 16, 16), {"cu_seqlens": packed(10, 200, 1)}),
        pytest.param(128, 8192, (1, 280, 1, 1, 16, 16), {}, marks=long),
        pytest.param(128, 128, (1, 341, 2, 1, 16, 16), {"cu_seqlens": packed(10, 330, 1)}, marks=long),
        pytest.param(64, 8192, (2, 140, 1, 1, 160, 80), {}, marks=long),
    ],
    ids=["spans", "packed", "one span", "packed spans", "wide"],
)
def test_gradients_from_stretch_to_stretch(stretch, span, shape, options, scales):
    scales(stretch, span)
    compare(inputs(*shape), options)


@slow
@pytest.mark.parametrize(
    "absent", [("w", "beta"), ("g",), ("w", "beta", "g")], ids=["FoX", "PaTH", "attention"]
)
def test_a_part_is_missing(absent, scales):
    scales(64)
    compare({name: x for name, x in inputs(1, 130, 1, 1, 16, 16).items() if name not in absent}, {})


@slow
@HALF
def test_half_precision(dtype, scales):
    """A width that makes blocks of 128 tokens; three of them, the last in a stretch of its own."""
    scales(256)
    compare(inputs(1, 260, 1, 1, 80, 24), {}, dtype)


@pytest.mark.skipif(DEVICE == "cuda", reason="kernels are counted in place of running, which cannot be timed")
@pytest.mark.parametrize(("tokens", "most"), [(512, 12), (8192, 20), (16_384, 25)])
def test_launches_grow_with_spans_of_8192_tokens_only(tokens, most, monkeypatch):
    launched = []
    monkeypatch.setattr(type(path_kernel), "run", lambda kernel, *_, **__: launched.append(kernel))
    leaves = [x.requires_grad_() for x in inputs(1, tokens, 1, 1, 16, 16).values()]
    out = path_attention(*(x.float() for x in leaves), backend="triton")
    assert len(launched) == 4
    torch.autograd.grad(out, leaves, torch.ones_like(out))
    assert len(launched) - 4 <= most


def compare(
    tensors: dict[str, Tensor],
    options: dict,
    dtype: torch.dtype = torch.float32,
    exact: float = EXACT_LIMIT,
) -> None:
    options = {name: x.to(DEVICE) if isinstance(x, Tensor) else x for name, x in options.items()}

    def call(*, w=None, beta=None, backend, **given):
        return path_attention(w=w, beta=beta, backend=backend, **given, **options)

    assert_kernel_agrees(call, tensors, dtype, keep=("beta", "g"), gates=("beta", "g"), exact=exact)


def test_work_on_the_meta_device():
    """One sequence of 64 tokens: half of all pairs, twice two products; nobody goes through a whole block."""
    q, k, v, w, beta, g = (x.to("meta") for x in inputs(1, 64, 2, 1, 16, 32).values())
    forward, backward = work(q, k, v, None, None, g)
    assert forward.flops == 2 * 2 * 64 * 65 / 2 * (16 + 32)
    assert backward.flops == 2 * 2 * 64 * 65 / 2 * (3 * 16 + 2 * 32)
    assert work(q, k, v, w, beta, g)[0].flops > forward.flops
    assert forward.bytes == 8 * 64 * (2 * 16 + 16 + 32 + 2 + 2 * 32) + 2 * 64 * 4


@pytest.mark.gpu
def test_long_sequences_give_the_same_bits_again():
    x = inputs(1, 8192, 4, 2, 64, 64)
    x = {
        name: y.to(DEVICE, torch.float32 if name in ("beta", "g") else torch.bfloat16)
        for name, y in x.items()
    }
    leaves = [y.requires_grad_() for y in x.values()]

    def run() -> list[Tensor]:
        out = path_attention(*leaves, backend="triton")
        return [out, *torch.autograd.grad(out, leaves, torch.ones_like(out))]

    first = run()
    for again in (run(), run()):
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


@pytest.mark.gpu
def test_long_sequences_agree_with_the_blocks_of_torch():
    x = {name: y.to(DEVICE, torch.float32) for name, y in inputs(1, 3000, 2, 1, 64, 64).items()}
    limit = 1e-4
    results = []
    for backend in ("triton", "torch"):
        leaves = [y.detach().requires_grad_() for y in x.values()]
        out = path_attention(*leaves, backend=backend)
        results.append([out, *torch.autograd.grad(out, leaves, torch.ones_like(out))])
    for got, wanted in zip(*results, strict=True):
        below((got - wanted).norm(), limit * wanted.norm())
