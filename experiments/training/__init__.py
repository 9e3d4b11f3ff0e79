"""Training one run: model, optimiser, trainer and callbacks, in one process or several, and its summary.

execute.py            brings a planned run to completion, and starts its processes where it takes several
rank.py               one process of such a run
train.py              trains a run and scores its best weights;  summary.py: what it says of the run
lightning_modules.py  losses, the optimiser, learning rates, and the search for the origin of a NaN
callbacks.py          what happens at the end of a step: metric rows, validation, probes, checkpoints
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import sys
import types
from collections.abc import Iterator
from typing import Any


def __getattr__(name: str) -> Any:
    """Import Lightning as `pl` when it is first used: `from experiments.training import pl`."""
    if name != "pl":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with _without_torchmetrics():
        import lightning.pytorch as pl

    return pl


@contextlib.contextmanager
def _without_torchmetrics() -> Iterator[None]:
    """While inside, torchmetrics is two empty classes, unless it is imported already.

    Lightning imports it for what `LightningModule.log` is given, which nothing here calls. It brings SciPy, matplotlib
    and, where it is installed, transformers, which together take as long to import as PyTorch.
    """
    if "torchmetrics" in sys.modules:
        yield
        return
    from torch import nn

    stand_in = types.ModuleType("torchmetrics")
    stand_in.__version__ = importlib.metadata.version("torchmetrics")
    stand_in.Metric, stand_in.MetricCollection = (
        type(kind, (nn.Module,), {}) for kind in ("Metric", "MetricCollection")
    )
    sys.modules["torchmetrics"] = stand_in
    try:
        yield
    finally:
        del sys.modules["torchmetrics"]
