"""Peak memory of a forward and backward pass of every mixer on a CPU."""

from __future__ import annotations

import multiprocessing as mp
from multiprocessing.connection import Connection
from typing import Any

import torch
from tqdm import tqdm

from experiments.bench import result_table
from experiments.bench.suites.cpu import lengths
from experiments.bench.timing import CPU
from experiments.system import machine
from zoo import registry

WARM_UP = 256
"""Tokens of a first pass, which loads code and makes buffers that every pass needs."""


def run(length: int, threads: int) -> list[dict[str, Any]]:
    """A row a mixer: peak_memory_bytes beyond those of the process before the pass; batch 1, 4 heads of 64."""
    rows = []
    for block in tqdm(registry.blocks("mixer").values(), desc="memory", unit="mixer"):
        peak = peak_memory_of(block.letter, length, threads=threads)
        row = {
            "suite": "memory",
            "model": block.name,
            "backend": "auto",
            "mode": "forward+backward",
            "batch": 1,
        }
        rows.append(
            {
                **row,
                "precision": "float32",
                "tokens": length,
                "peak_memory_bytes": peak,
                **result_table.machine_facts(CPU),
            }
        )
        tqdm.write(f"{length:>7} tokens  {block.name:<22} {peak / 2**20:8.0f} MiB")
    return rows


def peak_memory_of(
    letter: str, length: int, *, threads: int = 1, configured: int | None = None, **size: int
) -> int:
    """Peak bytes of one pass of a mixer; configured: the length it is made for, if not this one.

    The peak memory of a process never decreases, so that each pass runs in a process of its own. Raises
    RuntimeError where that one ends without a result.
    """
    context = mp.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(
        target=_measure, args=(there, letter, length, configured or length, threads, size)
    )
    process.start()
    there.close()
    try:
        return here.recv()
    except EOFError:
        process.join()
        raise RuntimeError(
            f"measuring the memory of mixer {letter} ended with status {process.exitcode}"
        ) from None
    finally:
        process.join()


def _measure(
    channel: Connection, letter: str, length: int, configured: int, threads: int, size: dict[str, int]
) -> None:
    torch.set_num_threads(threads)
    width = {"d_model": size["d_model"]} if size else {}
    mixer = lengths.mixer(letter, configured, **size)
    lengths.forward_backward(mixer, *lengths.inputs(min(WARM_UP, length), **width))
    x, context = lengths.inputs(length, **width)
    before = machine.peak_memory(CPU)
    lengths.forward_backward(mixer, x, context)
    channel.send(machine.peak_memory(CPU) - before)
