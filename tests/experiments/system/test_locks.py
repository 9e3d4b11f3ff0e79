"""Locks between processes: who waits is told, and a killed holder frees them."""

import io
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from support.held_lock import held_elsewhere
from support.program import ROOT

from experiments.system import signals
from experiments.system.locks import Held, locked

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
    deadline = time.monotonic() + 60
    while not said.getvalue() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert said.getvalue() == "another process works on it\n"
    assert not entered.wait(0.3)
    os.kill(holder.pid, signal.SIGKILL)
    assert entered.wait(60)
    waiting.join()


@pytest.mark.parametrize("nodes", [False, True])
def test_who_is_told_to_make_room_while_it_waits_does_not_go_on_waiting(
    tmp_path: Path, monkeypatch, nodes: bool
):
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
