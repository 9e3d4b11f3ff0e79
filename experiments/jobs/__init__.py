"""What `python run.py job=NAME` can do, one file a job; each is imported only when it runs."""

from __future__ import annotations

import importlib
from collections.abc import Callable

from experiments import interrupts
from experiments.schema import Config

# Name -> the first line people see in job=list. The function of a job is `run` in experiments/jobs/NAME.py.
DESCRIPTIONS = {
    "train": "train one model (with --multirun: a sweep) and score it on held-out text",
    "evaluate": "score a finished run or checkpoint: run=results/NAME/RUN",
    "generate": "go on from a prompt: run=results/NAME/RUN generate.prompt='...'",
    "probe": "look inside finished runs, tables into RUN/probes: runs=results/NAME or run=results/NAME/RUN",
    "cost": "parameters, FLOPs a token and decode-state bytes of a model",
    "bench": "measure: suite=kernels | models | attention | latency | recompute | cpu | harness",
    "gpu": "everything that needs a GPU, in resumable stages (make gpu)",
    "list": "blocks, presets, layouts, experiments, data and jobs",
}


def _lazily(name: str) -> Callable[[Config], None]:
    def run(config: Config) -> None:
        with interrupts.leaving():
            job = importlib.import_module(f"experiments.jobs.{name}")
        job.run(config)

    return run


JOBS: dict[str, Callable[[Config], None]] = {name: _lazily(name) for name in DESCRIPTIONS}
