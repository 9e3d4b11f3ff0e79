"""Locks and who waits for them, claims between machines, being told to make room, messages, bars, facts."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from support.recorded import check
from support.steady import files_in, masked, refusal, said

from experiments.parallel.group import check_devices, pick_device, pick_precision
from experiments.system import locks, machine, paths, processes, signals, torchrun

RECORDED = Path(__file__).parent / "recorded"


@pytest.fixture(autouse=True)
def untold():
    yield
    signals._received.clear()
    signals._others.clear()


def test_locks(tmp_path: Path, monkeypatch):
    """Which files stand while a lock is held, here and between machines; what is said of one that others hold."""
    path = tmp_path / "x.lock"

    def lines() -> Iterator[str]:
        for here in (True, False):
            monkeypatch.setattr(locks, "is_of_one_machine", lambda folder, here=here: here)
            for nodes in (False, True):
                with locks.locked(path, "waiting", nodes=nodes):
                    held = files_in(tmp_path)
                    yield f"of one machine {here}, nodes {nodes}: {held}"
                    with said() as printed:
                        end = refusal(
                            contextlib.ExitStack().enter_context,
                            locks.locked(path, "waiting", nodes=nodes, wait=False),
                        )
                    yield f"  {end} {printed}"
                yield f"  after {files_in(tmp_path)}"
                path.unlink(missing_ok=True)
        monkeypatch.setattr(locks, "is_of_one_machine", lambda folder: True)
        with locks.locked(path, "waiting"), said() as printed:
            signals._received.append(signal.SIGTERM.value)
            yield refusal(
                contextlib.ExitStack().enter_context,
                locks.locked(path, "the run is computed by another process"),
            )
            signals._received.clear()
        yield f"{printed}"
        with said() as printed, locks.locked(path, "w"):
            end = threading.Timer(0.2, lambda: None)
            end.start()
        yield f"{printed} {locks.claim_path(path).name} {locks.LEASE} {locks.CLAIM_LOST == os.EX_TEMPFAIL}"
        left = []
        monkeypatch.setattr(locks.os, "_exit", left.append)
        with said() as printed:
            locks._give_up("the claim")
        yield f"{left == [os.EX_TEMPFAIL]} {printed}"
        monkeypatch.undo()
        for kinds in (
            {"/": "ext4"},
            {"/": "nfs"},
            {"/": "ext4", str(tmp_path): "NFS4"},
            {"/": "nfs", str(tmp_path.parent): "XFS"},
            {},
            {"/": "fuse"},
        ):
            parts = [SimpleNamespace(mountpoint=place, fstype=kind) for place, kind in kinds.items()]
            monkeypatch.setattr(locks.psutil, "disk_partitions", lambda all, parts=parts: parts)
            yield f"{sorted(kinds.values())}: {locks.is_of_one_machine(tmp_path / 'not' / 'there')}"
        yield f"{locks.ONE_MACHINE}"

    check(RECORDED / "locks.txt", masked(list(lines()), {str(tmp_path): "<place>"}))


def test_being_told(monkeypatch):
    def lines() -> Iterator[str]:
        sent: list[tuple] = []
        monkeypatch.setattr(
            signals.os, "kill", lambda process, number: sent.append((process, signal.Signals(number).name))
        )
        before = {number: signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGUSR2)}
        try:
            signals.pause_on(signal.SIGUSR1, signal.SIGUSR2)
            yield f"{signals.received()}"
            with signals.passing_on():
                signals.pass_on_to(11)
                yield f"{sent}"
                signal.raise_signal(signal.SIGUSR2)
                signal.raise_signal(signal.SIGUSR1)
                signals.pass_on_to(12)
                yield f"{signals.received()!s} {signals.received().name} {sent}"
            yield f"{signals._others} {signals.PASSED_ON.name}"
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    check(RECORDED / "told.txt", lines())


def test_a_process_that_has_just_ended_need_not_be_told(monkeypatch):
    def gone(process: int, number: int) -> None:
        raise ProcessLookupError

    monkeypatch.setattr(signals.os, "kill", gone)
    signals._received.append(signal.SIGTERM.value)
    with signals.passing_on():
        signals.pass_on_to(7)
        assert signals.received() == signal.SIGTERM


def test_messages(tmp_path: Path):
    """Messages among other words, records of failures read from their files."""

    def lines() -> Iterator[str]:
        read, write = os.pipe()
        out = os.fdopen(write, "w")
        before = sys.stdout
        sys.stdout = out
        try:
            processes.tell(process=7)
            processes.tell_failure(tmp_path, {"kind": "E", "message": "é"})
        finally:
            sys.stdout = before
            out.close()
        told = os.fdopen(read).read()
        yield repr(told.replace(str(os.getpid()), "PID"))
        with said() as printed:
            first, *rest = [f"{line}\n" for line in told.split("\n")[:-1]]
            found = list(processes.parse(["words\n", f"half{first}", *rest, "more\n"], tmp_path))
        yield f"{found} {printed}".replace(str(os.getpid()), "PID")

    check(RECORDED / "messages.txt", lines())


def test_progress(monkeypatch):
    """A sender throttles within a phase, never its end; a bar draws a phase each, nothing where it is off."""

    def lines() -> Iterator[str]:
        clock = [0.0]
        monkeypatch.setattr(processes.time, "monotonic", lambda: clock[0])
        sent: list[tuple] = []
        send = processes.ThrottledSender(sent.append)
        for now, phase, done in (
            (10.0, "train", 1),
            (10.1, "train", 2),
            (10.15, "train", 9),
            (10.16, "test", 1),
            (10.3, "test", 2),
            (10.37, "test", 3),
        ):
            clock[0] = now
            send(phase, done, 9, "note")
        yield f"{sent} {processes.MIN_SECONDS}"
        made: list[str] = []

        class Bar:
            n = 0

            def __init__(self, **options):
                made.append(
                    f"{options['desc']} {options['initial']}/{options['total']} {options['mininterval']}"
                )
                self.n = options["initial"]

            def set_postfix_str(self, note, refresh):
                made.append(f"note {note}")

            def update(self, more):
                self.n += more
                made.append(f"at {self.n}")

            def close(self):
                made.append("closed")

        monkeypatch.setattr(processes, "tqdm", Bar)
        bar = processes.Bar("title")
        for phase, done in (("train", 2), ("train", 5), ("test", 0), ("test", 9)):
            bar(phase, done, 9, f"{done}")
        bar.close()
        bar.close()
        off = processes.Bar("off", enabled=False)
        off("train", 1, 2)
        off.close()
        yield f"{made}"

    check(RECORDED / "progress.txt", lines())


def test_versions_are_those_of_python_and_of_the_packages_that_are_there():
    found = machine.versions()
    assert found["python"] == platform.python_version()
    assert found["torch"] == importlib.metadata.version("torch")


def test_facts_of_a_machine(tmp_path: Path, monkeypatch):
    def lines() -> Iterator[str]:
        cpu, gpu = torch.device("cpu"), torch.device("cuda")
        yield f"{sorted(machine.describe(cpu))} {machine.PACKAGES} {sorted(machine.versions())[:3]}"
        for setting in ("auto", "fp32", "bf16"):
            yield f"{setting}: {pick_precision(setting, cpu)} {pick_precision(setting, gpu)}"
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        for device in ("auto", "cpu", "cuda"):
            yield f"{device}: {refusal(pick_device, device)}"
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        for device, count in (("auto", 2), ("auto", 3), ("cpu", 9), ("cuda", 3)):
            yield f"{device} {count}: {pick_device(device)} {refusal(check_devices, device, count)}"
        monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
        monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "")
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX")
        yield f"{machine.capability()} {machine.INSTRUCTIONS}"
        monkeypatch.setattr(os, "getloadavg", lambda: (1.23456, 5.0, 9.0))
        yield f"{machine.load()}"
        monkeypatch.setattr(sys, "argv", ["run.py", "a b", "c=1"])
        yield machine.command()
        answers = {}
        monkeypatch.setattr(machine, "_git", lambda *words: answers[words[0]])
        for head, status, new in (
            ("abc", " M x", ""),
            ("abc", "", "zoo/mixers/x.py"),
            ("abc", "", ""),
            ("", "", ""),
        ):
            answers.update({"rev-parse": head, "status": status, "ls-files": new})
            yield f"{head!r} {status!r} {new!r}: {machine.commit.__wrapped__()}"
        yield (
            f"{paths.CONF.relative_to(paths.ROOT)} {paths.PUBLISHED.relative_to(paths.ROOT)} "
            f"{paths.SELECTION}"
        )
        peak = machine.peak_memory(cpu)
        yield f"between 10 MB and 100 GB: {1e7 < peak < 1e11}"
        yield (
            f"{signals.INTERRUPTED} {signals.STATUS} {torchrun.PARENT} {torchrun.END.name} "
            f"{list(torchrun.as_parent())}"
        )

    check(RECORDED / "machine.txt", lines())


def test_interrupts(monkeypatch):
    """What Ctrl-C does while modules load, afterwards, and in commands that handle it."""
    import gc

    def lines() -> Iterator[str]:
        def now() -> str:
            handler = signal.getsignal(signal.SIGINT)
            return {
                signals._exit: "exits",
                signal.default_int_handler: "raises",
                signal.SIG_IGN: "ignored",
            }.get(handler, "other")

        before = signal.getsignal(signal.SIGINT)
        try:
            for first in (signal.default_int_handler, signals._exit, signal.SIG_IGN):
                signal.signal(signal.SIGINT, first)
                with signals.loading():
                    yield f"loading: {now()}, collecting {gc.isenabled()}"
                yield f"  after: {now()}, collecting {gc.isenabled()}"
                with signals.raising():
                    yield f"raising: {now()}"
                yield f"  after: {now()}"
                signals.exit_at_once()
                yield f"at once: {now()}"
            gc.disable()
            with signals.loading():
                pass
            yield f"left off: {gc.isenabled()}"
            gc.enable()
            with signals.blocked():
                yield f"blocked: {signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, [])}"
            yield f"after: {signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, [])}"
            ended, wrote = [], []
            monkeypatch.setattr(signals.os, "_exit", ended.append)
            monkeypatch.setattr(
                signals.os, "write", lambda where, words: wrote.append((where, words.decode()))
            )
            signals._exit(2, None)
            yield f"{ended} {wrote}"
            for parent, told in ((None, None), (1, None), (None, "1"), (os.getppid(), None)):
                ended.clear()
                monkeypatch.setenv(torchrun.PARENT, told) if told else monkeypatch.delenv(
                    torchrun.PARENT, raising=False
                )
                monkeypatch.setattr(
                    torchrun.ctypes, "CDLL", lambda *_, **__: SimpleNamespace(prctl=lambda *words: None)
                )
                torchrun.end_with_parent(signal.SIGTERM, parent)
                yield f"{parent is None} {told}: {ended} {os.environ.get(torchrun.PARENT)}"
        finally:
            gc.enable()
            signal.signal(signal.SIGINT, before)

    check(RECORDED / "interrupts.txt", lines())
    assert time.monotonic() > 0


@pytest.mark.parametrize(("told", "ends"), [("own", []), ("other", [128 + signal.SIGTERM]), ("", [])])
def test_a_process_ends_at_once_only_where_its_parent_is_another_than_it_was_told(
    monkeypatch, told: str, ends
):
    """And tells no process that it starts."""
    ended: list[int] = []
    monkeypatch.setattr(torchrun.sys, "platform", "linux")
    monkeypatch.setattr(torchrun.ctypes, "CDLL", lambda *_, **__: SimpleNamespace(prctl=lambda *words: None))
    monkeypatch.setattr(torchrun.os, "_exit", ended.append)
    monkeypatch.delenv(torchrun.PARENT, raising=False)
    if told:
        monkeypatch.setenv(torchrun.PARENT, str(os.getppid() + (told == "other")))
    torchrun.end_with_parent(signal.SIGTERM)
    assert ended == ends
    assert torchrun.PARENT not in os.environ
