"""One kernel on several threads: Numba's code runs without Python's lock."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch


def in_parts(work: Callable[[int, int], None], parts: int) -> None:
    """Call work(part, parts) for every part, on as many threads as PyTorch may use, and raise what any of them raises.

    Parts write to places of their own, so that results do not depend on which of them is first.
    """
    threads = min(parts, torch.get_num_threads())
    if threads == 1:
        for part in range(parts):
            work(part, parts)
        return
    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(work, part, parts) for part in range(parts)]:
            done.result()
