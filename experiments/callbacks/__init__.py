"""What happens at the end of a training step.

In this order: row, validation, weights, probes, checkpoint, progress, time limit.

Validation and checkpoints are callbacks of ours, not Lightning's loops, so that a checkpoint is always taken after
everything else of its step: a resumed run then repeats nothing and skips nothing.
"""

from experiments.callbacks.checkpoints import AtomicFiles, Checkpoints, discard, restore_point
from experiments.callbacks.metrics import MetricRows
from experiments.callbacks.pacing import Paused, Progress, TimeLimit
from experiments.callbacks.probing import Probing
from experiments.callbacks.validation import Validation
from experiments.callbacks.weights import Weights

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
