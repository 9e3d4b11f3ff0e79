"""Callbacks that act at the end of a training step.

In this order: metric row, validation, exported weights, probes, checkpoint, progress, time limit.

Validation and checkpoints are callbacks of ours, not Lightning's loops, so that a checkpoint is always taken after
everything else of its step: a resumed run then repeats nothing and skips nothing.
"""

from experiments.callbacks.checkpoints import AtomicFiles, Checkpoints, discard, restore_point
from experiments.callbacks.export_weights import ExportWeights
from experiments.callbacks.metrics import MetricRows
from experiments.callbacks.probe_training import ProbeTraining
from experiments.callbacks.report_progress import ReportProgress
from experiments.callbacks.time_limit import Paused, TimeLimit
from experiments.callbacks.validation import Validation

__all__ = [
    "AtomicFiles",
    "Checkpoints",
    "ExportWeights",
    "MetricRows",
    "Paused",
    "ProbeTraining",
    "ReportProgress",
    "TimeLimit",
    "Validation",
    "discard",
    "restore_point",
]
