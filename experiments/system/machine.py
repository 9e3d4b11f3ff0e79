"""The machine and the project: versions, commit, processor, memory, load; paths; errors of the operating system."""

from __future__ import annotations

import errno
import functools
import importlib.metadata
import json
import os
import platform
import resource
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import torch

from experiments.system.paths import BUILT, IN_WHEEL, ROOT

# Errors of the operating system in one line: the file and the remedy.


def explain(error: OSError) -> str:
    """One line: the file, the system's message and the remedy."""
    place = error.filename2 or error.filename  # of two, where a finished file should have gone
    file = f"{place}: " if isinstance(place, str | os.PathLike) else ""
    said = error.strerror or str(error) or type(error).__name__
    return f"{file}{said}; {_REMEDIES.get(error.errno, 'correct that')}, then give the same command again"


def one_line(text: object) -> str:
    """The text on one line, without control characters, so that text from files cannot control the terminal."""
    return "".join(c for c in " ".join(str(text).split()) if c.isprintable())


def pictured(text: str) -> str:
    """The text with pictures for control characters (␛ for ESC) but for line ends and tabs, which terminals obey."""
    return "".join(c if c in "\n\t" or ord(c) >= 0xA0 else _picture(ord(c)) for c in text)


def _picture(code: int) -> str:
    return (
        chr(0x2400 + code) if code < 0x20 else chr(code) if code < 0x7F else "␡" if code == 0x7F else "\ufffd"
    )


_ROOM = "the disk is full or its quota used up: free some space"
_RIGHTS = "it cannot be read or written: change its permissions, or give another folder (results=...)"
_REMEDIES = {
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
    errno.EFBIG: "files cannot grow so large here: raise the limit (ulimit -f), or give another folder (results=...)",
    errno.EACCES: _RIGHTS,
    errno.EPERM: _RIGHTS,
    errno.EROFS: _RIGHTS,
    errno.ENOTDIR: "there is a file where a folder belongs: move or remove it",
    errno.EEXIST: "there is a file where a folder belongs: move or remove it",
    errno.EISDIR: "there is a folder where a file belongs: move or remove it",
    errno.ELOOP: "there is a link where a file or folder of the run belongs: remove it",
}


# Facts about where a run happened.

PACKAGES = (
    *("torch", "triton", "lightning", "hydra-core", "datasets", "tokenizers", "numpy", "numba"),
    *("flash-attn", "flash_attn_3", "flash-attn-4"),
)

ROOMS = ("zoo", "kernels", "experiments", "analysis", "conf")
"""Folders whose files are part of what runs, whether git knows them or not."""

INSTRUCTIONS = (
    "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS",
    "ONEDNN_MAX_CPU_ISA",
    "NUMBA_CPU_NAME",
    "NUMBA_CPU_FEATURES",
)
"""Environment variables that make MKL, oneDNN and Numba use other instructions than the processor's best."""


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that decide results."""
    out = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            out[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return out


def command() -> str:
    """The command line of this process, as a shell takes it."""
    return shlex.join(["archzoo", *sys.argv[1:]] if IN_WHEEL else ["python", *sys.argv])


@functools.cache
def commit() -> tuple[str | None, bool | None]:
    """The commit of the source tree and whether it has uncommitted changes; (None, None) outside git.

    Changes below results/ do not count, and of files that git does not know only those in the rooms of code do: a new
    block, or a new experiment. Of a wheel: those of the tree that it was built from.
    """
    if IN_WHEEL:
        head, changed = json.loads(BUILT.read_text(encoding="utf-8"))["commit"]
        return head, changed
    head = _git("rev-parse", "HEAD")
    if not head:
        return None, None
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ":(exclude)results")
    return head, bool(changed or _git("ls-files", "--others", "--exclude-standard", "--", *ROOMS))


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def describe(device: torch.device) -> dict[str, Any]:
    """The machine as summaries and tables record it."""
    return {
        "host_cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        "threads": torch.get_num_threads(),
        "capability": capability(),
        "platform": platform.platform(),
    }


def capability() -> str:
    """The instructions that PyTorch and libraries use, e.g. "AVX512": results differ by them as by processors."""
    asked = [f"{name}={os.environ[name]}" for name in INSTRUCTIONS if os.environ.get(name)]
    return ", ".join([torch.backends.cpu.get_cpu_capability(), *asked])


def load() -> float | None:
    """The load average of the last minute (processes that want a core); None where the system has none."""
    try:
        return round(os.getloadavg()[0], 2)
    except (OSError, AttributeError):
        return None


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def peak_memory(device: torch.device) -> int:
    """Peak bytes in use so far: of the allocator on a GPU, resident in the process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    status = Path("/proc/self/status")
    if status.is_file():  # Linux, where ru_maxrss of a child starts at its parent's
        (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
