"""The cells of a sweep: checked all at once, then trained by a few worker processes."""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing as mp
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
from tqdm import tqdm

from experiments import data, interrupts, machine, peak_flops
from experiments.data.config import cache_root
from experiments.plan import Plan, plan
from experiments.progress import MIN_SECONDS, Messages
from experiments.runs import RunFailed
from experiments.schema import Config
from zoo.errors import UserError


def run_cells(configs: list[Config]) -> None:
    """Train all cells that are not complete. Raises RunFailed at the end if any failed.

    Every configuration is checked before the first cell trains (UserError). Equal cells are trained once.
    """
    plans = list({p.folder.path: p for p in (plan(config) for config in configs)}.values())
    todo = [p for p in plans if not p.folder.complete]
    print(f"{len(plans)} cells: {len(plans) - len(todo)} complete, {len(todo)} to train", flush=True)
    if not todo:
        return
    for config in {repr(p.config.data): p.config.data for p in todo}.values():
        data.prepare(config)  # once, here, so that workers do not wait for each other
    _measure_peak(todo[0].config)
    failed = _Pool(todo, min(todo[0].config.sweep.workers, len(todo))).run()
    if failed:
        raise RunFailed(f"{failed} of {len(plans)} cells failed; the same command tries them again")


def _measure_peak(config: Config) -> None:
    """Once, here, while no worker trains; workers then find what MFU is a share of in the cache."""
    device = machine.pick(config.device)
    if device.type == "cpu":
        torch.set_num_threads(config.trainer.threads)
        peak_flops.peak(device, cache_root(config.data))


class _Pool:
    """A few worker processes at a time, one process a cell, so that a killed one takes only its cell with it.

    Processes come from a fork server that has imported the harness once and started no threads.
    """

    def __init__(self, plans: list[Plan], workers: int) -> None:
        self.waiting, self.workers = list(plans), workers
        self.running: dict[Connection, tuple[Any, Plan]] = {}
        self.screen = _Screen(names(plans))
        self.failed = 0
        threads = str(max(p.config.trainer.threads for p in plans))
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
            os.environ[name] = threads  # before the fork server imports torch
        self.context = mp.get_context("forkserver")
        self.context.set_forkserver_preload(["experiments.training"])

    def run(self) -> int:
        try:
            while self.waiting or self.running:
                while self.waiting and len(self.running) < self.workers:
                    self._start(self.waiting.pop(0))
                for channel in wait(list(self.running)):
                    self._hear(channel)
        finally:
            for process, _ in self.running.values():
                process.terminate()
            self.screen.close()
        return self.failed

    def _start(self, planned: Plan) -> None:
        here, there = self.context.Pipe()
        process = self.context.Process(target=_work, args=(planned.config, there, self.workers), daemon=True)
        try:
            # Only the server's start: its imports, which take seconds, are waited for by the first process's.
            with interrupts.unheard():
                forkserver.ensure_running()
            process.start()
        except OSError as error:
            if "AF_UNIX path too long" not in str(error):
                raise
            folder = tempfile.gettempdir()
            raise UserError(f"the path of {folder} is too long for sockets; set TMPDIR=/tmp") from None
        there.close()
        self.running[here] = (process, planned)
        with contextlib.suppress(OSError):  # a worker that died already is heard of as others are
            here.send("go")
        self.screen.show(planned, "starting")

    def _hear(self, channel: Connection) -> None:
        process, planned = self.running[channel]
        try:
            phase, done, total, note = channel.recv()
            self.screen.show(planned, f"{phase} {done}/{total} {note}", done / max(total, 1))
        except (EOFError, ConnectionError):  # ended; reset, where it had not even read what it was sent
            process.join()
            del self.running[channel]
            self._ended(planned, process.exitcode)

    def _ended(self, planned: Plan, status: int | None) -> None:
        if planned.folder.complete:
            self.screen.end(planned, _result(planned))
            return
        self.failed += 1
        told = (
            planned.folder.failed and status == 1
        )  # a killed worker leaves at most an earlier attempt's record
        why = planned.folder.failure()["message"] if told else _exit_reason(status)
        self.screen.end(planned, f"FAILED: {why} ({planned.folder.path})")


def _work(config: Config, channel: Connection, workers: int) -> None:
    """A worker's whole life: train one cell, as one of so many at a time, tell how far it is."""
    from experiments.jobs.train import execute

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

    config.trainer.progress = False
    try:
        execute(plan(config), Messages(send), workers)
    except Exception as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        sys.exit(1)


def names(plans: list[Plan]) -> dict[str, str]:
    """Run -> what to call its cell: its title, and where titles are equal the settings that tell cells apart."""
    settings = {p.run: dict(_leaves(dataclasses.asdict(p.config))) for p in plans}
    out = {}
    for p in plans:
        mine = settings[p.run]
        twins = [settings[other.run] for other in plans if other.title == p.title]
        apart = [f"{key}={value}" for key, value in mine.items() if any(twin[key] != value for twin in twins)]
        out[p.run] = " ".join([p.title, *apart])
    return out


def _leaves(node: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in node.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _result(planned: Plan) -> str:
    test = planned.folder.summary()["metrics"].get("test")
    return (
        "done"
        if test is None
        else f"done: test loss {test['loss']:.4f}, {test['bits_per_byte']:.4f} bits/byte"
    )


def _exit_reason(status: int | None) -> str:
    return (
        f"killed by signal {-status}"
        if status is not None and status < 0
        else f"stopped with status {status}"
    )


class _Screen:
    """One bar for the sweep with what every worker is doing; finished cells are printed above it."""

    def __init__(self, names: dict[str, str]) -> None:
        self.names = names
        interval = MIN_SECONDS if sys.stderr.isatty() else 10.0
        self.bar = tqdm(
            total=len(names),
            file=sys.stderr,
            unit="cell",
            mininterval=interval,
            dynamic_ncols=True,
            bar_format="{percentage:3.0f}%|{bar:12}| {n:.1f}/{total} cells [{elapsed}<{remaining}]{postfix}",
        )
        self.doing: dict[str, str] = {}
        self.share: dict[str, float] = {}
        self.ended = 0
        self.interval, self.last = interval, 0.0

    def show(self, planned: Plan, what: str, share: float = 0.0) -> None:
        self.doing[planned.run] = what
        # Scoring the splits comes after training, whose share of a cell is most of its time.
        self.share[planned.run] = 0.85 * share if what.startswith("train") else 0.85 * (share > 0)
        self._refresh()

    def end(self, planned: Plan, what: str) -> None:
        self.doing.pop(planned.run, None)
        self.share.pop(planned.run, None)
        self.ended += 1
        self.bar.clear()
        tqdm.write(f"[{self.ended}/{self.bar.total}] {self.names[planned.run]}: {what}", file=sys.stdout)
        sys.stdout.flush()
        self._refresh(force=True)

    def close(self) -> None:
        self.bar.close()

    def _refresh(self, force: bool = False) -> None:
        now = time.monotonic()
        if now - self.last < self.interval and not force:
            return
        self.last = now
        self.bar.n = self.ended + sum(self.share.values())
        self.bar.set_postfix_str(
            " | ".join(f"{self.names[k]}: {v}" for k, v in self.doing.items()), refresh=False
        )
        self.bar.refresh()
