"""The stage of job=gpu that compiles: every case and every model in a process of its own, on all processors.

Compiled kernels are kept in Triton's cache, so that the stages that measure, one after the other, find them there.
With gpu.target the cases are compiled for that GPU on a machine that has none (experiments/bench/compiled.py).
"""

from __future__ import annotations

import dataclasses
import functools
import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any

import torch
from tqdm import tqdm

from experiments.gpu.settings import REHEARSED, Record, Settings
from experiments.parallel.group import pick_device

LENGTH = 2048
"""Tokens of a sequence: kernels are compiled for sizes of heads and tiles, not for lengths."""
LIBRARIES = ("fla", "liger")
"""Peers whose kernels are Triton's, which alone can be compiled on a machine without a GPU."""
_SPAWN = multiprocessing.get_context("spawn")


def compile_kernels(settings: Settings) -> bool:
    """Run every case and model once, in all launch configurations of its kernels; returns whether all were run."""
    done = Record(settings.folder / f"compiled{'-' + settings.target if settings.target else ''}.json")
    deadline = time.monotonic() + 0.9 * settings.seconds
    left = [piece for piece in _pieces(settings) if piece not in done]
    with ThreadPoolExecutor(settings.workers) as threads:
        outcomes = threads.map(lambda piece: _apart(settings, piece, deadline), left)
        for piece, outcome in zip(left, tqdm(outcomes, "compile", len(left)), strict=True):
            if outcome is not None:
                done.add(piece, outcome)
                tqdm.write(f"{piece}: {outcome}")
    return all(piece in done for piece in left)


def _pieces(settings: Settings) -> list[str]:
    """Names of the work, what takes longest first."""
    from experiments.bench.cases import CASES
    from experiments.configuration.compose import architectures

    if settings.target:
        return [f"case {name}" for name in CASES]
    if settings.rehearse:
        return [f"case {name}" for name in REHEARSED["kernels"]["cases"]]
    models = [f"model {name}" for name in architectures(settings.config.model)]
    return models + [f"case {name}" for name in CASES]


def _apart(settings: Settings, piece: str, deadline: float) -> Any:
    """The outcome of a piece in a process of its own, a crash being one; None where the time was too short."""
    if time.monotonic() > deadline:
        return None
    receiver, sender = _SPAWN.Pipe(duplex=False)
    process = _SPAWN.Process(target=_work, args=(settings, piece, sender))
    process.start()
    sender.close()
    try:
        if not receiver.poll(max(0.0, deadline - time.monotonic())):
            process.kill()
            return None
        return receiver.recv()
    except EOFError:
        process.join()
        return f"its process ended with status {process.exitcode}"
    finally:
        process.join()


def _work(settings: Settings, piece: str, sender: Connection) -> None:
    from experiments.bench.compiled import compiling_for
    from kernels.triton_common.tuning import every_configuration

    began = time.monotonic()
    kind, _, name = piece.partition(" ")
    with compiling_for(settings.target) if settings.target else every_configuration():
        outcome = {"case": _run_case, "model": _run_model}[kind](settings, name)
    sender.send({**outcome, "seconds": round(time.monotonic() - began, 1)})


def _run_case(settings: Settings, name: str) -> dict[str, str]:
    """Each form of a case, forward and backward; returns those that failed, and why."""
    from experiments.bench import timing
    from experiments.bench.cases import CASES

    forms, leaves = _forms(settings, name)
    ways = timing.MODES if CASES[name].backward else {"forward": timing.forward}
    failures = {
        f"{form}, {way}": _failure(functools.partial(work, run, leaves))
        for form, run in forms.items()
        for way, work in ways.items()
    }
    return {name: reason for name, reason in failures.items() if reason is not None}


def _forms(settings: Settings, name: str) -> tuple[dict[str, Callable[[], Any]], list[torch.Tensor]]:
    """A case's Triton form and its peers', and the tensors that have gradients."""
    from experiments.bench import peers
    from experiments.bench.cases import CASES

    if settings.target:
        return _forms_ahead(name, LENGTH)
    case, device = CASES[name], pick_device(settings.config.device)
    on_gpu = device.type == "cuda"
    length = case.length or (LENGTH if on_gpu else 16)
    dtype = torch.bfloat16 if on_gpu else torch.float32
    # More than one sequence: a kernel is compiled once more for sizes of 1.
    calls = case.calls(length, min(case.tokens, 2 * LENGTH) if on_gpu else length, device, dtype)
    forms = {
        "triton": lambda: [call.run("triton") for call in calls],
        **dict(peers.peers_of(name, calls, device)),
    }
    return forms, [x for call in calls for x in call.tensors() if x.requires_grad]


def _forms_ahead(name: str, length: int) -> tuple[dict[str, Callable[[], Any]], list[torch.Tensor]]:
    """The same on tensors of a CPU, to compile for another GPU: two sequences of this length or the case's own."""
    from experiments.bench import compiled, peers
    from experiments.bench.cases import CASES

    case = CASES[name]
    length = case.length or length
    # More than one sequence: a kernel is compiled once more for sizes of 1.
    calls = case.calls(length, min(case.tokens, 2 * length), torch.device("cpu"), torch.bfloat16)
    peer_forms = dict(peers.peers_of(name, calls, torch.device("cuda")))
    forms: dict[str, Callable[[], Any]] = {"triton": lambda: [compiled.on_triton(call) for call in calls]}
    forms |= {peer: form for peer, form in peer_forms.items() if peer in LIBRARIES}
    return forms, [x for call in calls for x in call.tensors() if x.requires_grad]


def _failure(call: Callable[[], object]) -> str | None:
    from experiments.bench import result_table

    try:
        call()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    except Exception as error:  # whatever a library raises: the other forms go on
        return result_table.failure_reason(error)
    return None


def _run_model(settings: Settings, name: str) -> dict[str, str]:
    """A training step, prefill and decode of a model; returns those that failed, and why."""
    from experiments.bench.suites import models

    config = settings.bench("models")
    out = str(settings.folder / "compiled" / name)
    bench = dataclasses.replace(
        config.bench, cases=[name], lengths=[LENGTH], repeats=1, tokens=LENGTH, out=out
    )
    rows = models.run(dataclasses.replace(config, bench=bench))
    return {row["mode"]: row["note"] for row in rows if row.get("note")}
