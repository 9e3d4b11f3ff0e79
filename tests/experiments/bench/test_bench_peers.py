"""What peers are called with: pretended libraries write it down, PyTorch's own attention is compared with ours."""

import ast
import inspect
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from experiments.bench import peers
from experiments.bench.cases import CASES, NSA
from experiments.bench.memory_traffic import META
from experiments.bench.peers import fla, shared
from kernels.plugins import look_up

LENGTH = 128


class _Library(ModuleType):
    """A module whose every function writes down what it is called with, and returns that."""

    def __init__(self, name: str, called: list[tuple[str, tuple, dict[str, Any]]]) -> None:
        super().__init__(name)
        self.__dict__["_called"] = called

    def __getattr__(self, function: str) -> Any:
        if function.startswith("_"):
            raise AttributeError(function)

        def call(*arguments: Any, **options: Any) -> tuple:
            self._called.append((function, arguments, options))
            return arguments

        return call


@pytest.fixture
def called(monkeypatch) -> Iterator[list[tuple[str, tuple, dict[str, Any]]]]:
    """What the pretended fla and Liger-Kernel are called with."""
    found: list[tuple[str, tuple, dict[str, Any]]] = []
    operations = ("kda", "gated_delta_rule", "path_attn", "mesa_net", "nsa")
    for name in (
        *("fla", "fla.ops", "fla.modules", "fla.modules.causal_conv1d"),
        *(f"fla.ops.{operation}" for operation in operations),
        *("liger_kernel", "liger_kernel.transformers", "liger_kernel.transformers.functional"),
    ):
        monkeypatch.setitem(sys.modules, name, _Library(name, found))
    monkeypatch.setitem(sys.modules, "flash_attn", _Library("flash_attn", found))
    look_up.cache_clear()
    yield found
    look_up.cache_clear()


def calls_of(case: str, length: int = LENGTH, device: torch.device = META):
    return CASES[case].calls(CASES[case].length or length, length, device, torch.float32)


def run(peer: str, case: str) -> list:
    """A peer's form of a case, run twice: it is made once."""
    calls = calls_of(case)
    form = peers.form(peer, case, calls)
    form()
    form()
    return calls


def same(found: Any, wanted: Any) -> bool:
    return len(found) == len(wanted) and all(x is y for x, y in zip(found, wanted, strict=True))


@pytest.mark.parametrize(
    ("case", "function", "options"),
    [
        ("delta_rule, KDA", "chunk_kda", {}),
        ("delta_rule, a gate a head", "chunk_gated_delta_rule", {}),
        ("mesa", "chunk_mesa_net", {"max_CG_iteration": 30}),
        ("short_conv", "causal_conv1d", {"activation": "silu"}),
    ],
)
def test_fla_computes_the_operation_on_the_same_tensors(called, case: str, function: str, options):
    (call,) = run("fla", case)
    assert [name for name, *_ in called] == [function] * 2
    assert same(called[0][1], call.arguments)
    assert called[0][2] == options


def test_fla_decodes_from_the_same_state_to_the_one_after_it(called):
    (call,) = run("fla", "delta_rule, KDA, a step")
    function, arguments, options = called[0]
    assert function == "fused_recurrent_kda"
    assert same(arguments, call.arguments)
    assert options["initial_state"] is call.options["initial_state"]
    assert options["output_final_state"] is True


def test_flas_path_attention_has_its_keys_in_fp32():
    calls = CASES["path_attention"].calls(LENGTH, LENGTH, META, torch.bfloat16)
    found: list = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "fla.ops.path_attn", _Library("fla.ops.path_attn", found))
        look_up.cache_clear()
        peers.form("fla", "path_attention", calls)()
    look_up.cache_clear()
    types = [x.dtype for x in found[0][1]]
    assert types == [torch.bfloat16] * 3 + [torch.float32] * 3
    assert same(found[0][1][:3], calls[0].arguments[:3]), (
        "they keep their type, and are the tensors themselves"
    )
    assert [x.shape for x in found[0][1]] == [x.shape for x in calls[0].arguments]


def test_flas_nsa_selects_as_many_blocks_of_the_same_size_and_needs_flash_attn(called, monkeypatch):
    case = "nsa_attention, groups of 16"
    (call,) = run("fla", case)
    _, (q, k, v, *gates), options = called[0]
    assert same((q, k, v), (call.arguments[0], *call.arguments[2]))
    assert [gate.shape for gate in gates] == [q.shape[:-1]] * 3
    assert options == {
        "block_counts": NSA["n_select"],
        "block_size": NSA["select_size"],
        "window_size": NSA["window"],
    }
    # Version 4 alone puts an empty package of that name there.
    monkeypatch.setitem(sys.modules, "flash_attn", ModuleType("flash_attn"))
    look_up.cache_clear()
    with pytest.raises(ImportError, match="flash-attn 2: flash_attn is not installed"):
        peers.form("fla", case, calls_of(case))()


def published(function: str) -> Callable:
    """A function of the installed fla-core that takes what the real one takes; from its source, which wants a GPU."""
    try:
        package = metadata.distribution("fla-core")
    except metadata.PackageNotFoundError:
        pytest.skip("needs fla-core, which is not installed")
    for file in sorted(Path(package.locate_file("fla")).rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        if f"def {function}(" not in text:
            continue
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef) and node.name == function:
                space: dict[str, Any] = {}
                exec(f"def {function}({_bare(node.args)}): ...", space)
                return space[function]
    raise AssertionError(f"fla-core {package.version} has no {function}")


def _bare(arguments: ast.arguments) -> str:
    for one in ast.walk(arguments):
        if isinstance(one, ast.arg):
            one.annotation = None
    return ast.unparse(arguments)


@pytest.mark.parametrize("case", fla.CALLS)
def test_the_installed_fla_takes_what_it_is_called_with(called, case: str):
    run("fla", case)
    function, arguments, options = called[0]
    bound = inspect.signature(published(function)).bind(*arguments, **options)
    assert "kwargs" not in bound.arguments, "it would be dropped without a word"


@pytest.mark.parametrize("version", ["fla.modules.causal_conv1d", "fla.modules.conv"])
def test_flas_convolution_is_found_where_a_version_has_it(called, monkeypatch, version: str):
    for module in {"fla.modules.causal_conv1d", "fla.modules.conv"} - {version}:
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setitem(sys.modules, version, _Library(version, called))
    look_up.cache_clear()
    run("fla", "short_conv")
    assert called[0][0] == "causal_conv1d"


def test_liger_reads_and_writes_the_same_streams(called):
    (pre,), (post,) = run("liger", "hyper_pre"), run("liger", "hyper_post")
    (read, *_), (wrote, *_) = (
        [x for x in called if x[0] == f"liger_mhc_{way}"] for way in ("pre", "post_res")
    )
    assert same(read[1], pre.arguments)
    streams, y, mixing, out = post.arguments
    assert same(wrote[1], (streams, y, out, mixing))
    called.clear()
    coefficients = run("liger", "hyper-connections, mHC")[0]
    assert [name for name, *_ in called[:3]] == ["liger_mhc_coeffs", "liger_mhc_pre", "liger_mhc_post_res"]
    streams, phi, bias, *scales = called[0][1]
    assert streams is coefficients.arguments[0]
    assert phi.shape == coefficients.arguments[1].mT.shape
    assert phi.is_contiguous()
    assert bias is coefficients.arguments[3]
    assert [scale.shape for scale in scales] == [()] * 3


@pytest.mark.parametrize(
    ("module", "device", "why"),
    [
        ("torch", "cuda", None),
        ("torch", "cpu", "torch needs a CUDA device"),
        ("no_such_package", "cuda", "no_such_package is not installed"),
    ],
)
def test_a_library_of_kernels_needs_a_gpu_and_to_be_installed(module: str, device: str, why: str | None):
    assert shared.needs(module, torch.device(device)) == why


LIBRARIES = {"fla": ("fla/ops/__init__.py", "fla.ops"), "liger": ("liger_kernel/__init__.py", "liger_kernel")}


@pytest.mark.parametrize("peer", LIBRARIES)
@pytest.mark.parametrize("state", ["broken", "an empty folder"])
def test_a_peer_that_cannot_be_imported_is_named_with_its_reason(tmp_path, monkeypatch, peer, state):
    file, module = LIBRARIES[peer]
    made = tmp_path / file
    made.parent.mkdir(parents=True)
    if state == "broken":
        made.write_text("import something_that_is_not_there")
        (tmp_path / file.split("/")[0] / "__init__.py").touch()
    theirs = [name for name in sys.modules if name.partition(".")[0] == module.partition(".")[0]]
    for name in theirs:
        monkeypatch.delitem(sys.modules, name)
    # In place of those that are installed.
    monkeypatch.setattr(sys, "path", [str(tmp_path), *(x for x in sys.path if "site-packages" not in x)])
    look_up.cache_clear()
    try:
        why = peers._files()[peer].refuses(torch.device("cuda"))
    finally:
        look_up.cache_clear()
    assert why.startswith(module)
    assert ("something_that_is_not_there" if state == "broken" else "is not installed") in why


def test_a_copy_is_of_the_largest_input():
    (call,) = calls_of("short_conv", 256)
    copied = peers.form("copy", "short_conv", [call])()
    assert copied.shape == max(call.arguments, key=torch.numel).shape
