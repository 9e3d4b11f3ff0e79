"""Which kernels a call launches, on which grids and with which numbers; nothing is run, so shapes may be any.

What kernels compute is compared with the definition elsewhere; here a call is followed through the code around them.
"""

import importlib
import pkgutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support import operation_cases as cases
from support import recorded
from support.formula import shape, uniform
from support.operation_cases import Call, tensors_of
from torch import Tensor

import kernels.ops
from experiments.bench.cases import CASES
from kernels.triton_common import interpreted
from kernels.triton_common.tuning import Tuned, name_of

FOLDER = Path(__file__).parent / "recorded"
WITH_KERNELS = [
    family for family in cases.WITH_BACKENDS if family not in (cases.attention, cases.grouped_linear)
]
WITH_KERNELS.append(cases.long_paths)
needs_interpreter = pytest.mark.skipif(not interpreted(), reason="on a GPU kernels are compiled, and run")


def shown(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{shape(value)} {str(value.dtype).removeprefix('torch.')}"
    if isinstance(value, tuple | list):
        return f"({', '.join(map(shown, value))})"
    return recorded.short(value)


class Launches:
    """Notes every launch in place of running it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from triton.runtime.interpreter import InterpretedFunction

        self.lines: list[str] = []

        def run(kernel: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
            named = {**dict(zip(kernel.arg_names, args, strict=False)), **options}
            size = grid(named) if callable(grid) else grid
            numbers = ", ".join(f"{name}={shown(value)}" for name, value in named.items())
            self.lines.append(f"{name_of(kernel)} on {tuple(size)}: {numbers}")
            for value in args:
                if isinstance(value, Tensor):  # what stands in fresh memory must not decide anything
                    value.detach().view(torch.uint8 if value.dim() else value.dtype).numpy()[...] = 0

        monkeypatch.setattr(InterpretedFunction, "run", run)


@pytest.fixture(autouse=True)
def forgotten_tables():
    """What kernels did not write, as none ran, stays in no cache: a table of angles for instance."""
    yield
    for name, module in list(sys.modules.items()):
        if name.startswith(kernels.__name__):
            for thing in vars(module).values():
                if hasattr(thing, "cache_clear"):
                    thing.cache_clear()


def fp32(x: Any) -> Any:
    if isinstance(x, tuple):
        return tuple(map(fp32, x))
    return x.float() if isinstance(x, Tensor) and x.is_floating_point() else x


def launch(call: Call) -> None:
    """A call on its Triton form, with its backward."""
    tensors = {
        name: fp32(x).detach().clone() if isinstance(x, Tensor) else x for name, x in call.tensors.items()
    }
    for name in call.learned:
        tensors[name].requires_grad_()
    moved = Call(call.name, call.operation, tensors, {key: fp32(x) for key, x in call.options.items()})
    out = [x for x in tensors_of(moved("triton")) if x.requires_grad]
    if out:
        sum((x * uniform("out", *x.shape).float()).sum() for x in out).backward()


def launched(monkeypatch: pytest.MonkeyPatch, family: Any) -> Iterator[str]:
    launches = Launches(monkeypatch)
    for call in family():
        launches.lines.clear()
        yield f"== {call.title}"
        try:
            launch(call)
        except ValueError as error:
            yield str(error).split(";")[0]
        yield from launches.lines


@needs_interpreter
@pytest.mark.parametrize("family", WITH_KERNELS, ids=lambda family: family.__name__)
def test_calls_launch_the_same_kernels_on_the_same_grids(family, monkeypatch):
    recorded.check(FOLDER / "launches" / f"{family.__name__}.txt", launched(monkeypatch, family))


WIDE = (
    *("delta_rule, KDA", "delta_rule, a gate a head", "memory_mixture", "path_attention"),
    *("mesa, heads of 256", "mesa, heads of 256, a step", "sparse_attention with its gate"),
    *("indexer_kl, DSA", "lightning_topk, DSA", "nsa_attention, groups of 16", "short_conv"),
    *("hyper_coefficients and hyper_pre with the norm", "hyper_post"),
)


def benchmarks(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The sizes of the reference model, in 16 bit."""
    launches = Launches(monkeypatch)
    for case in (CASES[name] for name in WIDE):
        yield f"== {case.name}"
        for call in case.calls(case.length or 70, 70, torch.device("cpu"), torch.float16):
            launches.lines.clear()
            with torch.set_grad_enabled(case.backward):
                out = [x for x in tensors_of(call.run("triton")) if x.requires_grad]
            if out:
                sum(x.float().sum() for x in out).backward()
            yield from launches.lines


@needs_interpreter
def test_benchmarks_launch_the_same_kernels_on_the_same_grids(monkeypatch):
    recorded.check(FOLDER / "launches" / "benchmarks.txt", benchmarks(monkeypatch))


def described(config: Any) -> str:
    return f"{config.kwargs} in {config.num_warps} warps and {config.num_stages} stages"


def configurations() -> Iterator[str]:
    for found in pkgutil.walk_packages(kernels.ops.__path__, "kernels.ops."):
        importlib.import_module(found.name)
    for tuned in sorted(Tuned.all, key=lambda tuned: tuned.name):
        if tuned.kernel.fn.__module__.startswith(kernels.__name__):
            yield f"{tuned.name} by {', '.join(tuned.key)}: {'; '.join(map(described, tuned.configs))}"


@needs_interpreter
def test_kernels_are_tuned_over_the_same_configurations():
    recorded.check(FOLDER / "configurations.txt", configurations())


def work() -> Iterator[str]:
    for case in CASES.values():
        for length, dtype in ((case.length or 300, torch.bfloat16), (case.length or 2048, torch.float32)):
            yield f"== {case.name}, {length} of {str(dtype).removeprefix('torch.')}"
            for call in case.calls(length, 2 * length, torch.device("meta"), dtype):
                for part in call.work() or ():
                    yield f"{part.kernel} {part.way}: {recorded.short([float(part.flops), float(part.bytes)])}"


def test_work_of_kernels_for_the_roofline():
    recorded.check(FOLDER / "work.txt", work())
