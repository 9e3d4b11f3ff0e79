"""Rows of a table of kernels: a row for every kernel and configuration, of all its launches in one pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from experiments.bench.static import sass, time_model
from experiments.bench.static.capture import Attempt, Launch
from experiments.bench.static.counts import instruction_counts
from experiments.bench.static.gpus import Gpu, programs_resident
from experiments.bench.static.launch_traffic import moved_bytes, products
from experiments.bench.static.specialization import LAUNCH_OPTIONS

COLUMNS = (
    *("kernel", "constants", "configuration", "chosen", "launches", "grid", "programs", "warps", "stages"),
    *(
        "registers",
        "stack_bytes",
        "shared_bytes",
        "resident",
        "waves",
        "instructions",
        "loops",
        "serial_steps",
    ),
    *("wgmma", "mma_sync", "shuffles", "shared_accesses", "global_accesses", "spills", "special"),
    *("bytes_read", "bytes_written", "bytes_by_argument", "flops", "modelled_milliseconds", "bound"),
    *("memory_ms", "tensor_ms", "issue_ms", "shared_ms", "special_ms", "unknown_loops", "error"),
)
"""instructions to special: executed by a warp, on average over programs; serial_steps: of a program's loops with
products of matrices."""

_EXECUTED = {
    "instructions": "instructions",
    "wgmma": "tensor_async",
    "mma_sync": "tensor_sync",
    "shuffles": "shuffles",
    "shared_accesses": "shared",
    "global_accesses": "global",
    "spills": "spills",
    "special": "special",
}
"""Column -> class of `counts`."""


@dataclass(frozen=True)
class _Counted:
    """One attempt in numbers; seconds: None for one that cannot run."""

    attempt: Attempt
    counts: time_model.Counts | None
    executed: dict[str, float]
    loops: list[tuple[int, float]]
    arguments: Counter[str]
    seconds: float | None
    parts: dict[str, float]


def rows(launches: Iterable[Launch], gpu: Gpu) -> list[dict[str, Any]]:
    """Return a row for every kernel, set of constants and configuration; `chosen` marks the fastest by the model."""
    groups: dict[tuple[str, str], dict[str, list[_Counted]]] = {}
    for launch in launches:
        for attempt in launch.attempts:
            constants = {k: x for k, x in attempt.launch.constants.items() if k not in attempt.configuration}
            configurations = groups.setdefault((launch.kernel, _text(constants)), {})
            configurations.setdefault(_text(attempt.configuration), []).append(_count(attempt, gpu))
    found = []
    for (kernel, constants), configurations in groups.items():
        of_kernel = [_row(counted, gpu) for counted in configurations.values()]
        best = min((row["modelled_milliseconds"] for row in of_kernel if not row["error"]), default=None)
        for counted, row in zip(configurations.values(), of_kernel, strict=True):
            chosen = best is not None and row["modelled_milliseconds"] == best
            best = None if chosen else best  # of two alike the first
            tiles = {k: x for k, x in counted[0].attempt.configuration.items() if k not in LAUNCH_OPTIONS}
            named = {
                "kernel": kernel,
                "constants": constants,
                "configuration": _text(tiles),
                "chosen": int(chosen),
            }
            found.append({**named, **row})
    return found


def _text(values: dict[str, Any]) -> str:
    return " ".join(f"{name}={x}" for name, x in values.items())


def _count(attempt: Attempt, gpu: Gpu) -> _Counted:
    made, executions = attempt.compiled, attempt.executions
    if executions is None or not made.machine:
        return _Counted(attempt, None, {}, [], Counter(), None, {})
    executed, loops = instruction_counts(sass.parse(made.machine), executions)
    read, written = moved_bytes(executions, attempt.launch.values, attempt.programs)
    arguments = Counter({f"{name} read": count for name, count in read.items()})
    arguments.update({f"{name} written": count for name, count in written.items()})
    counts = time_model.Counts(
        attempt.programs,
        made.warps,
        programs_resident(gpu, made.registers, made.shared, made.warps),
        executed["instructions"],
        executed["special"],
        executed["shuffles"],
        executed["shared"] + executed["global"] + executed["spills"],
        executions.steps,
        executions.longest,
        arguments.total(),
        executed["tensor_async"] > 0,
        products(executions),
    )
    if made.error:
        return _Counted(attempt, counts, executed, loops, arguments, None, {})
    return _Counted(
        attempt,
        counts,
        executed,
        loops,
        arguments,
        time_model.seconds(counts, gpu),
        time_model.parts(counts, gpu),
    )


def _row(launched: list[_Counted], gpu: Gpu) -> dict[str, Any]:
    """All launches of a kernel in one configuration: sums, the worst of resources, averages by programs."""
    made = [one.attempt.compiled for one in launched]
    errors = {one.error for one in made if one.error}
    row: dict[str, Any] = {
        "launches": len(launched),
        "grid": "x".join(map(str, launched[0].attempt.grid)),
        "programs": sum(one.attempt.programs for one in launched),
        "warps": made[0].warps,
        "stages": made[0].stages,
        "error": "; ".join(sorted(errors)),
    }
    counted = [one for one in launched if one.counts is not None]
    if len(counted) < len(launched):
        return row
    arguments = sum((one.arguments for one in counted), Counter())
    row |= {
        "registers": max(one.registers for one in made),
        "stack_bytes": max(one.stack for one in made),
        "shared_bytes": max(one.shared for one in made),
        "resident": min(one.counts.resident for one in counted),
        "loops": " ".join(f"{size}x{times:.4g}" for size, times in counted[0].loops),
        "serial_steps": max(one.counts.steps * one.counts.longest for one in counted),
        "bytes_read": sum(count for name, count in arguments.items() if name.endswith(" read")),
        "bytes_written": sum(count for name, count in arguments.items() if name.endswith(" written")),
        "bytes_by_argument": "; ".join(f"{name} {count}" for name, count in arguments.items()),
        "flops": sum(one.counts.flops for one in counted),
        "unknown_loops": max(len(one.attempt.executions.unknown) for one in counted),
    }
    for column, which in _EXECUTED.items():
        row[column] = sum(one.executed[which] * one.attempt.programs for one in counted) / max(
            1, row["programs"]
        )
    if errors:
        return row
    row["waves"] = sum(time_model.waves(one.counts, gpu) for one in counted)
    row["modelled_milliseconds"] = 1e3 * sum(one.seconds for one in counted)
    for name in counted[0].parts:
        row[f"{name}_ms"] = 1e3 * sum(one.parts[name] for one in counted)
    row["bound"] = max(counted[0].parts, key=lambda name: row[f"{name}_ms"])
    return row
