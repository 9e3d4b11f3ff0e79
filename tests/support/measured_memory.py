"""The most bytes that the CPU allocator had given out at once while small models were trained by two processes."""

import gc
import sys
import tempfile
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from experiments.parallel import group
from experiments.system.torchrun import leave
from support.parallel_runs import CPU, configured, train
from zoo import ModelConfig

MODEL = ModelConfig(d_model=128, n_heads=4, depth=6)
ROWS = 48
TIMES = 5
"""Each case is measured so often, and the least counts: gathered parameters live longer where processes wait for each
other, as on a busy machine.
"""
CASES = {
    "ZeRO-3": {"strategy": "fsdp"},
    "ZeRO-2": {"strategy": "fsdp", "reshard": False},
    "DDP": {"strategy": "ddp"},
    "recomputed": {"strategy": "fsdp", "recompute": "full"},
}


def case(name: str):
    """The configuration of a case: three steps, so that AdamW's moments are there when the last ones run."""
    return configured(MODEL, max_steps=3, devices=2, **CASES[name])


def peak_of(run) -> int:
    """Peak bytes of what `run` allocates up to the last optimiser step's end, by the allocator's own record."""
    gc.collect()  # what an earlier case left would be freed inside, and counted as less
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    events = profiler.profiler.kineto_results.events()
    end = max(x.end_ns() for x in events if x.name().startswith("Optimizer.step"))
    memory = [x for x in events if x.name() == "[memory]" and x.start_ns() <= end]
    changes = sorted((x.start_ns(), i, x.nbytes()) for i, x in enumerate(memory))
    live = peak = 0
    for *_, size in changes:
        live += size
        peak = max(peak, live)
    return peak


def _peak(name: str) -> int:
    with tempfile.TemporaryDirectory() as place:
        return peak_of(lambda: train(case(name), Path(place), rows=ROWS, collect=True))


def main(file: Path) -> None:
    """Train every case in a group of processes; the main one writes the most that any of them had."""
    found = {}
    with group.joined(CPU):
        for name in CASES:
            found[name] = min(max(group.from_all(_peak(name))) for _ in range(TIMES))
        if group.is_main():
            torch.save(found, file)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    leave()
