"""The training stages of job=gpu, and publishing their curves and scores."""

from __future__ import annotations

import csv
import io
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from experiments import data
from experiments.bench.run_suite import is_finished, run_suite
from experiments.gpu.compile_stage import compile_kernels
from experiments.gpu.settings import PATTERNS, Record, Settings
from experiments.gpu.short_stage import run_short
from experiments.parallel.group import pick_device
from experiments.planning.plan import Plan, plan
from experiments.runs import METRICS, RunPaused, read_metrics
from experiments.scoring.text import score_best
from experiments.system import machine, paths
from experiments.system.processes import Bar
from experiments.training.execute import execute
from zoo.errors import UserError
from zoo.files import write_atomic
from zoo.io import CARD

# The stages of job=gpu about kernels: their tests, file by file, and the choice of their launch configurations.

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
        print(f"{file.name}: not finished; what was compiled is kept, and the next call resumes from it")
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
    from experiments.bench import result_table, timing
    from experiments.bench.cases import CASES

    case, on_gpu = CASES[name], device.type == "cuda"
    try:
        dtype = torch.bfloat16 if on_gpu else torch.float32
        calls = case.calls(length, case.tokens if on_gpu else length, device, dtype)
        leaves = [x for call in calls for x in call.tensors() if x.requires_grad]
        (timing.forward if way == "forward" else timing.forward_backward)(_triton(calls), leaves)
    except Exception as error:  # no Triton form, one that does not serve this call, or one that is broken
        if result_table.is_fatal(error):
            raise
        return result_table.failure_reason(error)
    return "tuned"


def _triton(calls: list[Any]) -> Callable[[], list[Any]]:
    return lambda: [call.run("triton") for call in calls]


# The stages of job=gpu by name: functions that work within a time limit, and return whether they are finished.

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

        return advance(settings, name)

    return train


def _publish(settings: Settings) -> bool:

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
    "short": run_short,
}
ONLY_WHEN_NAMED = ("short",)
"""It measures in minutes what the others measure better."""


# Left of a stage's time for set-up, the last checkpoint and the end of a run.
RESERVE = 0.25


def advance(settings: Settings, name: str) -> bool:
    """Train the run of PATTERNS[name] for what is left of the stage's time; returns whether it is complete."""
    began = time.monotonic()
    config = settings.training(name, settings.seconds)
    data.prepare(config.data)
    left = settings.seconds * (1 - RESERVE) - (time.monotonic() - began)
    planned = plan(settings.training(name, max(left, 1.0)))
    bar = Bar(planned.title, config.trainer.progress)
    try:
        execute(planned, bar)
    except RunPaused as pause:
        print(pause)
    finally:
        bar.close()
    return planned.folder.complete


def publish(settings: Settings) -> bool:
    """Write training curves and scores, also of unfinished runs; returns whether all runs are complete."""
    scores, curves = [], []
    for name in PATTERNS:
        planned = plan(settings.training(name, settings.seconds))
        rows = read_metrics(planned.folder.path / METRICS)
        curves += [{"model": name, **row} for row in rows]
        if (planned.folder.path / CARD).is_file():
            scores.append(_score(settings, name, planned, rows))
    if not scores:
        print("nothing to publish: no training stage has reached its first validation")
        return False
    _write_csv(settings, "gpu_curves.csv", curves)
    _write_csv(settings, "gpu_training.csv", scores)
    return all(row["complete"] for row in scores) and len(scores) == len(PATTERNS)


def _score(settings: Settings, name: str, planned: Plan, rows: list[dict[str, str]]) -> dict[str, Any]:
    """The row of a run in the table of scores: its best weights so far on every split."""
    config = planned.config
    corpus, device = data.prepare(config.data), pick_device(config.device)
    bar = Bar(planned.title, config.trainer.progress)
    metrics = score_best(config, corpus, planned.folder.path, device, bar, config.evaluate.splits)
    bar.close()
    labels = corpus.describe()
    steady = [float(r["tokens_per_second"]) for r in rows if r["tokens_per_second"]]
    return {
        "model": name,
        "layers": planned.layers.letters,
        "training_set": labels["train"],
        "test_set": labels["test"],
        "machine": settings.device_name,
        "torch": machine.versions()["torch"],
        "commit": (machine.commit()[0] or "")[:12],
        "seed": config.seed,
        "steps": rows[-1]["step"],
        "tokens": rows[-1]["tokens"],
        "complete": planned.folder.complete,
        "tokens_per_second_median": sorted(steady)[len(steady) // 2] if steady else "",
        **{f"{split}_{key}": value for split, m in metrics.items() for key, value in m.items()},
    }


def _write_csv(settings: Settings, name: str, rows: list[dict[str, Any]]) -> None:
    text = io.StringIO()
    columns = list(dict.fromkeys(key for row in rows for key in row))
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    settings.published.mkdir(parents=True, exist_ok=True)
    write_atomic(settings.published / name, text.getvalue())
    print(f"table: {settings.published / name}")
