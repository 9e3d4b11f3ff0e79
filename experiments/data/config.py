"""The `data` node of the configuration."""

import dataclasses
from dataclasses import dataclass
from typing import Any

from experiments.data import task_registry
from experiments.data.task_registry import TASKS
from zoo.config import from_dict

task_registry.discover()

PACKS = ("stream", "document")


def _as_values(node: Any) -> tuple[Any, ...]:
    """Pickled by its values: a worker that starts while somebody writes a task may know one more or one fewer."""
    return tasks_from, (dataclasses.asdict(node),)


Tasks = dataclasses.make_dataclass(
    "Tasks",
    [(name, task.config, dataclasses.field(default_factory=task.config)) for name, task in TASKS.items()],
    namespace={"__reduce__": _as_values},
)
Tasks.__module__ = __name__


def tasks_from(values: dict[str, Any]) -> Tasks:  # type: ignore[valid-type]
    """The options of all tasks from recorded ones; those of tasks that are no longer there are left out."""
    known = {name: options for name, options in values.items() if name in TASKS}
    return from_dict(Tasks, known, "data.tasks", recorded=True)


@dataclass
class DataConfig:
    """The text to train on, and how it is cut; or the synthetic task to train on.

    name: pydocs | wikitext103 | wikitext2 | text, or a task (job=list names them).
    path: text: a file, a folder or a glob. wikitext: a folder of parquet in the public layout
        (`{train,validation,test}-*.parquet`, column `text`); None reads the hub.
    train_path: wikitext: parquet file, folder or glob that replaces the training split.
    tokenizer: bytes | bpe (trained on the training split) | gpt2.
    vocab_size: entries of the tokenizer that bpe trains.
    gpt2_path: folder with encoder.json and vocab.bpe, or vocab.json and merges.txt; None reads the hub.
    pack: stream (windows of one long stream) | document (no attention across documents).
    seq_len, batch_size: tokens a sample, samples a micro-batch.
    cache_dir: folder of extracted text and tokens; None means the environment's ARCHZOO_CACHE, or else
        `.cache/archzoo` in the repository.
    revision: wikitext from the hub: commit of the data set; None means the one this project was tested with.
    tasks: the options of every task, of which only those of `name` count. Vocabulary and length of the sequences come
        from them, and keys of text have no meaning with a task.
    """

    name: str = "pydocs"
    path: str | None = None
    train_path: str | None = None
    tokenizer: str = "bpe"
    vocab_size: int = 4096
    gpt2_path: str | None = None
    pack: str = "stream"
    seq_len: int = 128
    batch_size: int = 8
    cache_dir: str | None = None
    revision: str | None = None
    tasks: Tasks = dataclasses.field(default_factory=Tasks)  # type: ignore[valid-type]
