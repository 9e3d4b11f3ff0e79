"""Bytes that operators save, read and write, and the roofline: the least time that a GPU needs for a kernel."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from experiments.bench.cases import CASES, Call, Case, matching_names
from experiments.bench.timing import MODES, Form
from experiments.costs.peak_flops import GPU_PEAKS
from kernels.triton_common.tiles import Work

# Bytes that a forward pass saves for its backward.


def saved_bytes(forward: Callable[[], Any]) -> int:
    """Bytes of all tensors made by `forward` that are alive while its result is: the result, and what autograd saved.

    Counted by storage, on any device; nested hooks on saved tensors would miss tensors that the others pack.
    """
    with _StoragesMade() as made:
        result = forward()
    gc.collect()
    saved = sum(size for storage, size in made.storages.values() if not storage.expired())
    del result
    return saved


class _StoragesMade(TorchDispatchMode):
    """Records every storage that operators return, without keeping it alive."""

    def __init__(self) -> None:
        super().__init__()
        self.storages: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        # Views of existing tensors and results written in place have no storage of their own.
        before = {_address(x) for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)}
        result = function(*args, **(kwargs or {}))
        for x in tree_leaves(result):
            if isinstance(x, Tensor) and _address(x) not in before:
                storage = x.untyped_storage()
                self.storages[len(self.storages)] = StorageWeakRef(storage), storage.nbytes()
        return result


def _address(x: Tensor) -> int:
    return torch.Tensor.untyped_storage(x)._cdata


# Bytes of main memory that operators read and write if each is a kernel of its own.

NOT_COUNTED = ("empty", "ones_like")
"""Memory that is only taken, and the gradients of ones with which a backward pass begins."""


class OperatorBytes(TorchDispatchMode):
    """Counts in `total`, while it is entered, every operator's inputs and outputs, each once; views move nothing.

    What an operator moves inside (a softmax that reads its input twice, say) is not counted: it is a lower bound. Of an
    expanded tensor only what is stored counts.
    """

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not func.is_view and not any(name in func.__name__ for name in NOT_COUNTED):
            read = {id(x): x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)}
            written = [x for x in tree_leaves(out) if isinstance(x, Tensor)]
            self.total += sum(map(stored_bytes, [*read.values(), *written]))
        return out


def bytes_of(form: Form, leaves: list[Tensor], mode: str) -> int:
    """The bytes of a form's operators in a mode of `timing.MODES`."""
    with OperatorBytes() as counted:
        MODES[mode](form, leaves)
    return counted.total


def stored_bytes(x: Tensor) -> int:
    """The bytes of a tensor; of an expanded one only what is stored."""
    return min(x.numel() * x.element_size(), x.untyped_storage().nbytes())


# The roofline: the longer of moving a kernel's bytes and doing its FLOPs.

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
                print(f"{start}{call.operation:<28}not counted: the operation counts no work")
            elif case.backward or work.way == "forward":
                print(start + _counted(work, call, peaks))


def _counted(work: Work, call: Call, peaks: Peaks) -> str:
    bound = "memory" if work.bytes / peaks.bytes > work.flops / _flops(call, peaks) else "arithmetic"
    return (
        f"{work.kernel:<28}{work.way:<9}{work.bytes / 1e6:12.3f}{work.flops / 1e9:12.3f}"
        f"{1e3 * milliseconds(work, call, peaks):12.2f}  {bound}"
    )
