"""Who sends a signal decides what it means: a job's manager tells a process to make room, its starter ends it."""

import subprocess
import sys

CHILD = """
import os, signal, sys, time
from experiments.system import signals
signals.pause_on_from_others(signal.SIGTERM, int(sys.argv[1]) or os.getppid())
print("ready", flush=True)
while signals.received() is None:
    time.sleep(0.01)
print(signals.received().name, flush=True)
"""


def started(own: int) -> subprocess.Popen:
    process = subprocess.Popen([sys.executable, "-c", CHILD, str(own)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    return process


def test_another_process_tells_it_to_make_room():
    process = started(own=1)
    process.terminate()
    assert process.communicate()[0] == "SIGTERM\n"
    assert process.returncode == 0


def test_its_starter_ends_it():
    process = started(own=0)
    process.terminate()
    assert process.communicate()[0] == ""
    assert process.returncode == 143
