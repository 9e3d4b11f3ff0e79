"""The stages of job=gpu about kernels: their tests, file by file, and the choice of their launch configurations."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from experiments.gpu.stage_record import Record
from experiments.gpu.stage_settings import Settings
from experiments.parallel.group import pick_device
from experiments.system import paths
from zoo.errors import UserError

PASSED = (0, 5)  # 5: no test was collected, as of GPU tests on a machine without one
LENGTHS = (1024, 8192, 32_768)
TESTS = Path("tests", "kernels")
REHEARSED = ("test_kernels_gpu.py", "test_short_conv_triton.py")


def run_kernel_tests(settings: Settings) -> bool:
    """Run every file of kernel tests in a process of its own; returns whether all were run in the time that there is.

    Raises UserError at the end for files that failed; the others are not run again.
    """
    done = Record(settings.folder / "kernel_tests.json")
    deadline = time.monotonic() + settings.seconds
    failed = []
    for file in sorted((paths.ROOT / TESTS).rglob("test_*.py")):
        if file.name in done or (settings.rehearse and file.name not in REHEARSED):
            continue
        status = _pytest(file, deadline - time.monotonic(), settings)
        if status is None:
            return False
        if status in PASSED:
            done.add(file.name, status)
        else:
            failed.append(file.name)
    if failed:
        raise UserError(f"kernel tests failed in {', '.join(failed)}; the other stages can still be run")
    return True


def _pytest(file: Path, seconds: float, settings: Settings) -> int | None:
    """The exit status of a file's tests on several processes, None if they took too long.

    A file about Triton forms runs as a whole, compiled for the GPU; of the others, the tests that need one.
    """
    if seconds < 1:
        return None
    command = [sys.executable, "-m", "pytest", str(file), "-q", "--timeout", str(seconds)]
    command += [] if file.stem.endswith("_triton") and not settings.rehearse else ["-m", "gpu"]
    command += ["--collect-only"] if settings.rehearse else ["-n", str(settings.workers)]
    try:
        return subprocess.run(command, cwd=paths.ROOT, timeout=seconds).returncode
    except subprocess.TimeoutExpired:
        print(f"{file.name}: not finished; what was compiled is kept, and the next time goes on from it")
        return None


def tune_kernels(settings: Settings, out: Path | None = None) -> bool:
    """Launch every case's Triton kernels, so that the autotuner's choices get into the table; returns whether all were.

    Forward and backward at each length by themselves, each once and for all. A rehearsal writes into its own folder.
    """
    from kernels.triton_common import tuning

    out = out or (settings.folder / "tuned.toml" if settings.rehearse else tuning.TABLE)
    out.parent.mkdir(parents=True, exist_ok=True)
    done = Record(settings.folder / "tuned.json")
    deadline = time.monotonic() + settings.seconds * 0.7
    device = pick_device(settings.config.device)
    for name, length, way in _launches(settings.rehearse):
        title = f"{name}, {length} tokens, {way}"
        if title in done:
            continue
        if time.monotonic() > deadline:
            return False
        with tuning.afresh():
            outcome = _launch(name, length, way, device)
        count = tuning.record(settings.device_name, out)
        print(f"{title}: {outcome}; {count} launch configurations so far in {out}", flush=True)
        done.add(title, outcome)
    return True


def _launches(rehearse: bool) -> Iterator[tuple[str, int, str]]:
    from experiments.bench.cases import CASES

    for name, case in CASES.items():
        if rehearse and name != "short_conv":
            continue
        lengths = (16,) if rehearse else LENGTHS if case.length is None else (case.length,)
        for length in lengths:
            for way in ("forward", "backward") if case.backward else ("forward",):
                yield name, length, way


def _launch(name: str, length: int, way: str, device: torch.device) -> str:
    """Launch a case's kernels; returns "tuned", or why they could not run."""
    from experiments.bench import passes, result_table
    from experiments.bench.cases import CASES

    case, on_gpu = CASES[name], device.type == "cuda"
    try:
        dtype = torch.bfloat16 if on_gpu else torch.float32
        calls = case.calls(length, case.tokens if on_gpu else length, device, dtype)
        leaves = [x for call in calls for x in call.tensors() if x.requires_grad]
        (passes.forward if way == "forward" else passes.forward_backward)(_triton(calls), leaves)
    except Exception as error:  # no Triton form, one that does not serve this call, or one that is broken
        if result_table.is_fatal(error):
            raise
        return result_table.failure_reason(error)
    return "tuned"


def _triton(calls: list[Any]) -> Callable[[], list[Any]]:
    return lambda: [call.run("triton") for call in calls]
