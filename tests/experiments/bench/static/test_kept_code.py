"""What a launch is compiled for, and when what was compiled before is taken again."""

from __future__ import annotations

import gzip
import json
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import triton

from experiments.bench.cases import Call
from experiments.bench.static.compiler import Compiled, Compiler
from experiments.bench.static.gpus import GPUS
from experiments.bench.static.operation_counts import account
from experiments.bench.static.specialization import Specialised, specialise

DIVISIBLE = [["tt.divisibility", 16]]


def kernel(*general: str) -> SimpleNamespace:
    """A pretended kernel of two numbers; general: those that it wants to be compiled for as any number."""
    params = [
        SimpleNamespace(name=name, is_constexpr=False, default=None, do_not_specialize=name in general)
        for name in ("x", "n")
    ]
    return SimpleNamespace(params=params, arg_names=["x", "n"])


@pytest.mark.parametrize(
    ("value", "general", "type_", "constant", "hint"),
    [
        (1, False, "constexpr", 1, None),
        (32, False, "i32", None, DIVISIBLE),
        (33, False, "i32", None, None),
        (1, True, "i32", None, None),
        (32, True, "i32", None, None),
    ],
)
def test_numbers_are_compiled_for_as_triton_does(monkeypatch, value, general, type_, constant, hint):
    """One is a constant, multiples of 16 are known as such; not where a kernel wants neither."""
    monkeypatch.setattr("triton.compiler.ASTSource", lambda *given: given)
    made = specialise(kernel(*["n"] * general), (torch.zeros(1), value), {})
    _, types, constants, hints = made.source
    assert types == {"x": "*fp32", "n": type_}
    assert constants.get((1,)) == constant
    assert hints == {(0,): DIVISIBLE} | ({(1,): hint} if hint else {})


def test_an_argument_that_is_not_given_has_the_kernels_default(monkeypatch):
    """What has no value is a constant."""
    monkeypatch.setattr("triton.compiler.ASTSource", lambda *given: given)
    made = kernel()
    made.params[1].default = 32
    assert specialise(made, (torch.zeros(1),), {}).source[1] == {"x": "*fp32", "n": "i32"}
    made.params[1].default = None
    _, types, constants, _ = specialise(made, (torch.zeros(1),), {}).source
    assert (types["n"], constants) == ("constexpr", {(1,): None})


def launch(**options: int) -> Specialised:
    return Specialised(SimpleNamespace(hash=lambda: "source"), options, {})


def test_code_is_kept_by_all_that_it_depends_on(tmp_path: Path, monkeypatch):
    keys = [
        Compiler(GPUS[gpu], tmp_path)._key(launch(**options))
        for gpu, options in (("H200", {}), ("A100", {}), ("H200", {"num_warps": 8}))
    ]
    monkeypatch.setattr(triton, "__version__", "0.0")
    assert len({*keys, Compiler(GPUS["H200"], tmp_path)._key(launch())}) == 4


def test_damaged_code_is_made_anew(tmp_path: Path):
    compiler, whole = Compiler(GPUS["H200"], tmp_path), Compiled(registers=7)
    kept = gzip.compress(json.dumps(asdict(whole)).encode())
    for content, found in (
        (kept, whole),
        (kept[:-9], None),
        (b"no archive", None),
        (gzip.compress(b"{"), None),
        (gzip.compress(b'{"of": "another version"}'), None),
    ):
        (tmp_path / "key.json.gz").write_bytes(content)
        assert compiler._stored("key") == found
    assert compiler._stored("none") is None


def test_a_backward_pass_is_of_the_first_output_and_not_of_states(tmp_path: Path):
    """Training asks for no gradient of them. Without kernels: a product forward and one backward for each output."""
    x = torch.ones(1000, requires_grad=True)
    call = Call("delta_rule", (x,), {})
    found, kernels = account(call, lambda: (2 * x, 3 * x), GPUS["H200"], tmp_path)
    assert [(row["mode"], row["operators"]) for row in found] == [("forward", 2), ("backward", 1)]
    assert kernels == []
