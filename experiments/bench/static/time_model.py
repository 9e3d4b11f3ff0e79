"""Milliseconds of a kernel by its counts: a model, not a measurement.

    t = √(memory² + tensor² + issue² + shared² + special²) + launch

    memory   bytes / bandwidth
    tensor   FLOPs of products / rate of the instruction that the compiler chose and of the type
    issue    the longer of: all warps' instructions at the rate that so many warps a scheduler reach;
             one program's instructions one after the other, with the wait of every step, times the waves
    shared   shuffles and accesses of shared, global and spilled memory, through the one pipe they share
    special  exponentials, logarithms, roots

Left out: latency of memory that is not hidden, caches that miss, bank conflicts, imbalance between programs but for the
longest, contention of the parts beyond the root of squares. `CONSTANTS` has every number that is not a GPU's size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from experiments.bench.memory_traffic import PEAKS
from experiments.bench.static.gpus import Gpu
from experiments.bench.static.launch_traffic import Product

CONSTANTS = {
    "memory share": (0.875, "of the data sheet's bandwidth; large copies reach it"),
    "tensor share": (0.657, "of the data sheet's dense bf16 rate, by products of 64 rows and more (wgmma)"),
    "small tiles": (
        0.55,
        "of that, by products of fewer rows, batched ones, and on GPUs without wgmma (mma.sync)",
    ),
    "issue limit": (0.8, "instructions a cycle and scheduler, at most"),
    "issue per warp": (
        0.3,
        "x in 1 − exp(−x·warps): how issue grows with warps a scheduler; 0.26 of a cycle with one",
    ),
    "lone warp": (0.33, "instructions a cycle of one program's warps, each waiting for its own results"),
    "step wait": (600.0, "cycles that nothing hides of a step with products: barriers, their results, loads"),
    "shuffle": (1.0, "cycles of a multiprocessor's pipe a warp: 32 lanes a cycle (programming guide)"),
    "access": (2.0, "the same of an access of shared, global or spilled memory"),
    "special": (
        8.0,
        "cycles of a scheduler a warp: 16 results a cycle and multiprocessor (programming guide)",
    ),
    "launch": (4e-6, "seconds of a launch, or of an operator between launches"),
}
"""Name -> value, and what it is. Without a source in brackets: taken so that fla's KDA forward on an H20 comes near."""

RATIO_ERROR = 0.3
ERROR = (
    "ratios good to ±30 %, times about a quarter too short (fla's KDA forward with an H20's sizes: 3.6 ms against 4.5 "
    "published)"
)

# Of the bf16 rate; the last is fp32 arithmetic without tensor cores.
_RATES = {"tf32": 1 / 2, "tf32x3": 1 / 6, "bf16x3": 1 / 3, "bf16x6": 1 / 6, "ieee": 0.06}
_WGMMA_ROWS = 64


@dataclass(frozen=True)
class Counts:
    """A launch in numbers: of the grid, of what a multiprocessor holds, and of what one warp executes.

    instructions, special, shuffles, accesses: executed by a warp, on average over programs; steps: of loops
    with products, of a program; longest: work of the longest program over the mean; asynchronous: whether there are
    wgmma instructions
    """

    programs: int
    warps: int
    resident: int
    instructions: float
    special: float = 0.0
    shuffles: float = 0.0
    accesses: float = 0.0
    steps: float = 0.0
    longest: float = 1.0
    bytes: float = 0.0
    asynchronous: bool = False
    products: list[Product] = field(default_factory=list)

    @property
    def flops(self) -> float:
        """FLOPs of the products of all programs."""
        return self.programs * sum(product.flops for product in self.products)


def constant(name: str) -> float:
    """Return the value of a fitted constant of the model, by its name in CONSTANTS."""
    return CONSTANTS[name][0]


def parts(counts: Counts, gpu: Gpu) -> dict[str, float]:
    """Seconds of each part of the model. Raises ValueError for a program that no multiprocessor holds."""
    if counts.resident < 1:
        raise ValueError("no multiprocessor holds a program of this kernel")
    warps = counts.programs * counts.warps  # all that run
    pipe = constant("shuffle") * counts.shuffles + constant("access") * counts.accesses
    schedulers = 4 * gpu.multiprocessors * gpu.clock
    return {
        "memory": memory_seconds(counts.bytes, gpu),
        "tensor": _tensor_seconds(counts, gpu),
        "issue": _issue_seconds(counts, gpu),
        "shared": warps * pipe / (gpu.multiprocessors * gpu.clock),
        "special": warps * constant("special") * counts.special / schedulers,
    }


def seconds(counts: Counts, gpu: Gpu) -> float:
    """Seconds of the launch, its own overhead included."""
    return math.hypot(*parts(counts, gpu).values()) + constant("launch")


def memory_seconds(moved: float, gpu: Gpu) -> float:
    """Seconds in which so many bytes come and go."""
    return moved / (constant("memory share") * _peaks(gpu).bytes)


def operator_seconds(moved: float, operators: int, gpu: Gpu) -> float:
    """Seconds of PyTorch's operators between launches, by the bytes of their inputs and outputs."""
    return memory_seconds(moved, gpu) + operators * constant("launch")


def waves(counts: Counts, gpu: Gpu) -> float:
    """Return the number of times that the multiprocessors are filled with programs."""
    return counts.programs / (gpu.multiprocessors * counts.resident)


def _peaks(gpu: Gpu):
    return next(peaks for name, peaks in PEAKS.items() if name in gpu.name)


def _tensor_seconds(counts: Counts, gpu: Gpu) -> float:
    return sum(counts.programs * p.flops / _rate(p, counts, gpu) for p in counts.products)


def _rate(product: Product, counts: Counts, gpu: Gpu) -> float:
    """FLOP/s of a product."""
    rate = constant("tensor share") * _peaks(gpu).half
    if not (counts.asynchronous and product.rows >= _WGMMA_ROWS and not product.batched):
        rate *= constant("small tiles")
    return rate * _RATES.get(product.precision or "ieee", 1.0) if product.dtype == "f32" else rate


def _issue_seconds(counts: Counts, gpu: Gpu) -> float:
    held = min(counts.resident, max(1.0, counts.programs / gpu.multiprocessors))
    a_scheduler = held * counts.warps / 4
    rate = min(constant("issue limit"), 1 - math.exp(-constant("issue per warp") * a_scheduler))
    cycles = counts.programs * counts.warps * counts.instructions / (4 * gpu.multiprocessors * rate)
    alone = counts.instructions / constant("lone warp") + constant("step wait") * counts.steps
    one_after_other = alone * max(counts.longest, math.ceil(waves(counts, gpu)))
    return max(cycles, one_after_other) / gpu.clock
