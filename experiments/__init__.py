"""The harness: data, training, runs and sweeps, benchmarks, jobs.

    experiments.evaluate("results/my_sweep/RUN", "book.txt")      # metrics of a finished run on any text

front_desk.py             answers help, lists and refused keys at once
cli.py, jobs/             what `python run.py job=NAME` does
configuration/, planning/ from a command to a configuration, and from that to a checked run with its folder
data/, training/          texts and tasks as batches; one run
sweep.py, engines/        many runs, and what runs them;  parallel/: one run on several devices
optimisation.py           optimisers and learning-rate schedules by name
runs.py                   run folders
scoring/, generation.py   scores of finished runs; text from them;  lm_harness.py: a run for lm-evaluation-harness
probing/                  what models of runs do inside
compare/, verdict/        studies: models compared fairly; what an hour tells of a block;  gpu/: stages on a GPU
costs/, bench/            costs that are counted; times that are measured
evidence/                 numbers for the claims of documents
system/                   the operating system and this machine
"""

from typing import Any

_LAZY = {"evaluate": "experiments.scoring.evaluate"}


def __getattr__(name: str) -> Any:
    """Import what the package offers when it is first used: PyTorch takes two seconds."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_LAZY[name]), name)
