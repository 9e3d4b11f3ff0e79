"""Callbacks that act at the end of a training step.

In this order: metric row, validation, exported weights, probes, checkpoint, progress, pause.

Validation and checkpoints are callbacks of ours, not Lightning's loops, so that a checkpoint is always taken after
everything else of its step: a resumed run then repeats nothing and skips nothing. ProbeTraining is imported where it is
used (probe_training), for it needs pyarrow.
"""

from experiments.training.callbacks.checkpoints import (
    AtomicCheckpointIO,
    Checkpoints,
    OwnSignals,
    Pause,
    latest_checkpoint,
    remove_checkpoints,
)
from experiments.training.callbacks.metrics import (
    ExportWeights,
    MetricRows,
    ReportProgress,
    TaskValidation,
    Validation,
)

__all__ = [
    "AtomicCheckpointIO",
    "Checkpoints",
    "ExportWeights",
    "MetricRows",
    "OwnSignals",
    "Pause",
    "ReportProgress",
    "TaskValidation",
    "Validation",
    "latest_checkpoint",
    "remove_checkpoints",
]
