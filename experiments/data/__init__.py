"""Data to train on: text (sources, tokenizers, a memory-mapped cache) or a synthetic task; their batches."""

from experiments.data.batches import Batches, document_boundaries, eval_windows
from experiments.data.config import DataConfig, resolve_task
from experiments.data.corpus import Corpus, Split, check, fingerprint, prepare
from experiments.data.sources import SOURCES, SPLITS
from experiments.data.task_set import Sequences, TaskSet, task_label
from experiments.data.tasks_base import TASKS
from experiments.data.tokenizers import TOKENIZERS

__all__ = [
    "SOURCES",
    "SPLITS",
    "TASKS",
    "TOKENIZERS",
    "Batches",
    "Corpus",
    "DataConfig",
    "Sequences",
    "Split",
    "TaskSet",
    "check",
    "document_boundaries",
    "eval_windows",
    "fingerprint",
    "prepare",
    "resolve_task",
    "task_label",
]
