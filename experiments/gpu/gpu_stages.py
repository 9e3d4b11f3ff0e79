"""The stages of job=gpu by name: functions that work within a time limit, and return whether they are finished."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

from experiments.bench.run_suite import is_finished, run_suite
from experiments.gpu.compile_stage import compile_kernels
from experiments.gpu.kernel_stages import run_kernel_tests, tune_kernels
from experiments.gpu.stage_settings import Settings
from experiments.system import paths
from zoo.errors import UserError

Stage = Callable[[Settings], bool]


def _run_gpu_tests(settings: Settings) -> bool:
    command = [sys.executable, "-m", "pytest", "tests", "-m", "gpu", "-q", "--timeout", str(settings.seconds)]
    command += ["--ignore", "tests/kernels"]
    command += ["--collect-only"] if settings.rehearse else ["-n", str(settings.workers)]
    status = subprocess.run(command, cwd=paths.ROOT, timeout=settings.seconds).returncode
    if status not in (0, 5):  # 5: no test was collected, as on a machine without a GPU
        raise UserError(
            f"the GPU tests failed (pytest ended with status {status}); the other stages can still be run"
        )
    return True


def _bench(suite: str) -> Stage:
    def measure(settings: Settings) -> bool:
        run_suite(settings.bench(suite))
        return True

    return measure


def _bench_by_rows(suite: str) -> Stage:
    """The stage of a resumable suite: rows beyond the time limit are measured the next time."""

    def measure(settings: Settings) -> bool:
        config = settings.bench(suite)
        run_suite(config)
        return is_finished(config)

    return measure


def _train(name: str) -> Stage:
    def train(settings: Settings) -> bool:
        from experiments.gpu.training_stages import advance

        return advance(settings, name)

    return train


def _publish(settings: Settings) -> bool:
    from experiments.gpu.training_stages import publish

    return publish(settings)


STAGES: dict[str, Stage] = {
    "tests": _run_gpu_tests,
    "compile": compile_kernels,
    "kernel_tests": run_kernel_tests,
    "tune": tune_kernels,
    "attention": _bench("attention"),
    "kernels": _bench_by_rows("kernels"),
    "latency": _bench("latency"),
    "models": _bench_by_rows("models"),
    "dense": _train("dense"),
    "sf": _train("sf"),
    "publish": _publish,
}
