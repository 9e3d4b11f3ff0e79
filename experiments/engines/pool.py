"""`pool`: processes of this machine, one a cell, which end with the command."""

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

from experiments.engines.engine import FAILED, PAUSED, Engine, State
from experiments.engines.preloaded_worker import exit_reason
from experiments.planning.plan import Plan
from experiments.runs import RunPaused
from experiments.system import signals
from experiments.system.processes import ThrottledSender
from experiments.training.execute import execute
from zoo.errors import UserError


class Pool(Engine):
    """`sweep.workers` processes at a time, one process a cell, so that a killed one takes only its cell with it.

    Processes come from a fork server that has imported the harness once and started no threads.
    """

    def __init__(self, plans: list[Plan]) -> None:
        self.capacity = min(plans[0].config.sweep.workers, len(plans))
        self.running: dict[str, tuple[Any, Connection]] = {}
        self.plans: dict[Connection, Plan] = {}
        self.last: dict[str, State] = {}
        threads = str(max(p.config.trainer.threads for p in plans))
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
            os.environ[name] = threads  # before the fork server imports torch
        self.context = mp.get_context("forkserver")
        self.context.set_forkserver_preload(["experiments.training.train"])

    def submit(self, planned: Plan) -> None:
        """Start a process for a cell. Raises UserError where the temporary folder cannot hold its socket."""
        here, there = self.context.Pipe()
        process = self.context.Process(target=_work, args=(planned, there, self.capacity), daemon=True)
        try:
            # Only the server's start: its imports, which take seconds, are waited for by the first process's.
            with signals.blocked():
                forkserver.ensure_running()
            process.start()
        except OSError as error:
            if "AF_UNIX path too long" not in str(error):
                raise
            folder = tempfile.gettempdir()
            raise UserError(f"the path of {folder} is too long for sockets; set TMPDIR=/tmp") from None
        there.close()
        self.running[planned.run], self.plans[here] = (process, here), planned
        with contextlib.suppress(OSError):  # a worker that has died already is noticed by `state`
            here.send("go")
        self.last[planned.run] = State("starting")

    def state(self, planned: Plan) -> State:
        """Return the last progress that the cell's process reported, or how it ended."""
        process, channel = self.running[planned.run]
        if not channel.poll():
            return self.last[planned.run]
        try:
            phase, done, total, note = channel.recv()
            state = State(f"{phase} {done}/{total} {note}", done / max(total, 1))
        except (EOFError, ConnectionError):  # ended; reset, where it had not even read what it was sent
            process.join()
            del self.running[planned.run], self.plans[channel]
            state = State(ended=True, status=process.exitcode, why=exit_reason(process.exitcode))
        self.last[planned.run] = state
        return state

    def changed(self) -> list[Plan]:
        """Wait until a process reports progress or ends; return the cells of those that did."""
        return [self.plans[channel] for channel in wait(list(self.plans))]

    def cancel(self, planned: Plan) -> bool:
        """End the cell's process; a process of another command is not known here."""
        if planned.run not in self.running:
            return False
        self.running[planned.run][0].terminate()
        return True

    def close(self) -> None:
        """End all processes."""
        for process, _ in self.running.values():
            process.terminate()


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
        sys.exit(FAILED)
