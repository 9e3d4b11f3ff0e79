"""Facts about where a run happened: versions, commit, machine, memory, peak arithmetic."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import platform
import resource
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("torch", "triton", "lightning", "hydra-core", "datasets", "tokenizers", "numpy")

# Dense bf16 tensor-core peak in FLOP/s, from the vendors' data sheets.
GPU_PEAKS = {"H200": 989e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12, "4090": 165e12}


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
    return shlex.join(["python", *sys.argv])


@functools.cache
def commit() -> tuple[str | None, bool | None]:
    """The commit of the source tree and whether it has uncommitted changes; (None, None) outside git.

    Changed results are no change of what made them.
    """
    head = _git("rev-parse", "HEAD")
    return (
        (head or None, None)
        if not head
        else (head, bool(_git("status", "--porcelain", "--untracked-files=no", "--", ":(exclude)results")))
    )


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def describe(device: torch.device) -> dict[str, Any]:
    """The machine as a result table names it."""
    return {
        "host_cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        "threads": torch.get_num_threads(),
        "platform": platform.platform(),
    }


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def pick(device: str) -> torch.device:
    """auto: the GPU if there is one. Raises UserError where cuda is asked for and absent."""
    from zoo.errors import UserError

    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device == "cuda" and not torch.cuda.is_available():
        raise UserError("device=cuda, but PyTorch sees no CUDA device here; use device=cpu or device=auto")
    return torch.device(device)


def precision(setting: str, device: torch.device) -> str:
    """auto: bf16 on GPUs, fp32 on CPUs (which emulate bf16, slowly)."""
    return setting if setting != "auto" else ("bf16" if device.type == "cuda" else "fp32")


def peak_memory(device: torch.device) -> int:
    """Most bytes in use so far: of the allocator on a GPU, resident in the process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    status = Path("/proc/self/status")
    if status.is_file():  # Linux, where ru_maxrss of a child starts at its parent's
        (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def peak_flops(device: torch.device) -> tuple[float, str]:
    """FLOP/s that MFU is measured against, and where the number comes from.

    A GPU's bf16 peak from its data sheet; elsewhere the best of a few large fp32 matrix products at this process's
    thread count, timed now.
    """
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        for key, peak in GPU_PEAKS.items():
            if key in name:
                return peak, f"{key} data sheet, dense bf16"
    return _measured_peak(
        device
    ), f"measured: 1024x1024 fp32 matrix product, {torch.get_num_threads()} thread(s)"


def _measured_peak(device: torch.device, size: int = 1024, repeats: int = 4) -> float:
    a = torch.ones(size, size, device=device)
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        float((a @ a)[0, 0])  # reading one number waits for the product
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best
