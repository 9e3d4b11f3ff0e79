"""suite=kernels: our Triton kernels against PyTorch's forms and against every peer that is installed, in one process.

Forward and forward+backward of the calls in `cases`, over growing lengths at a fixed number of tokens. `ratio` is the
time of the best peer (named in `peer`; where there is none, of our own PyTorch form) over this row's, `roofline` the
share of what the GPU's memory and arithmetic allow. Rows that are in the table already are not
measured again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from tqdm import tqdm

from experiments.bench import memory_traffic, peers, result_table, timing
from experiments.bench.cases import CASES, Call, Case, matching_names
from experiments.bench.timing import GPU_LENGTHS, Form, forward, forward_backward
from experiments.configuration.schema import Config
from experiments.parallel.group import pick_device
from kernels.triton_common import interpreted

LENGTHS = {"cuda": GPU_LENGTHS, "cpu": [256, 512]}
CPU_TOKENS = 512
SLOW_MS = 1e3
"""A call that takes longer is timed once."""


def run(config: Config) -> list[dict[str, Any]]:
    """All rows of the table, those of earlier runs included."""
    device = pick_device(config.device)
    table = result_table.ResumableTable(config, device)
    for name, reason in peers.unavailable(device).items():
        tqdm.write(f"without {name}: {reason}")
    table.fill(_cells(config, device), config.bench.budget_s, "kernels")
    return table.rows


def finished(config: Config) -> bool:
    """Return whether every cell has its rows."""
    device = pick_device(config.device)
    return not result_table.ResumableTable(config, device).unmeasured(_cells(config, device))


def _cells(config: Config, device: torch.device) -> Iterator[result_table.Cell]:
    b = config.bench
    for name in matching_names(b.cases, list(CASES)):
        case = CASES[name]
        for length in [case.length] if case.length else b.lengths or LENGTHS[device.type]:
            tokens = b.tokens or (case.tokens if device.type == "cuda" else CPU_TOKENS)
            batch = max(1, tokens // length)
            measure = _Measurement(config, case, length, batch, device)
            yield result_table.Cell({"model": name, "tokens": length, "batch": batch}, measure)


class _Measurement:
    """One case at one length: all its forms, in both modes."""

    def __init__(self, config: Config, case: Case, length: int, batch: int, device: torch.device) -> None:
        self.config, self.case, self.length, self.batch, self.device = config, case, length, batch, device
        self.dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        self.peaks = memory_traffic.peaks_of(device)
        self.rows: list[dict[str, Any]] = []

    def __call__(self) -> list[dict[str, Any]]:
        torch.manual_seed(self.config.seed)
        try:
            calls = self.case.calls(self.length, self.batch * self.length, self.device, self.dtype)
        except torch.OutOfMemoryError:
            self._add_note("", "", "out of memory: the inputs alone do not fit")
            return self.rows
        forms = dict(self._forms(calls))
        able = self._measure("forward", forms, calls, forward)
        if self.case.backward:
            self._measure("forward+backward", {name: forms[name] for name in able}, calls, forward_backward)
        del calls, forms
        timing.free_memory(self.device)
        return self.rows

    def _forms(self, calls: list[Call]) -> Iterator[tuple[str, Form]]:
        for backend in dict.fromkeys(("triton", *calls[0].registry.backends)):
            reason = self._reason_to_skip(backend, calls)
            if reason is None:
                yield backend, lambda b=backend: [call.run(b) for call in calls]
            elif backend == "triton":
                self._add_note(backend, "", reason)
        yield from peers.peers_of(self.case.name, calls, self.device)

    def _reason_to_skip(self, backend: str, calls: list[Call]) -> str | None:
        """The reason to skip a backend; None to time it."""
        missing = [call.operation for call in calls if backend not in call.registry.backends]
        if missing:
            return f"no {backend.capitalize()} form of {', '.join(missing)}"
        if backend == "triton" and interpreted() and self.device.type != "cuda":
            return "interpreted: no time to speak of"
        if backend == "torch" and self.length > self.case.torch_limit:
            return "too long"
        return "a definition, not meant to be fast" if backend == "reference" else None

    def _measure(self, mode: str, forms: dict[str, Form], calls: list[Call], work: Callable) -> list[str]:
        """Time forms against each other; returns the names of those that ran."""
        leaves = [x for call in calls for x in call.tensors() if x.requires_grad]
        runs = {name: (lambda f=form: work(f, leaves)) for name, form in forms.items()}
        if mode != "forward":  # a copy has no backward
            runs = {name: run for name, run in runs.items() if name not in peers.UPPER_BOUNDS}
        once = {name: self._time_once(name, mode, run) for name, run in runs.items()}
        timed = {name: [time] for name, time in once.items() if time is not None}
        quick = {name: runs[name] for name, (time,) in timed.items() if time < SLOW_MS}
        repeats = self.config.bench.repeats
        timed |= timing.interleaved(quick, repeats, self.device, warm_up=0, clock=timing.on_device)
        medians = {name: timing.summary(times)["milliseconds_median"] for name, times in timed.items()}
        best = self._best(medians, calls)
        total = memory_traffic.totals(self.case.calls(*self._meta), mode, self.peaks)
        for name, times in timed.items():
            self._row(name, mode, times, best, total, timing.peak_memory(runs[name], self.device))
        return list(timed)

    @property
    def _meta(self) -> tuple[int, int, torch.device, torch.dtype]:
        return self.length, self.batch * self.length, memory_traffic.META, self.dtype

    def _time_once(self, name: str, mode: str, run: Callable[[], object]) -> float | None:
        """Milliseconds of a second call, the first having compiled; None where it fails, with a note in the table."""
        try:
            run()
            return timing.on_device(run, self.device)
        except torch.OutOfMemoryError:
            self._add_note(name, mode, "out of memory")
        except Exception as error:  # whatever a library raises: one that fails is a row, and the others go on
            self._add_note(name, mode, result_table.failure_reason(error))
            if result_table.is_fatal(error):
                raise result_table.Crashed(f"{self.case.name}, {name}: {error}", self.rows) from error
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        return None

    def _best(self, medians: dict[str, float], calls: list[Call]) -> tuple[str, float] | None:
        """The fastest of the peers, else our PyTorch form."""
        ours = {backend for call in calls for backend in call.registry.backends}
        others = {name: ms for name, ms in medians.items() if name not in ours | peers.UPPER_BOUNDS}
        others = others or {name: ms for name, ms in medians.items() if name == "torch"}
        return min(others.items(), key=lambda pair: pair[1], default=None)

    def _row(self, name: str, mode: str, milliseconds, best, total, memory) -> None:
        row = result_table.row("kernels", self.case.name, milliseconds, best[1] if best else 0.0, self.device)
        row |= {"backend": name, "mode": mode, **self._size, "peak_memory_bytes": memory}
        row |= {"peer": best[0]} if best else {"ratio": ""}
        if total is not None:
            row |= {"flops": total.flops, "bytes": total.bytes}
        if total is not None and total.milliseconds is not None:
            share = total.milliseconds / row["milliseconds_median"]
            row |= {"roofline_milliseconds": total.milliseconds, "roofline": share}
        self._add(row)

    def _add_note(self, name: str, mode: str, note: str) -> None:
        more = {"backend": name, "mode": mode, **self._size}
        self._add(result_table.note_row("kernels", self.case.name, note, self.device, **more))

    @property
    def _size(self) -> dict[str, Any]:
        precision = str(self.dtype).removeprefix("torch.")
        return {"precision": precision, "tokens": self.length, "batch": self.batch}

    def _add(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        tqdm.write(result_table.format_row(row))
