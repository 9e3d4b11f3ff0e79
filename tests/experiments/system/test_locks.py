"""Locks between processes and between machines: who waits is told, and a killed holder frees them."""

import io
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from filelock import FileLock
from support.held_lock import held_elsewhere
from support.program import ROOT

from experiments.runs import NODES, RunFolder
from experiments.system import locks, signals
from experiments.system.locks import Held, is_of_one_machine, locked

HOLDER = """
import sys, time
from pathlib import Path
from experiments.system.locks import locked
with locked(Path(sys.argv[1]), "waiting"):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path: Path):
    """A process that holds tmp_path/lock."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "lock")],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()


@pytest.mark.slow
def test_a_killed_holder_frees_the_lock_and_who_waits_is_told(tmp_path: Path, holder: subprocess.Popen):
    with pytest.raises(Held), locked(tmp_path / "lock", "", wait=False):
        pass
    said, entered = io.StringIO(), threading.Event()

    def wait() -> None:
        with locked(tmp_path / "lock", "another process works on it", stream=said):
            entered.set()

    waiting = threading.Thread(target=wait)
    waiting.start()
    deadline = time.monotonic() + 300
    while not said.getvalue() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert said.getvalue() == "another process works on it\n"
    assert not entered.wait(0.3)
    os.kill(holder.pid, signal.SIGKILL)
    assert entered.wait(300)
    waiting.join()


@pytest.mark.parametrize("nodes", [False, True])
def test_who_is_told_to_make_room_while_it_waits_does_not_go_on_waiting(tmp_path, monkeypatch, nodes):
    monkeypatch.setattr(signals, "_received", [])
    before = signal.getsignal(signal.SIGUSR2)
    signals.pause_on(signal.SIGUSR2)
    telling = threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGUSR2])
    try:
        with held_elsewhere(tmp_path / "lock", nodes=nodes):
            telling.start()
            with (
                pytest.raises(signals.Paused, match=r"SIGUSR2 while another process holds .*lock"),
                locked(tmp_path / "lock", "waiting", nodes=nodes),
            ):
                pytest.fail("entered what another one holds")
    finally:
        telling.join()
        signal.signal(signal.SIGUSR2, before)
    with locked(tmp_path / "lock", "", wait=False, nodes=nodes):
        pass


def test_a_lock_is_free_again_afterwards_also_after_an_error(tmp_path: Path):
    with pytest.raises(ValueError, match="inside"), locked(tmp_path / "lock", ""):
        raise ValueError("inside")
    said = io.StringIO()
    with locked(tmp_path / "lock", "waiting", wait=False, stream=said):
        pass
    assert said.getvalue() == ""


def test_a_place_that_takes_no_file_and_a_link_are_errors_of_the_system(tmp_path: Path):
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "target")
    for place in (tmp_path / "file" / "lock", tmp_path / "link"):
        with pytest.raises(OSError, match=str(tmp_path)), locked(place, ""):
            pass
    assert not (tmp_path / "target").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written_is_an_error_of_the_system(tmp_path: Path):
    tmp_path.chmod(0o500)
    with pytest.raises(PermissionError), locked(tmp_path / "lock", ""):
        pass


@pytest.mark.parametrize(
    ("kind", "one"),
    [("ext4", True), ("xfs", True), ("nfs4", False), ("lustre", False), ("fuse.sshfs", False)],
)
def test_a_folder_is_of_the_innermost_mount_around_it(tmp_path: Path, monkeypatch, kind: str, one: bool):
    mounts = {"/": "nfs", str(tmp_path): kind, str(tmp_path / "deeper"): "afs"}
    parts = [SimpleNamespace(mountpoint=place, fstype=fstype) for place, fstype in mounts.items()]
    monkeypatch.setattr(locks.psutil, "disk_partitions", lambda all: parts)
    assert is_of_one_machine(tmp_path / "missing" / "folder") == one
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: [])
    assert is_of_one_machine(tmp_path), "a system that lists no mounts"


def pretend(monkeypatch, *, network: bool) -> None:
    monkeypatch.setattr(locks, "is_of_one_machine", lambda folder: not network)


def test_a_claim_keeps_others_out_and_is_gone_afterwards(tmp_path: Path, monkeypatch):
    pretend(monkeypatch, network=True)
    with locked(tmp_path / "lock", ""):
        assert [path.name for path in tmp_path.iterdir()] == ["lock.claim"], "flock is not relied upon"
        with pytest.raises(Held), locked(tmp_path / "lock", "", wait=False):
            pass
    assert not list(tmp_path.iterdir())


def test_a_heart_beats_often_enough_that_two_late_beats_lose_no_claim(tmp_path: Path, monkeypatch):
    made: dict[str, float] = {}

    def lease(path: Path, **options: float) -> FileLock:
        made.update(options)
        return FileLock(path)

    monkeypatch.setattr("filelock.SoftFileLease", lease)
    pretend(monkeypatch, network=True)
    with locked(tmp_path / "lock", "", lease=60.0):
        assert made["lease_duration"] == 60.0
        assert 0 < 3 * made["heartbeat_interval"] < 60.0


def elsewhere(claim: Path, lease: float) -> None:
    """Write the claim of a process of another machine: a real one's, under another host's name."""
    made = threading.Event()

    def hold() -> None:
        with locked(claim.with_name(claim.name.removesuffix(".claim")), "", nodes=True, lease=lease):
            claim.with_name("copy").write_text(claim.read_text())
            made.set()

    thread = threading.Thread(target=hold)
    thread.start()
    thread.join()
    assert made.is_set()
    text = claim.with_name("copy").read_text()
    host = socket.gethostname()
    assert host in text
    claim.write_text(text.replace(host, "another-host"))
    claim.chmod(0o600)


@pytest.mark.slow
def test_a_claim_of_another_machine_is_taken_over_only_once_its_heart_has_stopped(tmp_path: Path):
    claim, lease = tmp_path / "lock.claim", 1.5
    elsewhere(claim, lease)
    entered = threading.Event()

    def wait() -> None:
        with locked(tmp_path / "lock", "", nodes=True, lease=lease):
            entered.set()

    waiting = threading.Thread(target=wait)
    waiting.start()
    for _ in range(15):  # longer than a lease, with heartbeats
        claim.touch()
        time.sleep(0.2)
        assert not entered.is_set(), "taken over while its holder is alive"
    assert entered.wait(300)
    waiting.join()
    assert not claim.exists()


def test_runs_on_a_network_are_claimed_also_by_the_machine_that_exports_the_folder(tmp_path, monkeypatch):
    run = RunFolder(tmp_path / "experiment" / "run")
    pretend(monkeypatch, network=False)
    with run.locked():
        assert sorted(path.name for path in run.path.iterdir()) == [".lock"]
    pretend(monkeypatch, network=True)
    with run.locked():
        assert (run.path / ".lock.claim").exists()
    assert (run.path.parent / NODES).exists()
    pretend(monkeypatch, network=False)
    with run.locked():
        assert (run.path / ".lock.claim").exists()
    assert [path.name for path in run.path.iterdir()] == [".lock"]
