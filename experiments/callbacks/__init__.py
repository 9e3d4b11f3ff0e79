"""What happens at the end of a training step.

In this order: row, validation, weights, probes, checkpoint, progress, time limit.

Validation and checkpoints are callbacks of ours, not Lightning's loops, so that a checkpoint is always taken after
everything else of its step: a resumed run then repeats nothing and skips nothing.
"""

from experiments.callbacks.checkpoints import AtomicFiles, Checkpoints, discard, restore_point
from experiments.callbacks.export_weights import Weights
from experiments.callbacks.metrics import MetricRows
from experiments.callbacks.probe_training import Probing
from experiments.callbacks.time_limit import Paused, Progress, TimeLimit
from experiments.callbacks.validation import Validation

__all__ = [
    "AtomicFiles",
    "Checkpoints",
    "MetricRows",
    "Paused",
    "Probing",
    "Progress",
    "TimeLimit",
    "Validation",
    "Weights",
    "discard",
    "restore_point",
]
