"""Data to train on, as batches: text (read, tokenised and kept in a memory-mapped cache) or a synthetic task.

config.py        the `data` node of the configuration
sources/         where texts come from;  tokenizers.py: how they become tokens
corpus.py        a text as models are trained on it;  cache.py: folders that are made once
tasks_base.py    what a synthetic task is, and all of them;  tasks/: one file a task
task_set.py      a task as a data set
batches.py       training batches of text, and evaluation windows
"""

from experiments.data.batches import Batches, document_boundaries, eval_windows
from experiments.data.config import DataConfig, resolve_task
from experiments.data.corpus import Corpus, Split, check, fingerprint, prepare
from experiments.data.sources import SOURCES, SPLITS
from experiments.data.sources.hub import pinned
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
    "pinned",
    "prepare",
    "resolve_task",
    "task_label",
]
