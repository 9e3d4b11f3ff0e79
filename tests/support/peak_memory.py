"""The highest memory a process has had, and scripts that measure it in a process of their own."""

import os
import re
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]


def peak() -> int:
    """KiB resident at most; not ru_maxrss, which a child inherits from its parent."""
    return int(re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())[1])


def printed_by(script: str) -> int:
    """The one number that a Python script prints; it may import `peak` from here."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(TESTS), str(TESTS.parent)))}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment
    )
    return int(done.stdout)
