"""Training the cells of a sweep: checked all at once, then trained by a few worker processes."""

from __future__ import annotations

import contextlib
import multiprocessing as mp
import os
import signal
import sys
import tempfile
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from experiments import data, interrupts, machine, peak_flops
from experiments.data.cache import cache_root
from experiments.execute import execute
from experiments.plan import Plan, plan
from experiments.progress import ThrottledSender
from experiments.runs import RunFailed, RunPaused
from experiments.schema import Config
from experiments.sweep_display import SweepDisplay, cell_names
from zoo.errors import UserError

PAUSED = os.EX_TEMPFAIL  # the exit status of a worker whose cell paused


def run_sweep(configs: list[Config]) -> None:
    """Train all cells that are not complete. Raises RunFailed at the end if any failed, RunPaused if any paused.

    Every configuration is checked before the first cell trains (UserError). Equal cells are trained once.
    """
    plans = list({p.folder.path: p for p in (plan(config) for config in configs)}.values())
    failed = train_all(plans)
    if failed:
        raise RunFailed(f"{len(failed)} of {len(plans)} cells failed; the same command tries them again")
    paused = sum(not p.done for p in plans)
    if paused:
        raise RunPaused(
            f"{paused} of {len(plans)} cells paused; the same command goes on, trainer.pause_at left out"
        )


def train_all(plans: list[Plan]) -> list[Plan]:
    """Train the planned runs that are not done, `sweep.workers` at a time; returns those that failed.

    Runs that paused have not failed and are not done.
    """
    todo = [p for p in plans if not p.done]
    print(f"{len(plans)} cells: {len(plans) - len(todo)} complete, {len(todo)} to train", flush=True)
    if not todo:
        return []
    for config in {repr(p.config.data): p.config for p in todo}.values():
        data.prepare(config.data, config.trainer.progress)  # here, so that workers do not wait for each other
    _measure_peak(todo[0].config)
    return WorkerPool(todo, min(todo[0].config.sweep.workers, len(todo))).run()


def _measure_peak(config: Config) -> None:
    """Measure the peak that MFU refers to while no worker trains; workers find it in the cache."""
    device = machine.pick(config.device)
    if device.type == "cpu":
        torch.set_num_threads(config.trainer.threads)
        peak_flops.peak(device, cache_root(config.data))


class WorkerPool:
    """A few worker processes at a time, one process a cell, so that a killed one takes only its cell with it.

    Processes come from a fork server that has imported the harness once and started no threads.
    """

    def __init__(self, plans: list[Plan], workers: int) -> None:
        self.waiting, self.workers = list(plans), workers
        self.running: dict[Connection, tuple[Any, Plan]] = {}
        self.display = SweepDisplay(cell_names(plans), plans[0].config.trainer.progress)
        self.failed: list[Plan] = []
        threads = str(max(p.config.trainer.threads for p in plans))
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
            os.environ[name] = threads  # before the fork server imports torch
        self.context = mp.get_context("forkserver")
        self.context.set_forkserver_preload(["experiments.training"])

    def run(self) -> list[Plan]:
        """Train every cell; returns those that failed."""
        try:
            while self.waiting or self.running:
                while self.waiting and len(self.running) < self.workers:
                    self._start(self.waiting.pop(0))
                for channel in wait(list(self.running)):
                    self._receive(channel)
        finally:
            for process, _ in self.running.values():
                process.terminate()
            self.display.close()
        return self.failed

    def _start(self, planned: Plan) -> None:
        here, there = self.context.Pipe()
        process = self.context.Process(target=_work, args=(planned, there, self.workers), daemon=True)
        try:
            # Only the server's start: its imports, which take seconds, are waited for by the first process's.
            with interrupts.blocked():
                forkserver.ensure_running()
            process.start()
        except OSError as error:
            if "AF_UNIX path too long" not in str(error):
                raise
            folder = tempfile.gettempdir()
            raise UserError(f"the path of {folder} is too long for sockets; set TMPDIR=/tmp") from None
        there.close()
        self.running[here] = (process, planned)
        with contextlib.suppress(OSError):  # a worker that has died already is handled in _receive
            here.send("go")
        self.display.update(planned, "starting")

    def _receive(self, channel: Connection) -> None:
        process, planned = self.running[channel]
        try:
            phase, done, total, note = channel.recv()
            self.display.update(planned, f"{phase} {done}/{total} {note}", done / max(total, 1))
        except (EOFError, ConnectionError):  # ended; reset, where it had not even read what it was sent
            process.join()
            del self.running[channel]
            self._finish(planned, process.exitcode)

    def _finish(self, planned: Plan, status: int | None) -> None:
        if planned.done:
            self.display.end(planned, _result(planned))
            return
        if status == PAUSED:
            self.display.end(planned, "paused")
            return
        self.failed.append(planned)
        # A killed worker leaves at most an earlier attempt's record.
        recorded = planned.folder.failed and status == 1
        why = planned.folder.failure()["message"] if recorded else _exit_reason(status)
        self.display.end(planned, f"FAILED: {why} ({planned.folder.path})")


def _work(planned: Plan, channel: Connection, workers: int) -> None:
    """Train one cell in a worker process and send its progress; workers: cells that train at the same time."""
    # Ctrl-C in a terminal reaches everybody: the sweep decides. A terminated worker dies as a killed one does.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(143))
    try:
        channel.recv()
    except (EOFError, ConnectionError):
        # The sweep was interrupted while this process started, and does not know it.
        return

    def send(message: tuple[str, int, int, str]) -> None:
        with contextlib.suppress(OSError):  # the sweep may be gone; the cell finishes anyway
            channel.send(message)

    planned.config.trainer.progress = False
    try:
        execute(planned, ThrottledSender(send), workers)
    except RunPaused:
        sys.exit(PAUSED)
    except Exception as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        sys.exit(1)


def _result(planned: Plan) -> str:
    test = planned.folder.summary()["metrics"].get("test")
    if test is None:
        return "done"
    more = f"{test['accuracy']:.2%} right" if "accuracy" in test else f"{test['bits_per_byte']:.4f} bits/byte"
    return f"done: test loss {test['loss']:.4f}, {more}"


def _exit_reason(status: int | None) -> str:
    return (
        f"killed by signal {-status}"
        if status is not None and status < 0
        else f"stopped with status {status}"
    )
