"""What every operation computes, costs and refuses: against its definition, and against what it did before."""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support import operation_cases as cases
from support import recorded
from support.formula import checksum, shape, uniform
from support.margins import below
from support.operation_cases import Call, apart, as_dtype, run, tensors_of, without_state
from torch import Tensor

import kernels
from kernels.autograd import backward_share, flop_counter
from kernels.dispatch import Operation
from kernels.indices import pack, penalties, unpack
from kernels.ops.mesa import mesa_residuals

FOLDER = Path(__file__).parent / "recorded"
LIMIT = 1e-9


def lines_of(call: Call, found: dict[str, Tensor]) -> Iterator[str]:
    yield f"== {call.title}"
    for name, x in found.items():
        shown = x.tolist() if not x.is_floating_point() and x.numel() <= 200 else recorded.number(checksum(x))
        yield f"{name} {shape(x)} {str(x.dtype).removeprefix('torch.')}: {shown}"


def computed(family: Any, backends: tuple[str | None, ...]) -> Iterator[str]:
    for call in family():
        wanted = run(call, backends[0])
        yield from lines_of(call, wanted)
        for backend in backends[1:]:
            for name, x in run(call, backend).items():
                assert x.shape == wanted[name].shape
                assert x.dtype == wanted[name].dtype, f"{call.title} {backend} {name}"
                if not x.is_floating_point():
                    assert torch.equal(x, wanted[name]), f"{call.title} {backend} {name}"
                elif x.numel():
                    size = wanted[name].abs().max().clamp_min(0.1)
                    below((x - wanted[name]).abs().max() / size, LIMIT, f"{call.title} {name}")


@pytest.mark.parametrize("family", cases.WITH_BACKENDS, ids=lambda family: family.__name__)
def test_torch_computes_the_definition_and_what_it_did(family):
    # Conjugate gradients that have not converged are differentiated otherwise by the two.
    recorded.check(FOLDER / f"{family.__name__}.txt", computed(family, ("reference", "torch")))


@pytest.mark.parametrize("family", cases.ALONE, ids=lambda family: family.__name__)
def test_operations_without_backends_compute_what_they_did(family):
    recorded.check(FOLDER / f"{family.__name__}.txt", computed(family, (None,)))


def parts() -> Iterator[str]:
    call = next(iter(cases.mesa()))
    q, k, _, g, beta, lamb = call.tensors.values()
    for cuts in (None, cases.cuts(30, 7)):
        rows = slice(None) if cuts is None else slice(0, 1)
        given = (x[rows] for x in (q, k, g, beta))
        found = mesa_residuals(*given, lamb, cg_steps=3, cu_seqlens=cuts)
        yield f"residuals {shape(found)}: {recorded.short([checksum(x) for x in found])}"
    x = uniform("x", 2, 13, 3, 2)
    for options in ({}, {"cu_seqlens": cases.cuts(6, 0, 7)}):
        rows = x[:1] if options else x
        found = kernels.nsa_blocks(rows, block_size=4, stride=2, **options)
        kept = found[:, : 3 if options else None]
        yield f"blocks {shape(found)}: {recorded.number(checksum(kept))}"
    mask = uniform("mask", 3, 11) > 0
    assert torch.equal(unpack(pack(mask), 11, torch.float64).bool(), mask)
    yield f"bits {pack(mask).tolist()}, penalties {recorded.number(checksum(penalties(mask, torch.float64)))}"


@pytest.mark.parametrize("family", cases.WITH_BACKENDS, ids=lambda family: family.__name__)
def test_tensors_may_be_parts_of_longer_ones(family):
    for call in family():
        with torch.no_grad():
            found, wanted = tensors_of(apart(call)("torch")), tensors_of(call("torch"))
        for x, right in zip(found, wanted, strict=True):
            assert torch.allclose(x, right, rtol=1e-9, atol=1e-12), call.title


@pytest.mark.parametrize("grad", [True, False], ids=["training", "decoding"])
@pytest.mark.parametrize("backend", ["reference", "torch"])
@pytest.mark.parametrize("family", cases.WITH_STATES, ids=lambda family: family.__name__)
def test_a_state_is_returned_where_it_is_asked_for_and_only_there(family, backend, grad):
    with torch.set_grad_enabled(grad):  # a decode step may have a form of its own
        for call in family():
            (o, state), (alone, none) = call(backend), without_state(call)(backend)
            assert state is not None, call.title
            assert none is None, call.title
            assert torch.allclose(alone, o, rtol=1e-9, atol=1e-12), call.title


def in_16_bit() -> Iterator[str]:
    """The dtypes of results in bf16, outside and inside autocast, and how near they come to fp64's."""
    seen = set()
    for call in cases.calls():
        if call.operation in seen or call.operation is kernels.lightning_topk or call.operation in IN_PLACE:
            continue
        seen.add(call.operation)
        wanted = [x for x in tensors_of(call("torch")) if x.is_floating_point()]
        narrow = as_dtype(call, torch.bfloat16)
        single = as_dtype(call, torch.float32)
        for title, made in (("bf16", narrow), ("fp32 under autocast", single)):
            with torch.autocast("cpu", torch.bfloat16, enabled=made is single):
                found = [x for x in tensors_of(made("torch")) if x.is_floating_point()]
            dtypes = [str(x.dtype).removeprefix("torch.") for x in found]
            yield f"{call.title}, {title}: {dtypes}"
            for x, right in zip(found, wanted, strict=True):
                if call.operation not in (kernels.indexed_attention, cases.nsa):  # they may select other keys
                    assert (x.double() - right).norm() <= 0.1 * right.norm() + 1e-6, f"{call.title}, {title}"


IN_PLACE = (cases.path_step, cases.path_extend)


def test_dtypes_of_results_in_16_bit():
    recorded.check(FOLDER / "dtypes.txt", in_16_bit())


def test_parts_that_operations_share():
    recorded.check(FOLDER / "parts.txt", parts())


# Costs


def meta(x: Any) -> Any:
    if isinstance(x, tuple):
        return tuple(map(meta, x))
    return x.to("meta") if isinstance(x, Tensor) else x


def flops(call: Call) -> list[str]:
    """FLOPs of a call without data, and with its backward; forms that need data are not counted."""
    tensors = {name: meta(x) for name, x in call.tensors.items()}
    for name in call.learned:
        tensors[name] = tensors[name].requires_grad_()
    moved = Call(
        call.name,
        call.operation,
        tensors,
        {name: meta(x) for name, x in call.options.items()},
    )
    counts = []
    with flop_counter() as counter:
        out = [x for x in tensors_of(moved()) if x.requires_grad]
    counts.append(counter.get_total_flops())
    shares = {str(op): backward_share(op) for op in counter.get_flop_counts()["Global"]}
    if out:
        with flop_counter() as counter:
            sum(x.sum() for x in out).backward()
        counts.append(counter.get_total_flops())
    return [*map(str, counts), *(f"{name} {share}" for name, share in shares.items() if "archzoo" in name)]


def counted() -> Iterator[str]:
    for call in (*cases.calls(), *cases.segments()):
        try:
            yield f"{call.title}: {', '.join(flops(call))}"
        except (NotImplementedError, RuntimeError) as error:
            yield f"{call.title}: needs data ({type(error).__name__})"


def test_what_every_call_costs():
    recorded.check(FOLDER / "costs.txt", counted())


# What is refused


def damaged(x: Tensor) -> Iterator[tuple[str, Tensor]]:
    """A tensor with another shape or dtype, and what was done to it: `1+` has a longer axis 1, `1-` an empty one."""
    for axis in range(x.dim()):
        yield f"{axis}+", torch.cat([x, x.narrow(axis, 0, min(1, x.shape[axis]))], axis)
        if x.shape[axis]:
            yield f"{axis}-", x.narrow(axis, 0, 0)
    yield "more axes", x[None]
    if x.dim():
        yield "fewer axes", x[0] if x.shape[0] else x.flatten()
    yield "dtype", x.bool() if not x.is_floating_point() else x.long()
    if not x.is_floating_point():
        yield "floats", x.double()


BAD_CUTS = {
    "int64": torch.tensor([0, 3]),
    "one number": torch.tensor([0], dtype=torch.int32),
    "a matrix": torch.tensor([[0, 3]], dtype=torch.int32),
    "from 1": torch.tensor([1, 3], dtype=torch.int32),
    "too short": torch.tensor([0, 2], dtype=torch.int32),
    "falling": torch.tensor([0, 3, 1, 3], dtype=torch.int32),
}


def said(call: Call, tensors: dict[str, Any] | None = None, **changed: Any) -> str:
    """The message of a refusal. Other errors come from libraries, whose words change: their kind is enough."""
    options = {**call.options, **changed}
    try:
        call.operation(**(call.tensors if tensors is None else tensors), **options)
    except ValueError as error:
        return str(error)
    except Exception:
        return "an error of a library"
    return "taken"


def cases_of(call: Call) -> Iterator[tuple[str, Any, dict[str, Any], dict[str, Any]]]:
    """Each broken argument of a call: in short what is wrong, the wrong value, and the arguments."""
    for name, x in call.tensors.items():
        for how, broken in damaged(x) if isinstance(x, Tensor) else ():
            yield f"{name} {how}", broken, {**call.tensors, name: broken}, {}
        if x is not None and name in ("w", "beta", "g", "forgotten"):
            yield f"{name} none", None, {**call.tensors, name: None}, {}
    for name, value in call.options.items():
        if isinstance(value, int | str) and not isinstance(value, bool):
            for bad in ("none of these",) if isinstance(value, str) else (0, -1):
                yield f"{name}={bad}", bad, call.tensors, {name: bad}


def by_check(call: Call) -> Iterator[str]:
    """The broken arguments that one check finds, a line a check; a refusal shows shapes or dtypes."""
    found: dict[str, list[str]] = {}
    for case, wrong, tensors, options in cases_of(call):
        message = said(call, tensors, **options)
        if isinstance(wrong, Tensor) and message in ("taken", "an error of a library"):
            continue
        if isinstance(wrong, Tensor):
            assert re.search(r"\(\d[\d, ]*\)|torch\.\w+", message), (call.title, case, message)
        rule = re.sub(r"\(\d[\d, ]*\)|torch\.\w+|-?\d+", "", message)
        found.setdefault(message if message == "taken" else rule, []).append(case)
    for rule, cases_found in found.items():
        yield f"{rule if rule in ('taken', 'an error of a library') else 'refused'}: {', '.join(cases_found)}"


def refused() -> Iterator[str]:
    seen = set()
    for call in cases.calls():
        learned = tuple(sorted(call.tensors))
        if (call.operation, learned) not in seen:
            seen.add((call.operation, learned))
            yield f"== {call.title}"
            yield from by_check(call)


def of_one_sequence(call: Call) -> bool:
    return "cu_seqlens" in call.options


def badly_packed() -> Iterator[str]:
    seen = set()
    for call in (call for call in cases.calls() if of_one_sequence(call)):
        if call.operation in seen:
            continue
        seen.add(call.operation)
        yield f"== {call.title}"
        found = {name: said(call, cu_seqlens=cuts) for name, cuts in BAD_CUTS.items()}
        assert not {"taken", "an error of a library"} & set(found.values()), found
        assert all("cu_seqlens" in message for message in found.values()), found
        yield f"refused: {', '.join(found)}"


def test_what_operations_say_to_arguments_that_do_not_fit():
    recorded.check(FOLDER / "refused.txt", [*refused(), *badly_packed()])


def reasons(call: Call) -> Iterator[str]:
    """Which form `auto` takes, and why the others refuse."""
    seen: list[tuple[Operation, tuple, dict]] = []
    choose = Operation.choose

    def noted(self: Operation, backend: str, *args: Any, **options: Any) -> Any:
        seen.append((self, args, options))
        raise StopIteration

    Operation.choose = noted
    try:
        call()
    except StopIteration:
        pass
    finally:
        Operation.choose = choose
    for operation, args, options in seen:
        taken = operation.choose("auto", *args, **options).name
        said_no = operation.refusals(*args, **options)
        # What libraries for GPUs say depends on how PyTorch was built.
        known = {name: why for name, why in said_no.items() if name not in ("varlen", "flash_attn")}
        yield f"{call.title}: {operation.name} takes {taken} of {', '.join(operation.backends)}; {known}"


def wide(call: Call) -> Call:
    """The call with a last axis of 300 numbers of a token, for the limits of tiles."""
    tensors = {
        name: x[..., :1].expand(*x.shape[:-1], 300) if isinstance(x, Tensor) and x.dim() >= 4 else x
        for name, x in call.tensors.items()
    }
    return Call(f"{call.name}, wide", call.operation, tensors, call.options)


def decisions() -> Iterator[str]:
    seen = set()
    for call in cases.calls():
        for made in (as_dtype(call, torch.float32), call):
            for line in reasons(made):
                words = line.split(": ", 1)[1]
                if (call.operation, words) not in seen:
                    seen.add((call.operation, words))
                    yield line
        if "state" not in call.name and call.operation not in (cases.nsa, kernels.grouped_linear):
            with contextlib.suppress(ValueError, RuntimeError):
                lines = reasons(wide(as_dtype(call, torch.float32)))
                yield from (line for line in lines if "at most" in line)


@pytest.mark.skipif(torch.cuda.is_available(), reason="forms that a GPU takes are asked for elsewhere")
def test_which_form_serves_a_call_and_why_the_others_do_not():
    recorded.check(FOLDER / "decisions.txt", decisions())
