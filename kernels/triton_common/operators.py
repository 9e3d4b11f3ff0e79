"""Triton forms as operators that torch.compile takes whole, forward and backward, and CUDA graphs capture.

A form is an autograd.Function, or a function without gradients. While a compiler traces, a call of it becomes one
operator of the graph. The sizes of its results are then those that the form itself allocates when its launches are left
out, so that no form states them twice.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from triton.runtime.jit import KernelInterface

from kernels.triton_common.tuning import Tuned

_FORMS: dict[str, Any] = {}
_SCHEMA = "str form, Tensor?[] tensors, int[] ints, float[] floats, str[] texts, str layout, bool[] needs"
# A compiler may lay tensors out otherwise, and then a form copies others than those that were counted when it traced.
_TAGS = (getattr(torch.Tag, "needs_exact_strides", torch.Tag.needs_fixed_stride_order),)
_library = torch.library.Library("archzoo", "FRAGMENT")
_library.define(f"triton_forward({_SCHEMA}) -> Tensor[]", tags=_TAGS)
_library.define(f"triton_in_place(Tensor(a!) first, Tensor(b!)? second, {_SCHEMA}) -> Tensor", tags=_TAGS)
_library.define(
    "triton_backward(str form, Tensor?[] saved, Tensor?[] gradients, str kept, str layout, bool[] needs) -> Tensor[]",
    tags=_TAGS,
)


class operator:
    """Decorator of an autograd.Function, or of a function without gradients: called, it is what it decorates.

    It saves tensors by `save_for_backward` alone; what else it keeps on its context are plain values (JSON), and its
    arguments are tensors, None, numbers and texts.
    """

    def __init__(self, form: Any) -> None:
        self.name, self.form = f"{form.__module__}.{form.__qualname__}", form
        self.run = form.apply if isinstance(form, type) else form
        _FORMS[self.name] = form
        self.__doc__ = form.__doc__

    def __call__(self, *args: Any, returns: Sequence[bool] = (True,), writes: Sequence[int] = ()) -> Any:
        """Return what the form returns: a tensor, or a tuple where `returns` has several entries.

        returns: which of its results are tensors; the others are None. writes: the places of one or two arguments that
        it writes to; then it returns one tensor, and has no gradient.
        """
        if not torch.compiler.is_compiling():
            return self.run(*args)
        return _traced(self.name, args, returns, writes)


def _traced(name: str, args: Sequence[Any], returns: Sequence[bool], writes: Sequence[int]) -> Any:
    """The call as an operator of the graph. Only what Dynamo can trace stands here."""
    tensors, written, ints, floats, texts, layout = [], [], [], [], [], ""
    for place, x in enumerate(args):
        if place in writes:
            written.append(x)
            layout += "w"
        elif isinstance(x, Tensor):
            tensors.append(x)
            layout += "t"
        elif x is None:
            layout += "n"
        elif isinstance(x, bool):
            ints.append(int(x))
            layout += "b"
        elif isinstance(x, int):
            ints.append(x)
            layout += "i"
        elif isinstance(x, float):
            floats.append(x)
            layout += "f"
        else:
            texts.append(x)
            layout += "s"
    needs = [torch.is_grad_enabled() and x.requires_grad for x in tensors]
    layout += ">"
    for there in returns:
        layout += "t" if there else "n"
    given = name, tensors, ints, floats, texts, layout, needs
    if writes:
        return torch.ops.archzoo.triton_in_place(written[0], written[1] if len(written) > 1 else None, *given)
    found = torch.ops.archzoo.triton_forward(*given)
    results, left = [], 0
    for there in returns:
        results.append(found[left] if there else None)
        left += there
    return results[0] if len(returns) == 1 else tuple(results)


class _Context:
    """What a form is given in the place of autograd's context."""

    def __init__(self, needs: Sequence[bool], saved: Sequence[Tensor | None] = (), **kept: Any) -> None:
        self.needs_input_grad, self.saved_tensors, self.fills = tuple(needs), tuple(saved), True
        vars(self).update(kept)

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        self.saved_tensors = tensors

    def mark_non_differentiable(self, *outputs: Tensor) -> None:
        pass

    def set_materialize_grads(self, fills: bool) -> None:
        self.fills = fills

    def kept(self) -> str:
        """The plain values that the form keeps, as JSON."""
        own = {"needs_input_grad", "saved_tensors", "fills"}
        return json.dumps({key: value for key, value in vars(self).items() if key not in own})


@contextlib.contextmanager
def without_launches() -> Iterator[None]:
    """While inside, this thread launches no kernels: what a form allocates stays as it is."""
    owner = threading.get_ident()

    def without(kernels: type) -> Any:
        usual = kernels.__getitem__

        def launch(self: Any, grid: Any) -> Callable[..., Any]:
            return (lambda *_, **__: None) if threading.get_ident() == owner else usual(self, grid)

        return mock.patch.object(kernels, "__getitem__", launch)

    with without(KernelInterface), without(Tuned):
        yield


def _run(
    form: str,
    tensors: Sequence[Tensor],
    ints: Sequence[int],
    floats: Sequence[float],
    texts: Sequence[str],
    layout: str,
    needs: Sequence[bool],
    written: Sequence[Tensor] = (),
) -> tuple[_Context, list[Tensor], list[Tensor | None]]:
    """The form's context after its forward, its results, and what it saves."""
    rest = {"t": tensors, "w": written, "i": ints, "f": floats, "s": texts}
    rest, kinds = {kind: iter(values) for kind, values in rest.items()}, layout.partition(">")[0]
    rest["b"] = rest["i"]
    args = [None if kind == "n" else next(rest[kind]) for kind in kinds]
    args = [bool(x) if kind == "b" else x for x, kind in zip(args, kinds, strict=True)]
    function, context = _FORMS[form], _Context(needs)
    found = function.forward(context, *args) if isinstance(function, type) else function(*args)
    found = (found,) if isinstance(found, Tensor) else found
    return context, [x for x in found if x is not None], list(context.saved_tensors)


def _place(x: Tensor | None, known: Sequence[Tensor]) -> int | None:
    """Where a tensor itself stands among others; None where it does not."""
    return next((place for place, other in enumerate(known) if other is x), None)


def _own(tensors: Sequence[Tensor], known: Sequence[Tensor | None]) -> list[Tensor]:
    """The tensors, those that share memory with known ones or with each other copied: operators return no views."""
    taken = {x.untyped_storage()._cdata for x in known if x is not None}
    own = []
    for x in tensors:
        place = x.untyped_storage()._cdata
        own.append(x.clone() if place in taken else x)
        taken.add(place)
    return own


def _forward(form, tensors, ints, floats, texts, layout, needs) -> list[Tensor]:
    _, results, saved = _run(form, tensors, ints, floats, texts, layout, needs)
    known = [*tensors, *results]
    more = [x for x in saved if x is not None and _place(x, known) is None]
    return _own([*results, *(more if any(needs) else [])], tensors)


def _in_place(first, second, form, tensors, ints, floats, texts, layout, needs) -> Tensor:
    _, (result,), _ = _run(form, tensors, ints, floats, texts, layout, needs, (first, second))
    return result


def _setup(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    """Save what the form saves: arguments, results, and what else it returned for that."""
    form, tensors, *lists, layout, needs = inputs
    with without_launches():
        context, results, saved = _run(*inputs)
    known, more = [*tensors, *results], iter(output[len(results) :])
    there = [*tensors, *output[: len(results)]]
    kept = []
    for x in saved:
        place = _place(x, known)
        kept.append(None if x is None else next(more) if place is None else there[place])
    ctx.save_for_backward(*kept)
    ctx.form, ctx.kept, ctx.layout, ctx.needs = form, context.kept(), layout, list(needs)
    ctx.blank = [(x.shape, x.dtype, x.device) for x in output[: len(results)]] if context.fills else None
    ctx.results, ctx.empty = len(results), [not values for values in lists]


def _gradients(ctx: Any, given: list[Tensor | None]) -> tuple[Any, ...]:
    gradients = list(given[: ctx.results])
    if ctx.blank is not None:
        gradients = [
            torch.zeros(shape, dtype=dtype, device=device) if x is None else x
            for x, (shape, dtype, device) in zip(gradients, ctx.blank, strict=True)
        ]
    found = torch.ops.archzoo.triton_backward(
        ctx.form, list(ctx.saved_tensors), gradients, ctx.kept, ctx.layout, ctx.needs
    )
    returned = iter(found)
    of_tensors = [next(returned) if need else None for need in ctx.needs]
    # PyTorch takes an empty list for one of tensors, and wants as many gradients.
    of_lists = [[] if empty else None for empty in ctx.empty]
    return None, of_tensors, *of_lists, None, None


def _backward(form, saved, gradients, kept, layout, needs) -> list[Tensor]:
    """The gradients of the tensors that need one; empty where the form has none."""
    kinds, _, returned = layout.partition(">")
    left = iter(gradients)
    found = _FORMS[form].backward(
        _Context(needs, saved, **json.loads(kept)),
        *(next(left) if there == "t" else None for there in returned),
    )
    found = (found,) if isinstance(found, Tensor) else found
    found = [x for x, kind in zip(found, kinds, strict=True) if kind == "t"]
    device = next(x for x in [*gradients, *saved] if x is not None).device
    wanted = [
        torch.empty(0, device=device) if x is None else x
        for x, need in zip(found, needs, strict=True)
        if need
    ]
    return _own(wanted, [*saved, *gradients])


def _fake(run: Callable[..., list[Tensor]]) -> Callable[..., list[Tensor]]:
    def sizes(*args: Any) -> list[Tensor]:
        with without_launches():
            return run(*args)

    return sizes


for _name, _function in (
    ("triton_forward", _forward),
    ("triton_in_place", _in_place),
    ("triton_backward", _backward),
):
    _library.impl(_name, _function, "CompositeExplicitAutograd")
    torch.library.register_fake(f"archzoo::{_name}", _fake(_function), lib=_library)
torch.library.register_autograd("archzoo::triton_forward", _gradients, setup_context=_setup, lib=_library)
