"""One kernel on several threads: Numba's code runs without Python's lock."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch


def in_parts(work: Callable[[int, int], None], sequences: int) -> None:
    """Call work(sequence, part) for `parts_of` parts of every sequence, on as many threads as PyTorch may use.

    Parts write to places of their own, so that results do not depend on which of them is first. Raises what any raises.
    """
    parts = [(b, part) for b in range(sequences) for part in range(parts_of(sequences))]
    threads = min(len(parts), torch.get_num_threads())
    if threads <= 1:
        for b, part in parts:
            work(b, part)
        return
    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(work, b, part) for b, part in parts]:
            done.result()


def parts_of(sequences: int) -> int:
    """How many parts each of so many sequences has, so that every thread has one."""
    return math.ceil(torch.get_num_threads() / max(1, sequences))
