"""The costs of a model, counted without storage: FLOPs a token, bytes of decode state and of tensors; a run's MFU."""

from __future__ import annotations

import contextlib
import functools
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import psutil
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from experiments.costs.peak_flops import utilisation
from zoo import cost
from zoo.errors import UserError
from zoo.model import LanguageModel, on_meta

STATE_LENGTHS = (1024, 8192, 131_072)
"""Tokens after which the decode state is counted, beside data.seq_len."""


@dataclass(frozen=True)
class Costs:
    """FLOPs a token at data.seq_len, forward in evaluation and forward and backward in training; decode-state bytes.

    state_bytes: number of tokens -> bytes of the state of one sequence, in fp32.
    """

    forward_flops: float
    training_flops: float
    state_bytes: dict[int, int]


def derive_costs(model: LanguageModel, length: int) -> Costs:
    """The costs of a model without storage (`meta_model`) in sequences of `length` tokens."""
    return Costs(
        forward_flops=cost.flops_per_token(model, length),
        training_flops=cost.flops_per_token(model, length, backward=True),
        state_bytes={tokens: cost.state_bytes(model, tokens) for tokens in sorted({length, *STATE_LENGTHS})},
    )


@dataclass
class Utilisation:
    """The MFU of a run at rates in tokens a second; None where it is above 1.

    flops: returns the FLOPs of a token in training; peak: returns the peak of its devices together, FLOP/s. Both are
    asked for once, when the first rate is given: training need not wait for them. seconds: what finding them took.
    """

    flops: Callable[[], float]
    peak: Callable[[], float]
    seconds: float = 0.0
    _found: tuple[float, float] | None = None

    def __call__(self, rate: float) -> float | None:
        if self._found is None:
            began = time.perf_counter()
            self._found = self.flops(), self.peak()
            self.seconds = time.perf_counter() - began
        flops, peak = self._found
        return utilisation(rate * flops, peak)


# Whether decode states fit into memory, checked before they are made: a system without memory kills programs.

GIB = 2**30


def check_decode_memory(model: LanguageModel, batches: Iterable[Sequence[int]], remedy: str) -> None:
    """Raise UserError where the decode states of a batch take more memory than is free.

    batches: the lengths of the sequences of every batch, of which one is decoded after the other.
    """
    described = on_meta(model.config, vocab_size=model.vocab_size, seq_len=model.seq_len)
    free = _free_memory(model.embedding.weight.device)
    state_bytes = functools.cache(lambda length: cost.state_bytes(described, length))
    for lengths in batches:
        needed = sum(map(state_bytes, lengths))
        if needed > free:
            raise UserError(
                f"the decode state of {max(lengths):,} tokens ({len(lengths)} at once) takes {needed / GIB:.1f} GiB, "
                f"and {free / GIB:.1f} GiB of memory are free; {remedy}"
            )


@contextlib.contextmanager
def explaining_memory(remedy: str) -> Iterator[None]:
    """While inside, an allocation that fails raises UserError."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        # On CPUs PyTorch raises a bare RuntimeError.
        if not isinstance(error, MemoryError | torch.OutOfMemoryError) and "allocate memory" not in str(
            error
        ):
            raise
        raise UserError(f"there is not enough memory ({str(error).splitlines()[0]}); {remedy}") from error


def _free_memory(device: torch.device) -> int:
    """Bytes that can still be taken; on a GPU those too that PyTorch keeps for the next tensors."""
    if device.type == "cuda":
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + kept
    return psutil.virtual_memory().available


# FLOPs a token at long lengths, with bounded work.
#
# A model on the meta device is counted operator by operator, and a Python loop over tokens takes as many steps as it
# has. Where a length takes too many operators, shorter ones are counted, doubling, until the totals of the last four
# lie on a polynomial of degree two in the length, or the budget is used up; it is extrapolated. Work a token that is
# constant or grows with the context is such a polynomial. A block whose growth changes at greater lengths goes
# undetected, so extrapolated numbers are marked. The budget is in operators, not seconds: a busy machine prints the
# same table as a quiet one.

OPERATORS = 50_000
"""Operators that one direct count may take: a few seconds, four times the need of a preset of reference size."""
SHORTEST = 32
TOLERANCE = 1e-9
"""Relative error of a prediction that counts as exact: totals are integers up to 2^53 in floating point."""


@dataclass(frozen=True)
class FlopCount:
    """FLOPs a token; counted_to: the longest length that was counted, below the one asked for if it is extrapolated."""

    per_token: float
    counted_to: int


def count_flops(
    model: LanguageModel, length: int, *, backward: bool = False, budget: int = OPERATORS
) -> FlopCount:
    """FLOPs a token at `length`, forward, or forward and backward; extrapolated where it takes over `budget` operators.

    Raises ValueError where a kernel refuses the call.
    """

    def total(tokens: int) -> float:
        return tokens * cost.flops_per_token(model, tokens, backward=backward)

    try:
        with _Operators(budget):
            return FlopCount(total(length) / length, length)
    except _TooMany:
        with _Operators() as operators:
            return _extrapolate(total, length, lambda: operators.count > budget / 2)


def _extrapolate(total: Callable[[int], float], length: int, enough: Callable[[], bool]) -> FlopCount:
    """From doubling lengths, once `enough` work is done and they agree; where none do, the direct count after all."""
    lengths, totals = [], []
    tokens = SHORTEST
    while tokens < length:
        lengths, totals = [*lengths[-3:], tokens], [*totals[-3:], total(tokens)]
        if (
            len(lengths) == 4
            and enough()
            and _is_exact(_quadratic(lengths[:3], totals[:3], tokens), totals[3])
        ):
            return FlopCount(_quadratic(lengths[1:], totals[1:], length) / length, tokens)
        tokens *= 2
    return FlopCount(total(length) / length, length)


def _quadratic(lengths: list[int], totals: list[float], at: int) -> float:
    """Lagrange's polynomial through three points, at another length."""
    value = 0.0
    for i, here in enumerate(lengths):
        others = [x for j, x in enumerate(lengths) if j != i]
        value += totals[i] * (at - others[0]) * (at - others[1]) / ((here - others[0]) * (here - others[1]))
    return value


def _is_exact(predicted: float, counted: float) -> bool:
    return abs(predicted - counted) <= TOLERANCE * counted


class _TooMany(Exception):
    """The budget of a count is used up."""


class _Operators(TorchDispatchMode):
    """Counts the operators that run inside it. Raises _TooMany at the first one over the budget, if there is one."""

    def __init__(self, budget: int | None = None) -> None:
        super().__init__()
        self.budget, self.count = budget, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += 1
        if self.budget is not None and self.count > self.budget:
            raise _TooMany
        return function(*args, **(kwargs or {}))


# The most bytes of tensors alive at once, counted by storage as operators make them; on devices and without any.


class LiveBytes(TorchDispatchMode):
    """live, peak: bytes of the storages that operators made inside, now and at most.

    Storages that an operator was given are not its results: views and results written in place add nothing.
    """

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        given = {_address(x) for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)}
        result = function(*args, **(kwargs or {}))
        for x in tree_leaves(result):
            if isinstance(x, Tensor) and _address(x) not in given | self._known:
                self._add(x)
        return result

    def _add(self, x: Tensor) -> None:
        storage, address = x.untyped_storage(), _address(x)
        self._known.add(address)
        self.live += storage.nbytes()
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._drop, address, storage.nbytes())

    def _drop(self, address: int, size: int) -> None:
        self._known.discard(address)
        self.live -= size


def _address(x: Tensor) -> int:
    return x.untyped_storage()._cdata
