"""The harness: data, training, runs and sweeps, benchmarks, jobs.

experiments.evaluate("results/my_sweep/RUN", "book.txt")      # metrics of a finished run on any text
"""

from typing import Any

_LAZY = {"evaluate": "experiments.scoring.evaluate"}


def __getattr__(name: str) -> Any:
    """Import what the package offers when it is first used: PyTorch takes two seconds."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_LAZY[name]), name)
