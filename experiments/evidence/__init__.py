"""Measurements behind the ledger of claims that need no training: identities, counts and short timings on a CPU.

A file in this folder registers functions by the claim's number (its row in the ledger, see analysis/evidence):

    @measure(1)
    def cayley() -> Iterator[Number]:
        yield bounded("error of QᵀQ = I", error, 1e-12)

Every file is found by itself. analysis/evidence/claims decides what a number means for a claim, from it alone.
"""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch
from tqdm import tqdm

from experiments.bench.result_table import machine_facts
from experiments.bench.timing import CPU
from experiments.evidence.numbers import Number
from experiments.system import machine

Measurement = Callable[[], Iterator[Number]]

_registered: dict[int, list[Measurement]] = {}


def measure(claim: int) -> Callable[[Measurement], Measurement]:
    """Register a function that measures numbers for a claim."""

    def register(function: Measurement) -> Measurement:
        _registered.setdefault(claim, []).append(function)
        return function

    return register


def measure_claims(claims: Collection[int], threads: int = 1, progress: bool = True) -> list[dict[str, Any]]:
    """Measure what there is to measure for these claims: a row a number, with claim, machine, commit and load.

    load: processes that wanted a core just before, over the number of cores; times beside other work say so by it.
    """
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    torch.set_num_threads(threads)
    work = [(claim, each) for claim in sorted(claims) for each in _registered.get(claim, ())]
    rows = []
    for claim, each in tqdm(work, desc="claims", unit="measurement", disable=not progress):
        facts = {"claim": claim, "load": machine.load(), **machine_facts(CPU)}
        torch.manual_seed(0)  # each measurement draws the same numbers whichever others are asked for
        rows += [{**facts, **dataclasses.asdict(number)} for number in each()]
    return rows
