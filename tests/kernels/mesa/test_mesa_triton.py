"""mesa's Triton kernels against the definition: states, packing, gates of 0 and −30, odd widths, decoding."""

from functools import partial

import pytest
import torch
import triton
from support.kernel_cases import packed, rmse_ratio
from support.margins import below
from support.triton_cases import DEVICE, HALF, assert_kernel_agrees, kernels_only, tensor_cores
from test_mesa_op import assert_same, inputs, results
from test_mesa_op import call as call_positional
from torch import Tensor

from kernels import mesa
from kernels.ops import mesa as mesa_op
from kernels.ops.mesa import triton_forward, triton_ops, work
from kernels.ops.mesa.triton_forward import Precisions
from kernels.triton_common.tuning import Tuned

NAMES = ("q", "k", "v", "g", "beta", "lamb", "h_kk", "h_kv")
STEPS = 8
"""Enough for the systems of `case`, to fp32: the definition differentiates through its steps."""

# arguments of `inputs`, options; a chunk has 64 tokens.
# The interpreter's time goes by the number of programs: one head, few chunks.
CASES = {
    "short": ({"time": 5, "width": 16}, {}),
    "chunks": ({"time": 70, "width": 20, "value_width": 12, "sequences": 1}, {}),
    "gates -30": ({"time": 66, "width": 16, "gates": "-30"}, {}),
    "gates mixed": ({"time": 70, "width": 16, "gates": "mixed", "sequences": 1}, {}),
    "batch": (
        {"batch": 2, "time": 3, "heads": 2, "width": 5, "value_width": 70, "gates": "0", "sequences": 2},
        {},
    ),
    "packed": (
        {"time": 71, "width": 16, "sequences": 4},
        {"cu_seqlens": packed(0, 66, 1, 4)},
    ),
    "one token": ({"time": 1, "width": 16, "sequences": 1}, {}),
    # H in tiles, half a chunk a program.
    "wide, packed": (
        {"time": 37, "width": 144, "value_width": 16, "sequences": 2},
        {"cu_seqlens": packed(34, 3)},
    ),
}
FAST, LONG = ("short", "packed"), ("gates -30", "batch", "wide, packed")


def case(batch: int = 1, heads: int = 1, **shape) -> dict[str, Tensor]:
    """Systems that few steps solve; a state H that is not symmetric, as long as half of it is definite."""
    found = dict(zip(NAMES, inputs(batch, heads=heads, **shape), strict=False))
    found["lamb"] += 6
    if "h_kk" in found:
        found["h_kk"] = found["h_kk"] + 0.2 * found["h_kk"].roll(1, -1).triu()
    return found


def call(q, k, v, g, beta, lamb, h_kk=None, h_kv=None, *, cg_steps=STEPS, **options):
    """Output and final states of `mesa`."""
    state = None if h_kk is None else (h_kk, h_kv)
    options = {name: x.to(DEVICE) if isinstance(x, Tensor) else x for name, x in options.items()}
    o, final = mesa(
        q, k, v, g, beta, lamb, cg_steps=cg_steps, initial_state=state, output_final_state=True, **options
    )
    return o, *final


def cases() -> list:
    marks = dict.fromkeys(CASES, pytest.mark.slow) | dict.fromkeys(LONG, pytest.mark.long)
    return [pytest.param(x, id=x, marks=[] if x in FAST else marks[x]) for x in CASES]


@pytest.mark.parametrize("name", cases())
@pytest.mark.slow
def test_kernels_equal_the_definition(name):
    shape, options = CASES[name]
    assert_kernel_agrees(partial(call, **options), case(**shape), torch.float32)


@pytest.mark.slow
@HALF
@pytest.mark.parametrize("width", [16, pytest.param(192, marks=pytest.mark.gpu)])
def test_half_precision(width, dtype):
    tensors = case(time=70, width=width, value_width=24, sequences=1)
    assert_kernel_agrees(call, tensors, dtype, keep=("g", "h_kk", "h_kv"), gates=("g", "beta", "lamb"))


@pytest.mark.slow
@pytest.mark.parametrize("keys", [torch.bfloat16, torch.float16])
def test_the_solver_multiplies_parts_as_on_a_gpu(keys, monkeypatch):
    """Two bf16 parts hold 16 bits of a number, of a product three 2^-16; a solution loses the condition times that.

    They make the second chunk's state; the solver's own parts hold more. fp16 keys have two parts themselves.
    """
    monkeypatch.setattr(triton_ops, "_precisions", lambda *_: Precisions("parts", "ieee"))
    given, condition = of_sixteen_bits()
    with tensor_cores(), bf16_allowed():
        compare_forward(given, 30, limit=3 * 2.0**-16 * condition, dtypes={"k": keys, "v": keys})


@pytest.mark.slow
@pytest.mark.parametrize(("tokens", "cosine"), [(64, 0.0), (64, 0.9), (2048, 0.9), (8192, 0.9)])
@pytest.mark.parametrize("steps", [2, 30])
def test_the_solver_is_as_exact_as_fp32(tokens, cosine, steps, monkeypatch):
    """Measured: 0.8 to 2.4 times fp32's own error; one part in all steps is 150 times that where systems are solved."""
    monkeypatch.setattr(triton_ops, "_precisions", lambda *_: Precisions("parts", "ieee"))
    given = last_chunk(tokens, cosine)
    wanted, *_ = call(**given, cg_steps=steps, backend="reference")
    plain, *_ = call(**{name: x.float() for name, x in given.items()}, cg_steps=steps, backend="reference")
    stored = {
        name: x.to(torch.bfloat16 if name in ("k", "v") else torch.float32) for name, x in given.items()
    }
    with tensor_cores(), bf16_allowed(), kernels_only():
        got, *_ = call(**{name: x.to(DEVICE) for name, x in stored.items()}, cg_steps=steps, backend="triton")
    below(rmse_ratio(got.cpu(), wanted), 5 * float(rmse_ratio(plain, wanted)) + 1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [32, 64])
def test_a_program_for_half_a_chunk_solves_the_same_systems(tokens, monkeypatch):
    """Keys wider than 64, whose states are held, after a state and gates; states are of bf16 parts."""
    monkeypatch.setattr(triton_ops, "_precisions", lambda *_: Precisions("parts", "ieee"))
    monkeypatch.setattr(Tuned, "all", [])  # which keeps what is made, for as long as the process runs
    only = Tuned(triton_forward._solve, [triton.Config({"R": tokens})], ["K"])
    monkeypatch.setattr(triton_forward, "_solve_resident", only)
    given = last_chunk(256, 0.0, width=72)
    given["g"] = -torch.rand_like(given["g"])
    with tensor_cores(), bf16_allowed():
        compare_forward(given, 30, 2.0**-15, dtypes={"k": torch.bfloat16, "v": torch.bfloat16})


def last_chunk(tokens: int, cosine: float, width: int = 64) -> dict[str, Tensor]:
    """The last 64 of so many tokens whose keys have this cosine to each other, nothing being forgotten, in fp64."""
    torch.manual_seed(0)
    unit = torch.nn.functional.normalize
    k = unit(torch.randn(tokens, width, dtype=torch.float64), dim=-1)
    k = unit((1 - cosine) ** 0.5 * k + cosine**0.5 * k[:1], dim=-1).bfloat16().double()
    v, beta = torch.randn_like(k).bfloat16().double(), torch.rand(tokens, dtype=torch.float64)
    q = unit(torch.randn_like(k[-64:]), dim=-1)
    past = beta[:-64, None] * k[:-64]
    states = {"h_kk": past.mT @ k[:-64], "h_kv": past.mT @ v[:-64]}
    last = {"q": q, "k": k[-64:], "v": v[-64:], "g": torch.zeros(64), "beta": beta[-64:]}
    return {
        **{name: x[None, :, None].double() for name, x in last.items()},
        "lamb": torch.ones(1, width, dtype=torch.float64),
        **{name: x[None, None].float().double() for name, x in states.items()},
    }


def bf16_allowed():
    """While inside, the interpreter gets bf16 too: for `tensor_cores`, which multiplies it rightly."""
    return mesa_op.OPERATION.override("triton", refuses=lambda *_, **__: None)


def of_sixteen_bits() -> tuple[dict[str, Tensor], float]:
    """Tensors in fp64 that bf16 holds, nothing being forgotten, and the condition of the last token's matrix."""
    tensors = dict(zip(NAMES, inputs(1, 70, heads=1, width=32, gates="0"), strict=False))
    given = {name: x.bfloat16().double() for name, x in tensors.items()}
    keys, strength = given["k"][0, :, 0], given["beta"][0]
    return given, float(torch.linalg.cond((strength * keys).mT @ keys + given["lamb"][0].diag()))


@pytest.mark.slow
@pytest.mark.parametrize("steps", [1, 3])
def test_few_steps_are_the_same_steps(steps):
    """Far from the solution, where every step shows."""
    tensors = dict(zip(NAMES, inputs(1, 66, heads=1, width=16, gates="0"), strict=False))
    compare_forward(tensors, steps)


@pytest.mark.slow
def test_the_widest_keys():
    compare_forward(case(time=34, width=256, value_width=16, sequences=1), 2)


def compare_forward(
    tensors: dict[str, Tensor], steps: int, limit: float = 1e-5, dtypes: dict[str, torch.dtype] | None = None
) -> None:
    """Outputs and states without gradients, in fp32; `dtypes`: of inputs that the kernels get in another type."""
    given = {name: x.float().to(DEVICE) for name, x in tensors.items()}
    with kernels_only():
        stored = {name: x.to((dtypes or {}).get(name, x.dtype)) for name, x in given.items()}
        got = call(**stored, cg_steps=steps, backend="triton")
    wanted = call(**{name: x.double() for name, x in given.items()}, cg_steps=steps, backend="reference")
    for a, b in zip(got, wanted, strict=True):
        assert a.shape == b.shape
        below(rmse_ratio(a, b), limit)


@pytest.mark.slow
def test_nothing_in_gives_nothing_out():
    """q = 0, k = 0 and β = 0 are 0/0 in the conjugate gradient; an exhausted residual is too."""
    tensors = {name: x.to(DEVICE) for name, x in case(time=12, width=4).items()}
    tensors["q"][:, 3] = 0
    tensors["k"][:, 5] = 0
    tensors["beta"][:, :2] = 0
    found = results(partial(call_positional, backend="triton"), [x.float() for x in tensors.values()])
    assert not found["o"][:, 3].any()
    assert not found["o"][:, :2].any()
    # The definition differentiates through steps that it does not take where q = 0.
    wanted = results(partial(call_positional, backend="torch"), list(tensors.values()))
    assert_same(found, wanted, 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_gradients_of_any_size_survive(size):
    """Squares of the residual would underflow or overflow."""
    tensors = [x.float().to(DEVICE).requires_grad_() for x in case(time=4, width=4).values()]
    o = mesa(*tensors, cg_steps=STEPS, backend="triton")[0]
    normal_sized = torch.autograd.grad(o.sum(), tensors, retain_graph=True)
    scaled = torch.autograd.grad((o * size).sum(), tensors)
    for a, b in zip(scaled, normal_sized, strict=True):
        torch.testing.assert_close(a / size, b, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_gradients_of_the_state_alone():
    """No gradient reaches the outputs, and only one of the two states has one."""
    tensors = {name: x.float().to(DEVICE) for name, x in case(time=5, width=4, sequences=1).items()}

    def gradients(backend):
        leaves = {name: x.clone().requires_grad_() for name, x in tensors.items()}
        (call(**leaves, backend=backend)[2] ** 2).sum().backward()
        return leaves

    got, wanted = (gradients(backend) for backend in ("triton", "torch"))
    for name, x in got.items():
        expected = torch.zeros_like(x) if wanted[name].grad is None else wanted[name].grad
        torch.testing.assert_close(x.grad, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "shape",
    [
        {"batch": 2, "heads": 2, "width": 20, "value_width": 70, "sequences": 2},
        pytest.param({"width": 16}, marks=pytest.mark.slow),
        pytest.param({"width": 144, "value_width": 200, "sequences": 1}, marks=pytest.mark.slow),
    ],
    ids=["state", "no state", "wide"],
)
def test_one_token_is_decoding(shape, monkeypatch):
    """One kernel, without gradients; at few steps too."""
    monkeypatch.setattr(triton_ops, "solve", None)  # the chunked form's
    compare_forward(case(time=1, **shape), 2)


@pytest.mark.parametrize("width", [16, 144])
def test_one_token_is_the_same_where_its_states_are_not_asked_for(width):
    """Wide systems are solved from a state in memory, which then is nobody's."""
    given = [x.float().to(DEVICE) for x in case(time=1, width=width, sequences=1).values()]
    *tensors, h_kk, h_kv = given
    options = {"cg_steps": 2, "initial_state": (h_kk, h_kv), "backend": "triton"}
    with torch.no_grad():
        alone, nothing = mesa(*tensors, **options)
        o, _ = mesa(*tensors, **options, output_final_state=True)
    assert nothing is None
    assert torch.equal(alone, o)


@pytest.mark.parametrize("name", ["q", "k", "v", "g", "beta", "lamb", "h_kk", "h_kv"])
def test_one_token_has_gradients_for_whichever_input_alone_asks_for_them(name):
    given = {name: x.float().to(DEVICE) for name, x in case(time=1, width=16, sequences=1).items()}
    given[name].requires_grad_()
    o, *_ = call(**given, cg_steps=1, backend="triton")
    assert o.requires_grad


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_work_counts_what_the_solver_does(device):
    tensors = [x.to(device) for x in inputs(1, 128, width=32)]
    few, many = (work(*tensors, cg_steps=steps) for steps in (10, 20))
    assert [x.way for x in few] == ["forward", "backward"]
    steps = 10 * 256 * 2 * 32 * (32 + 64)
    assert [b.flops - a.flops for a, b in zip(few, many, strict=True)] == [steps, steps]
    assert few[0].bytes == sum(x.nbytes for x in tensors) + tensors[2].nbytes


@pytest.mark.gpu
@pytest.mark.parametrize("width", [64, 256])
def test_long_sequences_repeat_bit_for_bit(width):
    tensors = [x.to(DEVICE, torch.float32) for x in inputs(1, 8192, heads=4, width=width)]
    tensors = [x.bfloat16() for x in tensors[:3]] + tensors[3:]

    def run() -> list[Tensor]:
        leaves = [x.clone().requires_grad_() for x in tensors]
        o = mesa(*leaves, backend="triton")[0]
        o.backward(torch.ones_like(o))
        return [o, *(x.grad for x in leaves)]

    first, second = run(), run()
    assert all(x.isfinite().all() and torch.equal(x, y) for x, y in zip(first, second, strict=True))
