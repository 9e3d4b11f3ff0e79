"""Tuned kernels: names, shape classes, bytes of the kernels that read every input once."""

import importlib
import pkgutil
import tomllib
from types import FunctionType, SimpleNamespace

import pytest
import torch
import triton
from support.hyper_cases import pre_inputs, stream_inputs
from support.kernel_cases import normal, packed

import kernels
import kernels.ops
from kernels.ops.delta_rule.triton_step import _step
from kernels.triton_common import tuning
from kernels.triton_common.tiles import nbytes
from kernels.triton_common.tuning import Tuned

CONFIGS = [triton.Config({"BV": 64}, num_warps=4), triton.Config({"BV": 16}, num_warps=2)]


@pytest.fixture
def tuned(monkeypatch) -> Tuned:
    monkeypatch.setattr(Tuned, "all", [])
    return Tuned(_step, CONFIGS, ["K", "V", "SHARED"])


@pytest.mark.parametrize(
    ("dtypes", "said"),
    [
        (["float32"], "float32"),
        (["float16", "float32"], "float16+float32"),
        (["bfloat16", "float32", "bfloat16", "int32"], "bfloat16+float32"),
        (["int64", "float16", "float16"], "float16"),
    ],
)
def test_a_class_has_the_values_of_its_key_and_every_floating_dtype_once(tuned: Tuned, dtypes, said):
    shape = tuned._shape([64, 32, True], [f"torch.{name}" for name in dtypes])
    assert shape == f"K=64,V=32,SHARED=True,{said}"


def test_what_is_tuned_in_one_dtype_is_not_taken_in_another(tuned: Tuned, monkeypatch):
    entry = {(tuned.name, "K=64,V=32,SHARED=True,float16+float32"): CONFIGS[1]}
    monkeypatch.setattr(tuning, "_table", lambda device: entry)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "This GPU")
    monkeypatch.setattr(triton.knobs.runtime, "interpret", False)

    def known(dtype: torch.dtype):
        data = {"q": torch.zeros(1, dtype=dtype), "g": torch.zeros(1)}
        return tuned._known((), {**data, "K": 64, "V": 32, "SHARED": True})

    assert known(torch.float16) is CONFIGS[1]
    assert known(torch.float32) is None
    assert known(torch.bfloat16) is None
    monkeypatch.setattr(triton.knobs.runtime, "interpret", True)
    assert known(torch.bfloat16) is CONFIGS[0]  # nothing is measured in the interpreter


def kernel(module: str, function: str = "_solve", body=lambda: None) -> SimpleNamespace:
    made = FunctionType(body.__code__, {"__name__": module}, function)
    return SimpleNamespace(fn=made)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("kernels.ops.mesa.triton_forward", "mesa._solve"),
        ("kernels.ops.mesa", "mesa._solve"),
        ("kernels.ops.mesa_triton", "mesa._solve"),
        ("kernels.ops.mesa.backward.triton_solve", "mesa._solve"),
        ("kernels.triton_common", "triton_common._solve"),
        ("fla.ops.mesa_net.chunk", "fla.ops.mesa_net.chunk._solve"),
        ("mine", "mine._solve"),
    ],
)
def test_a_kernel_is_named_by_its_operation_in_whatever_file_it_is(module, name):
    assert tuning.name_of(kernel(module)) == name


def test_two_kernels_of_one_name_are_refused(monkeypatch):
    monkeypatch.setattr(Tuned, "all", [])
    first = kernel("kernels.ops.mesa.triton_forward", body=lambda x: x)
    Tuned(first, CONFIGS, ["K"])
    Tuned(first, CONFIGS, ["V"])  # one kernel may be tuned for two purposes
    Tuned(kernel("kernels.ops.nsa_attention.triton_solve", body=lambda y: y), CONFIGS, ["K"])
    with pytest.raises(
        ValueError, match=r"two kernels are called mesa\._solve, in .*triton_forward and .*triton_backward"
    ):
        Tuned(kernel("kernels.ops.mesa.triton_backward", body=lambda y: y), CONFIGS, ["K"])
    assert len(Tuned.all) == 3


def test_every_entry_of_the_table_belongs_to_a_kernel():
    """A renamed kernel would lose its tuning without a word, and be timed anew on every machine."""
    for found in pkgutil.walk_packages(kernels.ops.__path__, "kernels.ops."):
        importlib.import_module(found.name)
    ways = {}
    for made in Tuned.all:
        ways.setdefault(made.name, []).append(made)
    entries = [
        (name, shape, entry)
        for table in tomllib.loads(tuning.TABLE.read_text()).values()
        for name, shapes in table.items()
        for shape, entry in shapes.items()
    ]
    assert entries
    for name, shape, entry in entries:
        assert any(belongs(made, shape, entry) for made in ways[name]), (name, shape)


def belongs(made: Tuned, shape: str, entry: dict) -> bool:
    """Whether this kernel makes such a shape class, and has such a configuration."""
    named = [part.partition("=")[0] for part in shape.split(",") if "=" in part]
    configs = [
        {**one.kwargs, "num_warps": one.num_warps, "num_stages": one.num_stages} for one in made.configs
    ]
    return named == made.key and entry in configs


TOKENS, N, WIDTH, ROWS = 10, 4, 8, 24  # of `stream_inputs`; ROWS = 2·N + N², coefficients of a token


def coefficients() -> dict[str, torch.Tensor]:
    sizes = {"phi": (ROWS, N * WIDTH), "scale": (3,), "bias": (ROWS,)}
    return {"streams": stream_inputs()["streams"]} | {name: normal(*shape) for name, shape in sizes.items()}


def convolution(batch: int, sequences: int) -> dict[str, torch.Tensor]:
    x = normal(batch, 9, 6)
    return {"x": x, "weight": normal(6, 4, seed=1), "state": normal(sequences, 6, 3, seed=2)}


# tensors; other arguments; the bytes in fp32 that forward keeps beside its results; what backward reads again
INPUTS, RESULTS = "inputs", "results"
CASES = {
    "hyper_pre": (pre_inputs(), {}, 0, [INPUTS]),
    "hyper_post": (stream_inputs(), {}, 0, [INPUTS]),
    "hyper_post, one matrix": (stream_inputs(common=True), {}, 0, [INPUTS]),
    "hyper_coefficients": (coefficients(), {}, 4 * TOKENS * (ROWS + 1), [INPUTS]),
    "short_conv": (convolution(2, 2), {}, 0, [INPUTS]),
    "short_conv, packed": (convolution(1, 3), {"cu_seqlens": packed(4, 0, 5)}, 0, [INPUTS]),
    "sinkhorn": ({"raw": normal(2, 5, 4, 4)}, {}, 0, [INPUTS, RESULTS]),
    "cayley": ({"raw": normal(2, 5, 4, 4)}, {}, 0, [RESULTS]),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("case", CASES)
def test_bytes_are_those_of_what_is_read_and_written(case, dtype):
    """Forward reads inputs and writes results; backward reads their gradients, and writes one of every input."""
    tensors, options, kept, again = CASES[case]
    name = case.split(",")[0]
    given = {name: x.to(dtype) for name, x in tensors.items()}
    results = getattr(kernels, name)(**given, **options)
    results = [results] if isinstance(results, torch.Tensor) else results
    size = {INPUTS: nbytes(*given.values()), RESULTS: nbytes(*results)}
    work = importlib.import_module(f"{kernels.ops.__name__}.{name}").work
    forward, backward = work(**given, **options)
    assert (forward.kernel, forward.way, backward.way) == (name, "forward", "backward")
    assert forward.bytes == size[INPUTS] + size[RESULTS] + kept
    assert backward.bytes == sum(size[x] for x in again) + kept + size[RESULTS] + size[INPUTS]
