"""A NaN in any input of any operation shows in all results and gradients that depend on it, in every form.

It may show in more, as products under a mask carry it on, but in no other sequence of a batch. What depends on a number
is what changes, by the definition in fp64, with a small step of it. Without a GPU, Triton's interpreter takes maxima as
a GPU does; on a GPU the kernels are compiled, and they alone are looked at:

    pytest tests/kernels/test_nan.py -k that_kernels_make
"""

import dataclasses
import itertools
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from support import operation_cases as cases
from support.operation_cases import Call, as_dtype, run
from support.triton_cases import DEVICE, maxima_of_a_gpu
from torch import Tensor
from torch.utils._pytree import tree_map_only

import kernels
from kernels.dispatch import Operation
from kernels.triton_common.tuning import Tuned


def calls() -> Iterator[Call]:
    """All calls, and one of a rule that gives all queries nearly the same number of keys."""
    yield from cases.calls()
    call = next(x for x in cases.lightning_topk() if x.name == "by the seed's rule")
    flat = dataclasses.replace(call.options["k"], beta=0.1)
    yield dataclasses.replace(call, name="a flat rule", options={**call.options, "k": flat})


CALLS = {call.title: call for call in calls()}
PLACES = (0.0, 0.3, 1.0)
"""How far into an input's numbers the NaN stands, from the first to the last."""
ROOT = Path(kernels.__file__).parents[1]
STEP, ROUNDING = 1e-7, 1e-12
"""What an input is changed by, far below what changes a selection, and changes of results, relative to their largest
number, that are rounding's."""

SELECTING = {
    cases.nsa: ("q", "kc"),
    kernels.indexed_attention: ("q_idx", "k_idx", "w_idx", "bias"),
}
"""Inputs that decide which keys are read. Beside a NaN these are others: gradients need not show it in each key."""

FEW = {
    "delta_rule": ("from a state", "packed, a gate a head"),
    "memory_mixture": ("one of four, from a state",),
    "mesa": ("packed, from states",),
    "path_attention": ("over blocks",),
    "path_extend": ("both, 5 of 75",),
    "nsa": ("fewer queries", "too short for a block"),
    "sparse_attention": ("fewer queries",),
    "lightning_topk": ("a flat rule", "ReLU", "fewer queries", "one query"),
    "indexer_kl": ("all keys", "ReLU of all keys"),
    "indexed_attention": ("fewer queries",),
}
"""Calls that take the interpreter seconds for an input; the others of these operations are `long`."""


TOKEN_BY_TOKEN = ("delta_rule", "memory_mixture", "mesa", "path_attention", "path_extend")
"""Operations whose definition takes long as well."""


def is_quick(title: str, operations: Iterable[str]) -> bool:
    operation, name = title.split(", ", 1)
    return operation not in operations or name in FEW[operation]


def decoding() -> Iterator[Call]:
    """One token without gradients, for which recurrences have kernels of their own."""
    for title, call in CALLS.items():
        if title.endswith(", a token"):
            yield dataclasses.replace(call, name="a token, no gradient", learned=())


QUICK = {**{call.title: call for call in decoding()}, **{x: CALLS[x] for x in CALLS if is_quick(x, FEW)}}


def numbers_of(call: Call) -> Iterator[tuple[str, str, int | None]]:
    """Where a call has numbers: in its tensors or options, by name, and in a tuple by place."""
    for where in ("tensors", "options"):
        for name, x in getattr(call, where).items():
            for place, y in enumerate(x) if isinstance(x, tuple) else [(None, x)]:
                if isinstance(y, Tensor) and y.is_floating_point() and y.numel():
                    yield where, name, place


def place_in(x: Tensor, name: str, share: float) -> int:
    """Which of an input's numbers is changed."""
    return 0 if name == "forgotten" else int(share * (x.numel() - 1))  # its newest tokens have 0 by agreement


def changed(call: Call, at: tuple, share: float, change: Callable[[Tensor], Any]) -> Call:
    """The call with one number of an input changed."""
    where, name, place = at

    def one(x: Tensor) -> Tensor:
        x = x.clone()
        numbers, i = x.view(-1), place_in(x, name, share)
        numbers[i] = change(numbers[i])
        return x

    given = dict(getattr(call, where))
    x = given[name]
    given[name] = one(x) if place is None else tuple(one(y) if i == place else y for i, y in enumerate(x))
    return dataclasses.replace(call, **{where: given})


def others_of_the_batch(call: Call, at: tuple, share: float) -> list[int]:
    """The rows of results that other sequences have than the one whose number is changed."""
    where, name, place = at
    x, batch = getattr(call, where)[name], len(next(iter(call.tensors.values())))
    x = x if place is None else x[place]
    if x.dim() < 3 or len(x) != batch:
        return []
    return [row for row in range(batch) if row != place_in(x, name, share) * batch // x.numel()]


def in_fp32(call: Call) -> Call:
    """The call in fp32 on the device of the kernels."""
    narrow = dataclasses.replace(as_dtype(call, torch.float32), learned=call.learned)
    given = [tree_map_only(Tensor, lambda x: x.to(DEVICE), x) for x in (narrow.tensors, narrow.options)]
    return dataclasses.replace(narrow, tensors=given[0], options=given[1])


def by_form(call: Call, forms: tuple[str, ...]) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """What those forms that serve a call make of it."""
    name = "nsa_attention" if call.operation is cases.nsa else call.operation.__name__
    known = next(x for x in Operation.every if x.name == name)
    for form in forms:
        if form not in known.backends:
            continue
        try:
            found = run(call, form)
        except ValueError as error:
            if "cannot serve this call" not in str(error):
                raise
        else:
            yield form, {name: x.cpu() for name, x in found.items()}


def wrong_beside_a_nan(call: Call, shares: tuple[float, ...], *forms: str) -> list[str]:
    """Where a NaN is hidden, or what is selected beside it is not what the definition selects."""
    narrow, before, wrong = in_fp32(call), run(call, "reference"), []
    nans = (
        (torch.nan, -torch.nan) if call.operation is kernels.lightning_topk else (torch.nan,)
    )  # ranks see signs
    for at in numbers_of(call):
        for share, nan in itertools.product(shares, nans):
            after = run(changed(call, at, share, lambda x: x + STEP), "reference")
            beside = changed(narrow, at, share, lambda _, nan=nan: nan)
            others = others_of_the_batch(call, at, share)
            selected = next(by_form(beside, ("reference",)))[1]["result 0"]
            for form, found in by_form(beside, forms):
                for name, x in found.items():
                    if not x.is_floating_point():
                        fault = "" if torch.equal(x, selected) else "others are selected"
                    else:
                        depends = differs(before[name], after[name])
                        some = name.startswith("gradient") and at[1] in SELECTING.get(call.operation, ())
                        hidden = int((depends & ~x.isnan()).sum())
                        shows = x.isnan().any() or not depends.any() if some else not hidden
                        fault = "" if shows else f"{hidden} of {int(depends.sum())} that depend on it hide it"
                        if x.dim() > 2 and others and x[others].isnan().any():
                            fault = "it reaches other sequences"
                    if fault:
                        wrong.append(f"{at[1]} at {share}, {form}, {name}: {fault}")
    return wrong


def differs(x: Tensor, y: Tensor) -> Tensor:
    return (x - y).abs() > ROUNDING * x.abs().amax() if x.numel() else x != y


@pytest.fixture
def one_configuration():
    """On a GPU kernels run in their first configuration, which the interpreter takes too: nothing is timed."""
    with mock.patch.object(Tuned, "_known", lambda tuned, *_: tuned.configs[0]):
        yield


def numbers(call: Call) -> int:
    return sum(x.numel() for x in call.tensors.values() if isinstance(x, Tensor))


DAILY = {QUICK[x].operation.__name__: x for x in sorted(QUICK, key=lambda x: -numbers(QUICK[x]))}.values()
"""The smallest call of each operation; the long tests take all."""


@pytest.mark.slow
@pytest.mark.parametrize("title", [title for title in CALLS if is_quick(title, TOKEN_BY_TOKEN)])
def test_a_nan_shows_in_all_that_depends_on_it(title):
    assert wrong_beside_a_nan(CALLS[title], PLACES[:2], "reference", "torch", "numba") == []


@pytest.mark.slow
@pytest.mark.usefixtures("one_configuration")
@pytest.mark.parametrize("title", DAILY)
def test_a_nan_shows_in_all_that_kernels_make_of_it(title):
    with maxima_of_a_gpu():
        assert wrong_beside_a_nan(QUICK[title], PLACES[1:2], "triton") == []


@pytest.mark.long
@pytest.mark.usefixtures("one_configuration")
@pytest.mark.parametrize("title", CALLS)
def test_a_nan_anywhere_shows_in_all_that_depends_on_it(title):
    with maxima_of_a_gpu():
        assert wrong_beside_a_nan(CALLS[title], PLACES[1:], "reference", "torch", "numba", "triton") == []


@pytest.mark.usefixtures("one_configuration")
@pytest.mark.parametrize("form", ["reference", "torch", "triton"])
@pytest.mark.parametrize("queries", [1, 20])
@pytest.mark.parametrize("rule", ["none", "seed", "inverse"])
def test_a_key_whose_score_is_nan_is_selected_and_a_rule_gives_the_most(rule, queries, form):
    k = kernels.AdaptiveK(rule, 3, 2, 6)
    given = {name: x.float().to(DEVICE) for name, x in cases.indexer(1, queries, 20).items()}
    given["k_idx"][0, 5, 0] = torch.nan
    with maxima_of_a_gpu():
        found = kernels.lightning_topk(**given, k=k, backend=form)[0].cpu()
    position = torch.arange(20 - queries, 20)
    sees = position >= 5
    assert torch.equal((found == 5).any(-1), sees)
    assert torch.equal((found >= 0).sum(-1)[sees], (position + 1).clamp_max(k.widest)[sees])


COMPILED = """
    import re

    import triton
    import triton.language as tl
    from triton.backends.compiler import GPUTarget

    from kernels.ops.delta_rule.triton_forward import load_shared_gates

    @triton.jit
    def plain(x, out, N: tl.constexpr):
        i = tl.arange(0, N)
        tl.store(out + i, tl.maximum(tl.load(x + i), 0.0))
        tl.store(out + N + i, tl.max(tl.load(x + i), axis=0))

    @triton.jit
    def keeping(x, out, N: tl.constexpr):
        i = tl.arange(0, N)
        tl.store(out + i, tl.maximum(tl.load(x + i), 0.0, propagate_nan=tl.PropagateNan.ALL))

    @triton.jit
    def gates(x, out, N: tl.constexpr):
        i = tl.arange(0, N)
        tl.store(out + i, load_shared_gates(x, i, N, 0, 1))

    for kernel in (plain, keeping, gates):
        source = triton.compiler.ASTSource(kernel, {"x": "*fp32", "out": "*fp32", "N": "constexpr"}, {"N": 128})
        code = triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["ptx"]
        print(*sorted(set(re.findall(r"max[.](?:NaN[.])?f32", code))))
"""


@pytest.mark.slow
def test_compiled_maxima_drop_a_nan_unless_they_are_told_to_keep_it(tmp_path):
    (tmp_path / "maxima.py").write_text(textwrap.dedent(COMPILED))
    environment = {
        **os.environ,
        "TRITON_INTERPRET": "0",
        "TRITON_CACHE_DIR": str(tmp_path),
        "PYTHONPATH": str(ROOT),
    }
    told = subprocess.run(
        [sys.executable, "maxima.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.split() == ["max.f32", "max.NaN.f32", "max.NaN.f32"]
