"""suite=static: ours and installed peers, compiled for a GPU that is not there, counted, and modelled in milliseconds.

A model, not a measurement (`experiments/bench/static`): every kernel of a host call, in all its configurations, becomes
machine code; its instructions by loop, bytes by argument and products give a time, of which the best configuration's
counts. static.csv has a row for every operation, library and way, static_kernels.csv one for every kernel and
configuration. `flops`: of products of matrices; a short convolution has none. `ratio`: a peer's modelled time over
ours, above 1 where ours is faster; ratio_low, ratio_high: with the model's error. Both tables are written as rows come,
and machine code is kept in the cache: the same command goes on where it was stopped. Where there is a GPU,
measured_milliseconds are its times.
"""

from __future__ import annotations

import multiprocessing as mp
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import torch
import triton
from tqdm import tqdm

from experiments.bench import memory_traffic, result_table
from experiments.bench.cases import matching_names
from experiments.bench.result_table import failure_reason, machine_facts
from experiments.bench.static import kernel_rows, time_model
from experiments.bench.static.compared_operations import LENGTH, OPERATIONS, OURS, EmptyInputs, version
from experiments.bench.static.gpu_times import measure_times
from experiments.bench.static.gpus import GPUS
from experiments.bench.static.operation_counts import WAYS, account
from experiments.bench.static.tools import check_tools
from experiments.configuration.schema import Config
from experiments.data.cache import cache_root
from experiments.runs import RunFailed
from experiments.system import signals
from kernels.triton_common import interpreted
from zoo.errors import UserError, unknown

KIND = "model, not measured"
_NAMED = ("suite", "kind", "model", "backend", "mode", "target", "tokens", "batch", "precision")
_FACTS = ("compiler", "version", "machine", "torch", "commit")
COLUMNS = (
    *_NAMED,
    *("launches", "operators", "bytes", "operator_bytes", "flops", "stack_bytes", "modelled_milliseconds"),
    *("operator_milliseconds", "roofline_milliseconds", "peer", "ratio", "ratio_low", "ratio_high"),
    *("measured_milliseconds", "unknown_loops", "note", "error", *_FACTS),
)
KERNEL_COLUMNS = (*_NAMED, *kernel_rows.COLUMNS, *_FACTS)
Rows = list[dict[str, Any]]


def run(config: Config) -> Rows:
    """A row for every operation, library and way; writes the table of kernels. Raises UserError without a compiler."""
    if interpreted():
        raise UserError("suite=static needs the compiler: unset TRITON_INTERPRET")
    if config.bench.target not in GPUS:
        raise unknown("bench.target", config.bench.target, list(GPUS))
    check_tools()
    names = matching_names(config.bench.cases, list(OPERATIONS))
    for peer in sorted({peer for name in names for peer in OPERATIONS[name].missing}):
        tqdm.write(f"without {peer}: it is not installed (pip install -e '.[peers]'); ours alone is counted")
    rows, kernels = [], []
    for task, (of_operation, of_kernels) in _outcomes(config, names):
        facts = _facts(config, *task)
        rows += [{**facts, **row} for row in of_operation]
        kernels += [{**facts, **row} for row in of_kernels]
        _compare(rows)
        _save(config, names, rows, kernels)
    _measure(config, rows)
    for row in rows:
        tqdm.write(_line(row))
    print(f"{KIND}: {time_model.ERROR}")
    return rows


def _save(config: Config, names: list[str], rows: Rows, kernels: Rows) -> None:
    """Write both tables with what there is so far, in the order of names: a suite that is stopped keeps it."""
    path = result_table.table_path(config)
    tables = (rows, path, COLUMNS), (kernels, path.with_name(f"{path.stem}_kernels.csv"), KERNEL_COLUMNS)
    for table, place, columns in tables:
        table.sort(
            key=lambda row: (
                names.index(row["model"]),
                row["tokens"],
                row["backend"] != OURS,
                WAYS.index(row["mode"]),
            )
        )
        result_table.save(table, place, columns)


def _outcomes(config: Config, names: list[str]) -> Iterator[tuple[tuple[str, str, int], tuple[Rows, Rows]]]:
    """Operation, library and tokens; rows of both tables: as they are done, each in a process of its own."""
    tasks = _tasks(config.bench.lengths or [LENGTH], names)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"  # before the workers import torch
    options = {"mp_context": mp.get_context("spawn"), "max_tasks_per_child": 1}
    pool = ProcessPoolExecutor(min(config.sweep.workers, len(tasks)), **options)
    try:
        with signals.blocked():
            place = cache_root(config.data)
            waiting = {pool.submit(_account, *task, config.bench.target, place): task for task in tasks}
        progress = tqdm(total=len(tasks), desc="static", disable=not config.trainer.progress)
        for future in as_completed(waiting):
            try:
                yield waiting[future], future.result()
            except BrokenProcessPool as error:
                raise RunFailed(
                    "a worker was killed, for memory perhaps; the same command goes on"
                ) from error
            progress.update()
        progress.close()
    finally:
        pool.shutdown(cancel_futures=True)


def _tasks(lengths: list[int], names: list[str]) -> list[tuple[str, str, int]]:
    """Operation, library and tokens, what takes long first: peers have more configurations."""
    sizes = dict.fromkeys((name, OPERATIONS[name].length or length) for length in lengths for name in names)
    tasks = [(name, library, length) for name, length in sizes for library in OPERATIONS[name].libraries]
    return sorted(tasks, key=lambda task: task[1] == OURS)


def _account(name: str, library: str, length: int, target: str, cache: Path) -> tuple[Rows, Rows]:
    """The rows of one library's form; where it cannot be run at all, rows that say why."""
    operation = OPERATIONS[name]
    call, form = operation.form(library, EmptyInputs(length, operation.batch))
    least = {way: memory_traffic.totals([call], way, memory_traffic.PEAKS[target]) for way in operation.ways}
    try:
        rows, kernels = account(call, form, GPUS[target], cache, operation.ways)
    except Exception as error:  # ours or a peer's, whatever it is: the other operations are told all the same
        column = "error" if library == OURS else "note"
        return [{"mode": way, column: failure_reason(error)} for way in operation.ways], []
    for row in rows:
        if library == OURS and least[row["mode"]] is not None:
            row["roofline_milliseconds"] = least[row["mode"]].milliseconds
    return rows, kernels


def _facts(config: Config, name: str, library: str, length: int) -> dict[str, Any]:
    here = machine_facts(torch.device("cpu"))
    return {
        "suite": "static",
        "kind": KIND,
        "model": name,
        "backend": library,
        "target": config.bench.target,
        "tokens": length,
        "batch": OPERATIONS[name].batch,
        "precision": "bfloat16",
        "compiler": f"triton {triton.__version__}",
        "version": version(library),
        "machine": here["machine"],
        "torch": here["torch"],
        "commit": here["commit"],
    }


def _measure(config: Config, rows: Rows) -> None:
    """Add what a GPU takes, where there is one of the name that was compiled for."""
    if not torch.cuda.is_available() or config.bench.target not in torch.cuda.get_device_name():
        return
    for name, length in dict.fromkeys((row["model"], row["tokens"]) for row in rows):
        times = measure_times(OPERATIONS[name], length, config.bench.repeats)
        for row in rows:
            if (row["model"], row["tokens"]) == (name, length):
                row["measured_milliseconds"] = times.get((row["backend"], row["mode"]))


def _compare(rows: Rows) -> None:
    """Add to our rows the fastest peer's time over ours; none where the time of either is not known whole."""
    known = [
        row
        for row in rows
        if row.get("modelled_milliseconds") and not row["unknown_loops"] and not row["error"]
    ]
    for row in known:
        same = ("model", "tokens", "mode")
        others = [x for x in known if x["backend"] != OURS and all(x[key] == row[key] for key in same)]
        if row["backend"] == OURS and others:
            best = min(others, key=lambda other: other["modelled_milliseconds"])
            ratio = best["modelled_milliseconds"] / row["modelled_milliseconds"]
            low, high = ratio / (1 + time_model.RATIO_ERROR), ratio * (1 + time_model.RATIO_ERROR)
            row.update(peer=best["backend"], ratio=ratio, ratio_low=low, ratio_high=high)


def _line(row: dict[str, Any]) -> str:
    start = f"{row['model']:<18}{row['backend']:<8}{row['mode']:<10}{row['tokens']:>7} tokens"
    if "launches" not in row:
        return f"{start}  {row.get('error') or row['note']}"
    unknown = f"  {row['unknown_loops']} loops of unknown length taken once" if row["unknown_loops"] else ""
    ratio = f"  {row['ratio']:.2f}x {row['peer']}" if "ratio" in row else ""
    return (
        f"{start}{row['launches']:>5} launches{row['bytes'] / 1e9:8.2f} GB{row['flops'] / 1e9:9.0f} GFLOP"
        f"{row['modelled_milliseconds']:9.3f} ms modelled{ratio}{unknown}{'  ' + row['error'] if row['error'] else ''}"
    )
