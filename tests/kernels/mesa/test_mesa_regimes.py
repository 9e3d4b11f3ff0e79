"""mesa where its systems are hard: few and repeated keys, keys near each other, long memories, every kind of Λ; NaN.

Every form is held against a factorisation in fp64, at the last tokens of a sequence, whose past is a state.
"""

import itertools
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from support.margins import above, below
from support.triton_cases import DEVICE, tensor_cores
from test_mesa_triton import bf16_allowed
from torch import Tensor

from kernels import mesa, mesa_residuals
from kernels.ops.mesa import triton_ops
from kernels.ops.mesa.triton_forward import Precisions
from zoo.mixers.mesanet import SOLVED

K, LAST, LIMIT = 32, 6, 1e-3
NAMES = ("q", "k", "v", "g", "beta", "lamb", "h_kk", "h_kv")

# name -> keys [T, K], fp64
KEYS: dict[str, Callable[[int, torch.Generator], Tensor]] = {
    "random": lambda n, draw: unit(normal(draw, n, K)),
    "one": lambda n, draw: unit(normal(draw, 1, K)).expand(n, K),
    "one, rarely another": lambda n, draw: torch.where(
        torch.rand(n, 1, generator=draw) < 0.9, unit(normal(draw, 1, K)), unit(normal(draw, n, K))
    ),
    "four": lambda n, draw: unit(normal(draw, 4, K))[torch.randint(4, (n,), generator=draw)],
    "sixteen": lambda n, draw: unit(normal(draw, 16, K))[torch.randint(16, (n,), generator=draw)],
    "as words of a text": lambda n, draw: unit(normal(draw, 500, K))[
        torch.multinomial(1 / torch.arange(1.0, 501), n, True, generator=draw)
    ],
    "cosine 0.9": lambda n, draw: near(0.9, n, draw),
    "cosine 0.99": lambda n, draw: near(0.99, n, draw),
}
PASTS = {"short": (64, 0.0), "long": (2048, 0.0), "forgotten": (2048, -0.01), "for gradients": (512, 0.0)}
"""Tokens, and the log of their gates. What Λ leaves of a gate's gradient falls with their number, squared."""


def normal(draw: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=draw, dtype=torch.float64)


def unit(x: Tensor) -> Tensor:
    return F.normalize(x, dim=-1)


def near(cosine: float, count: int, draw: torch.Generator) -> Tensor:
    one = unit(normal(draw, 1, K))
    return unit((1 - cosine) ** 0.5 * unit(normal(draw, count, K)) + cosine**0.5 * one)


def regime(keys: str, past: str) -> dict[str, Tensor]:
    """The last tokens and the states before them, fp32 numbers in fp64; heads of Λ = 1, 0.25, and 0.25 to 4."""
    tokens, gate = PASTS[past]
    draw = torch.Generator().manual_seed(3)
    k = KEYS[keys](tokens, draw).bfloat16().double()
    v = normal(draw, tokens, K).bfloat16().double()
    beta = torch.rand(tokens, generator=draw, dtype=torch.float64)
    before = slice(0, tokens - LAST)
    weights = (gate * torch.arange(tokens - LAST - 1, -1, -1)).exp() * beta[before]
    q = unit(normal(draw, LAST, K))
    q[::2] = unit(0.3 * q[::2] + k[-LAST::2])
    given = {"q": q, "k": k[-LAST:], "v": v[-LAST:], "g": torch.full((LAST,), gate), "beta": beta[-LAST:]}
    found = {name: torch.stack([x] * 3, 1)[None] for name, x in given.items()}
    mixed = 0.25 * 16 ** torch.rand(K, generator=draw, dtype=torch.float64)
    found["lamb"] = torch.stack([torch.ones(K), torch.full((K,), 0.25), mixed])
    for name, x in (("h_kk", k), ("h_kv", v)):
        found[name] = torch.stack([(k[before] * weights[:, None]).mT @ x[before]] * 3)[None]
    return {name: x.float().double() for name, x in found.items()}


def exact(q, k, v, g, beta, lamb, h_kk, h_kv) -> Tensor:
    """By factorisation; of H the symmetric part."""
    outputs, h_kk = [], 0.5 * (h_kk + h_kk.mT)
    for t in range(q.shape[1]):
        gamma, write = g[:, t].exp()[..., None, None], (beta[:, t, :, None] * k[:, t])[..., None]
        h_kk = gamma * h_kk + write * k[:, t, :, None]
        h_kv = gamma * h_kv + write * v[:, t, :, None]
        x = torch.linalg.solve(h_kk + torch.diag_embed(lamb), q[:, t])
        outputs.append((x[..., None, :] @ h_kv)[..., 0, :])
    return torch.stack(outputs, 1)


def call(backend: str) -> Callable[..., Tensor]:
    def run(*tensors: Tensor, **options) -> Tensor:
        return mesa(*tensors[:6], initial_state=tensors[6:], backend=backend, **options)[0]

    return run


def decoded(backend: str) -> Callable[..., Tensor]:
    def run(*tensors: Tensor) -> Tensor:
        *tokens, lamb, h_kk, h_kv = tensors
        state, outputs = (h_kk, h_kv), []
        for token in zip(*(x.split(1, 1) for x in tokens), strict=True):
            with torch.no_grad():
                o, state = mesa(*token, lamb, initial_state=state, output_final_state=True, backend=backend)
            outputs.append(o)
        return torch.cat(outputs, 1)

    return run


def parts(*tensors: Tensor) -> Tensor:
    """The kernels with 16-bit keys, whose solver multiplies fp16 parts; what tensor cores do is emulated."""
    q, k, v, *others = tensors
    with tensor_cores(), bf16_allowed(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(triton_ops, "_precisions", lambda *_: Precisions("parts", "ieee"))
        return call("triton")(q, k.bfloat16(), v.bfloat16(), *others)


FORMS = {
    "reference": call("reference"),
    "torch": call("torch"),
    "torch, decoding": decoded("torch"),
    "triton": call("triton"),
    "triton, 16 bits": parts,
    "triton, decoding": decoded("triton"),
}


def forms() -> list:
    return [pytest.param(x, id=x, marks=[pytest.mark.long] if "triton" in x else []) for x in FORMS]


def systems() -> Iterator:
    """Form, keys and past; of the kernels' two are enough for every day."""
    for form, keys, past in itertools.product(FORMS, KEYS, ("short", "long", "forgotten")):
        kernel, daily = "triton" in form, past == "long" and keys in ("one", "sixteen")
        marks = [] if not kernel else [pytest.mark.slow] if daily else [pytest.mark.long]
        yield pytest.param(form, keys, past, id=f"{form}-{keys}-{past}", marks=marks)


def errors(got: Tensor, wanted: Tensor) -> Tensor:
    """The largest error of every head beside its largest number, [heads]."""
    axes = [i for i in range(got.dim()) if i != got.dim() - 2]
    return (got.cpu().double() - wanted).abs().amax(axes) / wanted.abs().amax(axes)


@pytest.mark.parametrize(("form", "keys", "past"), systems())
def test_every_form_solves(form, keys, past):
    """Thirty steps in fp32. Decoding is the same as the whole sequence's, as both are what is exact."""
    given = regime(keys, past)
    wanted = exact(*given.values())
    got = FORMS[form](*(x.float().to(DEVICE) for x in given.values()))
    below(errors(got, wanted).max(), LIMIT)


@pytest.mark.parametrize("keys", KEYS)
@pytest.mark.parametrize("backend", ["reference", "torch", pytest.param("triton", marks=pytest.mark.long)])
def test_every_gradient_is_that_of_the_exact_solve(backend, keys):
    given = regime(keys, "for gradients")
    wanted, got = (
        gradients(function, [x.to(dtype) for x in given.values()])
        for function, dtype in ((exact, torch.float64), (call(backend), torch.float32))
    )
    for name, a, b in zip(NAMES, got, wanted, strict=True):
        below((a.cpu().double() - b).abs().max() / b.abs().max(), LIMIT, name)


def gradients(function: Callable[..., Tensor], tensors: list[Tensor]) -> tuple[Tensor, ...]:
    leaves = [x.to(DEVICE).requires_grad_() for x in tensors]
    o = function(*leaves)
    weight = normal(torch.Generator().manual_seed(5), *o.shape).to(o)
    return torch.autograd.grad((o * weight).sum(), leaves)


def hard() -> Iterator[tuple[dict[str, Tensor], Tensor]]:
    """Systems from easy to unsolvable for a few steps, nothing being forgotten; with their exact outputs."""
    for spread in (0.0, 1.0, 2.0):
        draw = torch.Generator().manual_seed(6)
        q, k, v = (unit(normal(draw, 1, 600, 1, K)) for _ in range(3))
        k = unit(k * torch.arange(1.0, K + 1) ** -spread)
        lamb = 0.25 * 100 ** torch.rand(1, K, generator=draw, dtype=torch.float64)
        given = {"q": q, "k": k, "v": v, "g": torch.zeros(1, 600, 1), "beta": torch.ones(1, 600, 1)}
        given = {name: x.float().double() for name, x in (given | {"lamb": lamb}).items()}
        states = (torch.einsum("bthk,bthj->bthkj", given["k"], given[x]) for x in "kv")
        yield given, exact_at_once(**given, states=[x.cumsum(1) for x in states])


def exact_at_once(q, lamb, states, **_) -> Tensor:
    x = torch.linalg.solve(states[0] + torch.diag_embed(lamb), q)
    return torch.einsum("bthk,bthkv->bthv", x, states[1])


@pytest.mark.parametrize("steps", [8, 12, 30])
def test_what_is_not_solved_has_a_residual_that_says_so(steps):
    """At every token: an error of o above 1e-3, beside the largest output, means a residual above SOLVED."""
    found = []
    for given, wanted in hard():
        q, k, v, g, beta, lamb = (x.float() for x in given.values())
        o, _ = mesa(q, k, v, g, beta, lamb, cg_steps=steps)
        wrong = (o.double() - wanted).abs().amax((2, 3)) > LIMIT * wanted.abs().amax()
        residual = mesa_residuals(q, k, g, beta, lamb, cg_steps=steps)[-1, ..., 0]
        if wrong.any():
            above(residual[wrong].min(), SOLVED)
        found.append(bool(wrong.any()))
    print("systems that are not solved:", found)
    assert steps == 30 or any(found)


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """The interpreter's maximum drops NaN, unless it is told to keep it; later Tritons' does."""
    if DEVICE == "cpu":
        import numpy as np
        from triton.runtime.interpreter import InterpreterBuilder

        dropping = lambda self, x, y: self.binary_op(x, y, np.fmax)  # noqa: E731 (a method)
        monkeypatch.setattr(InterpreterBuilder, "create_maxnumf", dropping)


BAD = 2
"""The token of a NaN."""


def poisoned(name: str) -> list[Tensor]:
    """Heads of random keys, the last with a NaN in this input: of the token BAD, in the states before, or in Λ."""
    given = {name: x.float().to(DEVICE) for name, x in regime("random", "short").items()}
    x = given[name]
    place = (-1, 3) if name == "lamb" else (0, -1, 3, 3) if name.startswith("h_") else (0, BAD, -1, 3)
    x[place[: x.dim()]] = torch.nan
    return list(given.values())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("form", forms())
def test_a_nan_shows_in_every_output_that_depends_on_it(form, name, as_on_a_gpu):
    """Chunked forms may carry it back to earlier tokens, and none to other heads."""
    nan = FORMS[form](*poisoned(name)).cpu().isnan()
    assert not nan[:, :, :-1].any()
    since = 0 if name in ("lamb", "h_kk", "h_kv") else BAD
    assert nan[:, since : BAD + 1 if name == "q" else LAST, -1].any(-1).all()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("backend", ["torch", pytest.param("triton", marks=pytest.mark.long)])
def test_a_nan_shows_in_the_gradients_that_depend_on_it(backend, name, as_on_a_gpu):
    got, wanted = (gradients(call(form), poisoned(name)) for form in (backend, "reference"))
    for of, a, b in zip(NAMES, got, wanted, strict=True):
        assert a.isnan()[b.isnan()].all(), of
    assert any(x.isnan().any() for x in wanted)
