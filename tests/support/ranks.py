"""Processes of a gloo group on this machine, and what each of them returns."""

import datetime
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from experiments.system.torchrun import leave

STALLED = datetime.timedelta(seconds=300)
"""After which a rank that waits for another one fails: some rank left out an exchange."""


def on_ranks(size: int, function: Callable[..., Any], *args: Any) -> list[Any]:
    """function(*args) in `size` processes, ranks of one group: what each returned, made of tensors and plain values.

    function: importable by name. Raises what a rank raised, once the others are ended.
    """
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_rank, (size, folder, function, args), nprocs=size)
        return [torch.load(Path(folder) / f"{rank}.pt", weights_only=True) for rank in range(size)]


def _rank(rank: int, size: int, folder: str, function: Callable[..., Any], args: tuple) -> None:
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    where = {"init_method": f"file://{folder}/store", "rank": rank, "world_size": size, "timeout": STALLED}
    dist.init_process_group("gloo", **where)
    try:
        torch.save(function(*args), Path(folder) / f"{rank}.pt")
    finally:
        dist.destroy_process_group()
    leave()
