"""The roofline of a kernel: the least time a GPU needs, the longer of moving its bytes and doing its FLOPs."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from experiments.bench.cases import CASES, matching_names
from experiments.bench.cases.call import Call, Case
from experiments.costs.peak_flops import GPU_PEAKS
from kernels.triton_common.work import Work

META = torch.device("meta")
DRY_LENGTH = 8192
_NAME = max(map(len, CASES)) + 2


@dataclass(frozen=True)
class Peaks:
    """A GPU's limits from its data sheet: bytes a second of memory; FLOP/s of dense bf16 tensor cores and of fp32."""

    bytes: float
    half: float
    single: float


# NVIDIA's data sheets of H200, H100 and A100 80GB, each in the SXM form. Tensor-core numbers there are with sparsity,
# twice the dense ones.
PEAKS = {
    "H200": Peaks(4.8e12, GPU_PEAKS["H200"], 67e12),
    "H100": Peaks(3.35e12, GPU_PEAKS["H100"], 67e12),
    "A100": Peaks(2.039e12, GPU_PEAKS["A100"], 19.5e12),
}


def peaks_of(device: torch.device) -> Peaks | None:
    """The limits of this device; None where it is not in the table."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    return next((peaks for key, peaks in PEAKS.items() if key in name), None)


def milliseconds(work: Work, call: Call, peaks: Peaks) -> float:
    """The least milliseconds of a kernel's work; in half precision tensor cores are taken to do all of it."""
    return 1e3 * max(work.bytes / peaks.bytes, work.flops / _flops(call, peaks))


def _flops(call: Call, peaks: Peaks) -> float:
    first = next(call.tensors())
    return peaks.single if first.dtype == torch.float32 else peaks.half


@dataclass(frozen=True)
class Totals:
    """FLOPs, bytes and least milliseconds of a case in one mode; the last: None for an unknown GPU."""

    flops: float
    bytes: float
    milliseconds: float | None


def totals(calls: list[Call], mode: str, peaks: Peaks | None) -> Totals | None:
    """The work of a case in a mode ("forward", "forward+backward"); None where some call does not count its work."""
    counted = [(call, work) for call in calls for work in call.work() or [None]]
    if any(work is None for _, work in counted):
        return None
    taken = [(call, work) for call, work in counted if work.way in mode.split("+")]
    least = None if peaks is None else sum(milliseconds(work, call, peaks) for call, work in taken)
    return Totals(sum(w.flops for _, w in taken), sum(w.bytes for _, w in taken), least)


def print_work(cases: list[str] | None, lengths: list[int], tokens: int | None, gpu: str = "H200") -> None:
    """Print bytes, FLOPs and roofline time of every kernel of the cases; measures nothing.

    cases: the beginnings of their names, None for all. Raises UserError for one that none has.
    """
    wanted = [CASES[name] for name in matching_names(cases, list(CASES))]
    peaks = PEAKS[gpu]
    print(
        f"{gpu} (data sheet): {peaks.bytes / 1e12:g} TB/s, {peaks.half / 1e12:g} TFLOP/s dense bf16, "
        f"{peaks.single / 1e12:g} TFLOP/s fp32. Every input read once, every output written once."
    )
    head = f"{'case':<{_NAME}}{'B x T':>12}  {'kernel':<28}{'way':<9}{'MB':>12}{'GFLOP':>12}{'roofline us':>12}  bound"
    print(head)
    for case in wanted:
        for length in lengths if case.length is None else [case.length]:
            _print_case(case, length, tokens, peaks)


def _print_case(case: Case, length: int, tokens: int | None, peaks: Peaks) -> None:
    tokens = tokens or case.tokens
    size = f"{max(1, tokens // length)} x {length}"
    for call in case.calls(length, tokens, META, torch.bfloat16):
        for work in call.work() or [None]:
            start = f"{case.name:<{_NAME}}{size:>12}  "
            if work is None:
                print(f"{start}{call.operation:<28}not counted: kernels/ops/{call.operation} has no work.py")
            elif case.backward or work.way == "forward":
                print(start + _counted(work, call, peaks))


def _counted(work: Work, call: Call, peaks: Peaks) -> str:
    bound = "memory" if work.bytes / peaks.bytes > work.flops / _flops(call, peaks) else "arithmetic"
    return (
        f"{work.kernel:<28}{work.way:<9}{work.bytes / 1e6:12.3f}{work.flops / 1e9:12.3f}"
        f"{1e3 * milliseconds(work, call, peaks):12.2f}  {bound}"
    )
